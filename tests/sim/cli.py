"""The simulator's command: many seeds with progress, one seed with its whole story, or the fewest faults that break it.

Exit codes: 0 no promise was broken, 1 one was, 2 the call was wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count as every_number
from itertools import islice

from sluice.actors.messages.settings import CHOICES
from sluice.cluster.base.arguments import ArgumentParser, amount, count, count_or_none
from tests.sim.faults import Fault, parse
from tests.sim.runner import Outcome, Scenario, run_seed, shrink
from tests.sim.worlds import WORLDS

PROGRESS_SECONDS = 2.0
CHUNK = 16
"""Seeds that a worker process takes at a time."""


def main(
    *,
    seeds: str = "0:1000",
    world: str = "broker",
    policy: str | None = None,
    faults: Sequence[str] | None = None,
    minutes: float | None = None,
    replay: int | None = None,
    shrink_seed: int | None = None,
    jobs: int = 1,
    keep_going: bool = False,
) -> int:
    """Run the simulator; returns the exit code.

    seeds: `A:B`, B not included; with `minutes`, seeds from A on until the time is over. policy: one dispatch policy
    for all seeds. faults: `kind` or `kind name=value ...`, instead of those of the seed; `none` for a calm world.
    """
    try:
        if (scenario := WORLDS.get(world)) is None:
            raise ValueError(f"there is no world {world!r}; there are {', '.join(WORLDS)}")
        chosen = None if faults is None else [parse(text) for text in faults if text != "none"]
        first, _, last = seeds.partition(":")
        numbers: Iterable[int] = every_number(int(first)) if minutes else range(int(first), int(last or int(first) + 1))
    except ValueError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 2
    options = {} if policy is None else {"policy": policy}
    if replay is not None:
        return _report(run_seed(scenario, replay, faults=chosen, options=options, echo=print), story=False)
    if shrink_seed is not None:
        return _report(shrink(scenario, shrink_seed, faults=chosen, options=options, told=print))
    return _sweep(scenario, world, numbers, chosen, options, minutes, jobs, keep_going)


def _sweep(
    scenario: Scenario,
    world: str,
    seeds: Iterable[int],
    faults: list[Fault] | None,
    options: dict[str, str],
    minutes: float | None,
    jobs: int,
    keep_going: bool,
) -> int:
    began = told = time.monotonic()
    done = failed = steps = virtual = 0
    counters: dict[str, int] = {}
    code = 0
    problems: dict[str, int] = {}
    for outcome in _outcomes(world, seeds, faults, options, jobs):
        done, steps, virtual = done + 1, steps + outcome.steps, virtual + outcome.virtual_ms
        for name, number in outcome.counters.items():
            counters[name] = counters.get(name, 0) + number
        if not outcome.clean:
            failed, code = failed + 1, 1
            sort = ":".join(outcome.problem.split(":")[:2])[:100]
            problems[sort] = problems.get(sort, 0) + 1
            if problems[sort] == 1:
                _report(outcome, story=not keep_going)
            else:
                print(f"seed {outcome.seed} FAILED: {sort}", flush=True)
            if not keep_going:
                break
        now = time.monotonic()
        if now - told > PROGRESS_SECONDS:
            told = now
            print(f"{done} seeds, {failed} failed, {done / (now - began):.1f} seeds/s", flush=True)
        if minutes and now - began > minutes * 60:
            break
    spent = max(time.monotonic() - began, 1e-9)
    print(
        f"{done} seeds of {scenario.name}, {failed} failed, {virtual / 3_600_000:.1f} virtual hours, "
        f"{steps / spent:,.0f} steps/s, {done / spent * 3600:,.0f} seeds/hour"
    )
    for name in sorted(counters):
        print(f"  {name}: {counters[name]:,}")
    for sort, number in problems.items():
        print(f"  FAILED {number} times: {sort}")
    return code


def _outcomes(
    world: str, seeds: Iterable[int], faults: list[Fault] | None, options: dict[str, str], jobs: int
) -> Iterator[Outcome]:
    if jobs <= 1:
        for seed in seeds:
            yield run_seed(WORLDS[world], seed, faults=faults, options=options)
        return
    with ProcessPoolExecutor(jobs) as pool:
        source = iter(seeds)
        while chunks := [chunk for _ in range(jobs * 2) if (chunk := list(islice(source, CHUNK)))]:
            try:
                for outcomes in pool.map(_chunk, [(world, chunk, faults, options) for chunk in chunks]):
                    yield from outcomes
            except GeneratorExit:
                pool.shutdown(cancel_futures=True)
                raise


def _chunk(work: tuple[str, list[int], list[Fault] | None, dict[str, str]]) -> list[Outcome]:
    world, seeds, faults, options = work
    return [run_seed(WORLDS[world], seed, faults=faults, options=options) for seed in seeds]


def _report(outcome: Outcome, *, story: bool = True) -> int:
    faults = "; ".join(map(str, outcome.faults)) or "none"
    if outcome.clean:
        print(f"seed {outcome.seed}: clean, digest {outcome.digest}, faults: {faults}")
        return 0
    if story:
        print(outcome.story)
    print(f"seed {outcome.seed} FAILED: {outcome.problem}\nfaults: {faults}")
    return 1


def command(arguments: Sequence[str] | None = None) -> int:
    """The command line: see `--help`."""
    parser = ArgumentParser(prog="./sluice simulate", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="A:B, B not included")
    parser.add_argument("--world", default="broker", choices=sorted(WORLDS))
    parser.add_argument("--policy", choices=CHOICES["policy"], help="one dispatch policy for all seeds")
    parser.add_argument("--faults", action="append", help="a kind, or 'kind name=value'; repeat; 'none' for no faults")
    parser.add_argument("--minutes", type=amount, help="go on for so long, from the first seed")
    parser.add_argument("--replay", type=count_or_none, help="run one seed with its whole story")
    parser.add_argument("--shrink", type=count_or_none, help="drop faults of a seed while it still fails")
    parser.add_argument("--jobs", type=count, default=1, help="worker processes")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    given = parser.parse_args(arguments)
    begin, _, end = given.seeds.partition(":")
    if given.minutes is None and not (begin.isdecimal() and end.isdecimal() and int(begin) < int(end)):
        parser.error(f"--seeds is A:B with A below B, not {given.seeds!r}")
    return main(
        seeds=given.seeds,
        world=given.world,
        policy=given.policy,
        faults=given.faults,
        minutes=given.minutes,
        replay=given.replay,
        shrink_seed=given.shrink,
        jobs=given.jobs,
        keep_going=given.keep_going,
    )


if __name__ == "__main__":
    sys.exit(command())
