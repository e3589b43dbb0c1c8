"""A gateway on each machine: in a process of its own, which counts for no node, and which a waiting one replaces."""

from __future__ import annotations

import pytest

from sluice.storage.errors import Unavailable
from tests.actors.placement.site import BOOKIE, TIMES, TOPIC, Site, play

HERE, THERE = {"machine": "m"}, {"machine": "elsewhere"}


def test_gateway_has_its_own_process_on_its_machine() -> None:
    async def scenario(site: Site) -> None:
        assert await site.places.machines() == ["elsewhere", "m"]
        for machine in (THERE, HERE):
            address = await site.places.start("gateway", "g", machine)
            assert address.startswith(f"gateway-{machine['machine']}-")
        await site.places.start("topic", "a", TOPIC)
        assert sorted(site.runs()) == ["broker-0", "gateway-elsewhere", "gateway-m"]
        with pytest.raises(Unavailable, match="away"):
            await site.places.start("gateway", "g", {"machine": "gone"})

    play(scenario, "m", "elsewhere")


def test_gateway_does_not_count_when_others_are_placed() -> None:
    """With a gateway on the first of two nodes the next process goes to the same node as without gateways."""

    async def scenario(site: Site) -> None:
        await site.places.start("gateway", "g", HERE)
        await site.places.start("bookie", "a", BOOKIE)
        assert site.process("bookie-0").node == "n0"

    play(scenario, "m", "elsewhere")


def test_its_process_ends_with_it_and_it_takes_nobody_in() -> None:
    async def scenario(site: Site) -> None:
        address = await site.places.start("gateway", "g", HERE)
        await site.places.start("topic", "a", TOPIC)
        await site.lose("broker-0")
        await site.places.start("topic", "b", TOPIC)
        assert site.runs() == {"gateway-m": ["bookie"], "broker-0": ["0"]}
        await site.places.stop(address, frozen=True)
        assert list(site.runs()) == ["broker-0"]

    play(scenario)


def test_a_new_controller_finds_it() -> None:
    async def scenario(site: Site) -> None:
        address = await site.places.start("gateway", "g", HERE)
        site.controller()
        assert await site.places.inventory() == [("gateway", address, HERE)]
        assert await site.places.start("gateway", "other", HERE)
        assert len(site.cluster.alive()) == 1

    play(scenario)


def test_a_waiting_process_of_its_machine_replaces_it() -> None:
    async def scenario(site: Site) -> None:
        site.controller(standby=True)
        await site.places.start("gateway", "g", HERE)
        await site.places.start("topic", "a", TOPIC)
        await site.world.loop.pause(TIMES.first + 5_000)
        (waiting,) = site.placement.standby.waiting
        await site.lose("gateway-m")
        address = await site.places.start("gateway", "h", HERE)
        assert address == f"{waiting.name}/h"
        await site.world.loop.pause(TIMES.again + 5_000)
        assert [process.name != waiting.name for process in site.placement.standby.waiting] == [True]

    play(scenario)
