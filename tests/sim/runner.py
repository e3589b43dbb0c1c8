"""Runs seeds: one world a seed, with its faults; tells what broke, and shrinks the list of faults that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.sim import faults as swarm
from tests.sim.faults import Fault
from tests.sim.loop import SimFailure
from tests.sim.world import Process, World


class Scenario(Protocol):
    """A kind of world: builds itself from a seed, misbehaves, heals, and checks its promises."""

    name: str
    kinds: list[str]
    """The kinds of faults that make sense here."""
    favourites: Sequence[str]
    """Those without which little is at stake here."""

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play one run to its end; returns counters of what was checked. Raises SimFailure."""


@dataclass
class Outcome:
    """How one seed ended."""

    seed: int
    faults: list[Fault]
    problem: str = ""
    """First line: the promise that broke; empty if none did."""
    story: str = ""
    digest: str = ""
    steps: int = 0
    virtual_ms: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """No promise was seen broken."""
        return not self.problem


def fail_where_lost(world: World) -> None:
    """A dispatcher that reads messages again, because none of its tables knew them, has a defect."""

    def hear(process: Process, event: str, fields: dict[str, object]) -> None:
        if event == "read_again":
            world.loop.fail(AssertionError(f"L3: {process.name} knew open messages in none of its tables: {fields}"))

    world.ears.append(hear)


def run_seed(
    scenario: Scenario,
    seed: int,
    *,
    faults: Sequence[Fault] | None = None,
    options: dict[str, str] | None = None,
    echo: Callable[[str], object] | None = None,
) -> Outcome:
    """Play one seed. faults None: those of the seed."""
    chosen = list(faults) if faults is not None else swarm.draw(seed, scenario.kinds, scenario.favourites)
    world = World(seed)
    world.echo = echo
    fail_where_lost(world)
    outcome = Outcome(seed, chosen)
    try:
        outcome.counters = scenario(world, chosen, options or {})
    except SimFailure as failure:
        outcome.story = str(failure)
        outcome.problem = outcome.story.partition("\n")[0] or "failed"
    outcome.digest = world.digest()
    outcome.steps = world.loop.steps
    outcome.virtual_ms = world.loop.now
    for name, count in world.faults_seen().items():
        outcome.counters[f"fault: {name}"] = count
    return outcome


def shrink(
    scenario: Scenario,
    seed: int,
    *,
    faults: Sequence[Fault] | None = None,
    options: dict[str, str] | None = None,
    told: Callable[[str], object] = lambda line: None,
) -> Outcome:
    """Drop faults one by one while the seed still fails; returns the smallest failing outcome.

    The problem may change its words on the way: any failure counts, as each of them is a defect.
    """
    best = run_seed(scenario, seed, faults=faults, options=options)
    if best.clean:
        return best
    for fault in list(best.faults):
        fewer = [other for other in best.faults if other != fault]
        tried = run_seed(scenario, seed, faults=fewer, options=options)
        told(f"without {fault}: {'clean' if tried.clean else tried.problem}")
        if not tried.clean:
            best = tried
    return best
