"""The placer: replacements of lost processes, processes that do not answer, and the return to order."""

from __future__ import annotations

import asyncio

import pytest

from sluice.storage.errors import Corrupt, Unavailable
from tests.actors.placement.site import BOOKIE, OTHER, TIMES, TOPIC, Site, play, running, subscription


def test_a_lost_process_is_not_waited_for() -> None:
    """Another broker process takes in what it ran; one process more shall wait, so that the next loss finds one."""

    async def scenario(site: Site) -> None:
        await running(site)
        await site.lose("broker-0")
        await site.places.start("topic", "b", TOPIC)
        await site.places.start("dispatcher", "c", TOPIC)
        assert site.runs() == {"broker-1": ["1", "0", "0"], "bookie-0": ["bookie"]}
        assert not site.made

    play(scenario)


def test_one_more_waits_for_each_slot_in_a_fallback() -> None:
    async def scenario(site: Site) -> None:
        site.controller(standby=True, calm=10**9)
        await running(site)
        await site.world.loop.pause(TIMES.first + 5_000)
        assert site.placement.wanted() == len(site.placement.standby.waiting) == 1
        site.cluster.kill(site.placement.standby.waiting[0].name)
        await site.lose("broker-0")
        await site.places.start("topic", "b", TOPIC)
        assert site.placement.wanted() == 2
        await site.world.loop.pause(10_000)
        assert len(site.placement.standby.waiting) == 2

    play(scenario)


def test_a_bookie_falls_back_nowhere_and_takes_nobody_in() -> None:
    """The bookie's process is its own; so is the first one of a broker, and the last one's successor."""

    async def scenario(site: Site) -> None:
        await running(site)
        await site.lose("bookie-0")
        await site.places.start("bookie", "b", BOOKIE)
        await site.lose("broker-0")
        await site.lose("broker-1")
        await site.places.start("topic", "b", TOPIC)
        assert site.runs() == {"bookie-0": ["bookie"], "broker-0": ["0"]}

    play(scenario)


def test_when_all_is_calm_slots_move_back() -> None:
    """Actors in a fallback are ended there, so that they are missed and started in their own slot. The host keeps
    its own.
    """

    async def scenario(site: Site) -> None:
        await running(site)
        await site.lose("broker-0")
        address = await site.places.start("topic", "b", TOPIC)
        assert address.startswith("broker-1")
        await site.world.loop.pause(TIMES.calm + 5_000)
        assert site.runs() == {"broker-1": ["1"], "bookie-0": ["bookie"], "broker-0": []}
        await site.places.stop(address)
        await site.places.start("topic", "c", TOPIC)
        assert site.runs() == {"broker-1": ["1"], "bookie-0": ["bookie"], "broker-0": ["0"]}

    play(scenario)


def test_slots_do_not_move_while_processes_are_lost() -> None:
    """Moving would be one more interruption for clients that just had one."""

    async def scenario(site: Site) -> None:
        await running(site)
        await site.lose("broker-0")
        await site.places.start("topic", "b", TOPIC)
        for _ in range(3):
            await site.world.loop.pause(TIMES.calm - 5_000)
            await site.lose("bookie-0")
            await site.places.start("bookie", "b", BOOKIE)
        assert site.runs() == {"broker-1": ["1", "0"], "bookie-0": ["bookie"]}
        await site.world.loop.pause(TIMES.calm + 5_000)
        assert site.runs() == {"broker-1": ["1"], "bookie-0": ["bookie"], "broker-0": []}

    play(scenario)


def test_a_move_that_failed_is_made_later() -> None:
    """The slot has its process already, but what fell back was not ended: its host was frozen just then."""

    async def scenario(site: Site) -> None:
        await running(site)
        await site.lose("broker-0")
        await site.places.start("topic", "b", TOPIC)
        host = site.process("broker-1")
        site.cluster.freeze(host)
        await site.world.loop.pause(TIMES.calm + 10_000)
        site.cluster.thaw(host)
        assert site.runs() == {"broker-1": ["1", "0"], "bookie-0": ["bookie"], "broker-0": []}
        await site.world.loop.pause(TIMES.calm + 10_000)
        assert site.runs() == {"broker-1": ["1"], "bookie-0": ["bookie"], "broker-0": []}

    play(scenario)


def test_a_lost_fallback_is_replaced_for_those_in_it() -> None:
    """Nothing of the lost one is thought to run."""

    async def scenario(site: Site) -> None:
        await running(site)
        await site.lose("broker-0")
        await site.places.start("topic", "b", TOPIC)
        await site.lose("broker-1")
        await site.places.start("topic", "d", OTHER)
        await site.places.start("topic", "c", TOPIC)
        assert site.runs() == {"bookie-0": ["bookie"], "broker-1": ["1", "0"]}

    play(scenario)


@pytest.mark.parametrize("standby", [False, True])
def test_two_that_are_lost_together_share_one_process(standby: bool) -> None:
    """One process is started, which both need; it is the one that would be kept ready, if one shall be."""

    async def scenario(site: Site) -> None:
        await running(site)
        site.controller(standby=standby)
        await site.places.inventory()
        await site.lose("broker-0")
        await site.lose("broker-1")
        await asyncio.gather(*(site.places.start("topic", str(share["partition"]), share) for share in (TOPIC, OTHER)))
        (served,) = [sorted(partitions) for slot, partitions in site.runs().items() if slot != "bookie-0"]
        assert served == ["0", "1"]
        assert ("broker-standby" in site.runs()) is standby

    play(scenario)


def test_a_slow_start_ends_no_process_that_answers() -> None:
    """Others run in it, and work well; the start is given up and can be tried again."""

    async def scenario(site: Site) -> None:
        site.controller(start=30)
        process = site.add("broker-0-a", ("topic", "broker-0-a/t", TOPIC))
        await site.places.inventory()
        site.cluster.trouble.answer_lost = 1.0
        with pytest.raises(Unavailable, match="did not answer"):
            await site.places.start("dispatcher", "d", subscription("s"))
        assert process.dead

    async def kept(site: Site) -> None:
        process = site.add("broker-0-a", ("topic", "broker-0-a/t", TOPIC))
        await site.places.inventory()
        site.cluster.freeze(process)
        site.world.loop.after(TIMES.start + 1_000, site.cluster.thaw, process)
        with pytest.raises(Unavailable, match=r"did not start: .*its process lives"):
            await site.places.start("dispatcher", "d", subscription("s"))
        assert not process.dead
        assert await site.places.start("dispatcher", "d2", subscription("s")) == "broker-0-a/d2"

    play(scenario)
    play(kept)


def test_a_bookie_is_started_where_its_disk_is() -> None:
    """Not where the fewest processes are. If that machine is away, no refusal elsewhere says that the disk is lost."""

    async def scenario(site: Site) -> None:
        lost = await site.places.start("bookie", "a", BOOKIE)
        home = site.cluster.homes["bookie-0"]
        node = site.process("bookie-0").node
        site.cluster.lose_node(node)
        await site.places.stop(lost)
        await site.world.loop.pause(3_000)
        for _ in range(2):
            with pytest.raises(Unavailable, match="is away"):
                await site.places.start("bookie", "b", BOOKIE)
        site.cluster.add_node("n9", home)
        site.made.clear()
        address = await site.places.start("bookie", "c", BOOKIE)
        assert [address.partition("/")[0]] == site.made

    play(scenario, "m0", "m1", "m2")


def test_a_disk_that_no_machine_has_is_refused() -> None:
    """No machine is known to have had the disk; the bookie's process never stays."""

    async def scenario(site: Site) -> None:
        site.cluster.homes["bookie-0"] = "elsewhere"
        with pytest.raises(Corrupt):
            await site.places.start("bookie", "a", BOOKIE)
        assert len(site.made) == 2
        assert site.runs() == {}

    play(scenario, "m0", "m1")
