"""Inventory: a controller finds the processes that another one made."""

from __future__ import annotations

import asyncio

from sluice.actors.placement.placement import Placed
from tests.actors.placement.site import BOOKIE, OTHER, TIMES, TOPIC, Site, play, running


def test_process_that_answers_at_once_is_known_at_once() -> None:
    """A process that serves a slot of another name is known as well."""
    rows: list[Placed] = [("bookie", "bookie-0-a/b", BOOKIE), ("topic", "broker-standby-b/t", TOPIC)]

    async def scenario(site: Site) -> None:
        site.add("bookie-0-a", rows[0])
        site.add("broker-standby-b", rows[1], slot="broker-0")
        assert await site.places.inventory() == rows
        assert await site.places.start("topic", "again", TOPIC) == "broker-standby-b/again"

    play(scenario)


def test_one_that_is_slow_keeps_waiting_who_wants_its_slot() -> None:
    """And nobody else; what ran in it is not started a second time, and is told about once."""

    async def scenario(site: Site) -> None:
        site.add("bookie-0-a", ("bookie", "bookie-0-a/b", BOOKIE))
        slow = site.add("broker-0-b", ("topic", "broker-0-b/t", TOPIC), frozen=True)
        assert [kind for kind, _, _ in await site.places.inventory()] == ["bookie"]
        site.world.loop.after(1_000, site.cluster.thaw, slow)
        starts = (site.places.start(kind, "new", TOPIC) for kind in ("topic", "dispatcher"))
        assert await asyncio.gather(*starts) == ["broker-0-b/t", "broker-0-b/new"]
        assert await site.places.start("topic", "third", TOPIC) == "broker-0-b/third"

    play(scenario)


def test_one_that_never_answers_is_ended() -> None:
    """The process is frozen; its slot gets another one."""

    async def scenario(site: Site) -> None:
        frozen = site.add("broker-0-a", ("topic", "broker-0-a/t", TOPIC), frozen=True)
        assert await site.places.inventory() == []
        assert not (await site.places.start("topic", "again", TOPIC)).startswith("broker-0-a/")
        await site.world.loop.pause(TIMES.introduce)
        assert frozen.dead

    play(scenario)


def test_the_second_process_of_a_slot_ends() -> None:
    """The inventory leaves out the actors of the process that ends."""

    async def scenario(site: Site) -> None:
        site.add("broker-0-a", ("topic", "broker-0-a/t", TOPIC))
        site.add("broker-standby-b", ("topic", "broker-standby-b/t", TOPIC), slot="broker-0")
        ((_, address, _),) = await site.places.inventory()
        assert [process.name for process in site.cluster.alive()] == [address.partition("/")[0]]

    play(scenario)


def test_fallbacks_stay_until_all_is_calm() -> None:
    """A process that is lost meanwhile is treated as any other."""
    guest, host = ("topic", "broker-1-a/g", TOPIC), ("topic", "broker-1-a/h", OTHER)

    async def scenario(site: Site) -> None:
        site.add("broker-1-a", host, guest)
        assert await site.places.inventory() == [guest, host]
        assert await site.places.start("dispatcher", "d", TOPIC) == "broker-1-a/d"
        await site.world.loop.pause(TIMES.calm + 5_000)
        assert site.runs() == {"broker-0": [], "broker-1": ["1"]}

    play(scenario)


def test_a_slot_that_was_moving_goes_on_moving() -> None:
    """The slot's own process comes before the one that took it in. Actors still in the other one end when all is
    calm.
    """

    async def scenario(site: Site) -> None:
        site.add("broker-1-a", ("topic", "broker-1-a/g", TOPIC))
        site.add("broker-0-b")
        await site.places.inventory()
        assert await site.places.start("dispatcher", "d", TOPIC) == "broker-0-b/d"
        assert site.runs() == {"broker-0": ["0"], "broker-1": ["0"]}
        await site.world.loop.pause(TIMES.calm + 5_000)
        assert site.runs() == {"broker-0": ["0"], "broker-1": []}

    play(scenario)


def test_a_process_that_nobody_knows_is_found() -> None:
    """A controller that was frozen made it. It has the lock of a bookie's disk; or is of no use."""

    async def scenario(site: Site) -> None:
        await running(site)
        _, old = site.places, site.controller()
        await site.lose("bookie-0")
        address = await old[1].start("bookie", "z", BOOKIE)
        site.controller()
        site.placement.start(0)
        assert await site.places.start("bookie", "c", BOOKIE) == address

    async def idle(site: Site) -> None:
        await site.places.inventory()
        await running(site)
        site.add("broker-0-z")
        await site.world.loop.pause(TIMES.discover + 5_000)
        assert site.made == []
        assert site.runs() == {"broker-0": ["0"], "broker-1": ["1"], "bookie-0": ["bookie"]}
        assert "broker-0-z" not in site.cluster.processes

    play(scenario)
    play(idle)


def test_more_than_are_wanted_do_not_wait_for_long() -> None:
    """The others end when all is calm."""

    async def scenario(site: Site) -> None:
        site.controller(standby=True)
        site.add("broker-0-a")
        site.add("broker-1-a")
        for name in ("b", "c", "d"):
            site.add(f"broker-standby-{name}")
        await site.places.inventory()
        assert len(site.placement.standby.waiting) == 3
        await site.world.loop.pause(TIMES.calm + 1_000)
        assert len(site.placement.standby.waiting) == 1
        assert len(site.cluster.alive()) == 3

    play(scenario)


def test_one_that_another_controller_uses_is_not_used_twice() -> None:
    """Nor is it ended: it serves a slot already."""

    async def scenario(site: Site) -> None:
        site.controller(standby=True)
        waits = site.add("broker-standby-a")
        await site.places.inventory()
        waits.slot = "broker-1"
        assert not (await site.places.start("topic", "t", TOPIC)).startswith("broker-standby-a/")
        assert not waits.dead

    play(scenario)
