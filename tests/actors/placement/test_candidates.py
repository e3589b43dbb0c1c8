"""On which machines there are processes that can be the controller."""

from __future__ import annotations

from sluice.actors.placement.placement import Placement
from sluice.actors.placement.placer import Placer
from tests.actors.placement.site import Site, play
from tests.sim.processes import SimProcess, SimProcesses, is_candidate

LONG_MS = 60_000


def keep(site: Site) -> None:
    """A controller that sees to candidates on three machines."""
    ports = site.world.client("controller-x")
    processes = SimProcesses(site.cluster, ports.me, site.made.append)
    placement = Placement(1, ports.clock.monotonic(), standby=False, candidates=3)
    places = Placer(ports, processes, placement)

    async def begin() -> None:
        await places.inventory()

    ports.spawn(begin(), "begin")


def machines(site: Site) -> list[str]:
    """Return the machines of the living candidates, sorted."""
    nodes = [process.node for process in site.cluster.alive() if is_candidate(process.name)]
    return sorted(site.cluster.nodes[node].address for node in nodes)


def test_three_machines_have_one_each() -> None:
    """Also if the first one is there already, and a machine has two nodes."""

    async def scenario(site: Site) -> None:
        site.cluster.processes["controller-first"] = SimProcess("controller-first", "n1", "ray", ready=True)
        site.cluster.add_node("n9", "b")
        keep(site)
        await site.world.loop.pause(LONG_MS)
        assert machines(site) == ["a", "b", "c"]

    play(scenario, "a", "b", "c")


def test_a_second_one_on_a_machine_counts_for_none() -> None:
    """Ray started the first one again beside another: the machine that lost it gets one."""

    async def scenario(site: Site) -> None:
        for number, name in enumerate(("controller-first", "controller-1", "controller-2")):
            node = f"n{min(number, 1)}"
            site.cluster.processes[name] = SimProcess(name, node, "ray", ready=True)
        keep(site)
        await site.world.loop.pause(LONG_MS)
        assert machines(site) == ["a", "b", "b", "c"]

    play(scenario, "a", "b", "c")


def test_a_machine_that_is_away_keeps_its_candidate() -> None:
    """No other candidate takes its place meanwhile: it may be alive, and mostly is."""

    async def scenario(site: Site) -> None:
        keep(site)
        await site.world.loop.pause(LONG_MS)
        site.cluster.cut_machine("c")
        await site.world.loop.pause(LONG_MS)
        site.cluster.heal_machine("c")
        await site.world.loop.pause(LONG_MS)
        assert machines(site) == ["a", "b", "c"]

    play(scenario, "a", "b", "c", "d")
