"""The controller keeps a gateway on every machine that there is, and on no other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from sluice.actors.controller.controller import Controller
from sluice.actors.controller.gateway_keeper import GONE_MS, SURVEY_MS
from sluice.actors.messages import StartGateways
from sluice.actors.ports import Ports
from sluice.actors.runtime.host import Actor
from tests.sim.world import World

CONTROLLER = "controller/controller"


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], *machines: str) -> None:
    """A controller without bookies, on these machines; it has started what it wants."""

    async def run(world: World) -> None:
        world.gateway_machines = list(machines)
        world.kinds["gateway"] = (lambda ports, _: Actor(ports), lambda settings: settings["machine"], lambda _: None)
        await world.start("controller", controller, fixed=True)
        await world.client("up").net.call(CONTROLLER, StartGateways(), 10_000)
        await scenario(world)

    World(1).play(run)


def controller(ports: Ports) -> Actor:
    """One that keeps gateways."""
    return Controller(ports, bookies=[], gateways=True)


def where(world: World) -> list[str]:
    """The machines of the gateways that run."""
    return sorted(settings["machine"] for _, _, settings in world.placed())


def test_each_machine_has_one_and_a_new_one_gets_one() -> None:
    async def scenario(world: World) -> None:
        assert where(world) == ["a", "b"]
        world.gateway_machines = ["a", "b", "c"]
        await world.loop.pause(SURVEY_MS + 2_000)
        assert where(world) == ["a", "b", "c"]

    play(scenario, "a", "b")


def test_one_that_dies_or_freezes_is_replaced() -> None:
    async def scenario(world: World) -> None:
        (first,) = world.alive("gateway-")
        world.crash(first)
        await world.loop.pause(5_000)
        (second,) = world.alive("gateway-")
        world.pause(second)
        await world.loop.pause(15_000)
        assert world.alive("gateway-") not in ([first], [second])
        assert where(world) == ["a"]

    play(scenario, "a")


def test_a_machine_is_gone_when_it_was_not_seen_for_long() -> None:
    async def scenario(world: World) -> None:
        before = world.alive("gateway-")
        world.gateway_machines = ["a"]
        await world.loop.pause(SURVEY_MS + 500)
        world.gateway_machines = ["a", "b"]
        await world.loop.pause(SURVEY_MS + 500)
        assert world.alive("gateway-") == before, "it had only been slow to answer"
        world.gateway_machines = ["a"]
        await world.loop.pause(GONE_MS + 2 * SURVEY_MS)
        assert where(world) == ["a"]

    play(scenario, "a", "b")


def test_a_new_controller_finds_the_gateways() -> None:
    async def scenario(world: World) -> None:
        before = world.alive("gateway-")
        world.crash("controller")
        await world.restart("controller")
        await world.loop.pause(3 * SURVEY_MS)
        assert world.alive("gateway-") == before

    play(scenario, "a", "b")
