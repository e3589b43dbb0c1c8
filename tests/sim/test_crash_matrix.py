"""The acting node breaks at every effect of the script, one at a time; afterwards every promise is judged.

By default all effects are played but the answers to polls, heartbeats, acknowledgements and requests to erase, which
make up nearly half of them and repeat each other; of these every third. An effect breaks in three ways; one that a
process has had three times before breaks in one of them, each in its turn. The environment variable `CRASH_MATRIX` asks
for more: `all` plays every single one in every way, `pairs:N` plays N pairs of breakages drawn from all pairs. A
failing case names its plan, and `tests.sim.crashpoints.play` with that plan plays it again. A script of its own does
the same while keys are erased (`play_erasing`).
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from functools import cache

import pytest

from tests.sim.crashpoints import HOWS, Played, play, play_each, play_erasing

ASKED = os.environ.get("CRASH_MATRIX", "")
CHATTER = ("answer to Poll", "answer to Heartbeat", "answer to Acknowledge", "answer to Erase")
THINNED = 3
REPEATS = 3
_NUMBER = re.compile(r"[0-9]+")


@cache
def calm() -> Played:
    """The script without a breakage."""
    return play({})


def chosen(names: list[str], how: str) -> list[int]:
    """Return the numbers of the effects that break in this way in this run."""
    if ASKED == "all":
        return list(range(len(names)))
    chatter = [number for number, name in enumerate(names) if name.startswith(CHATTER)]
    left_out = {number for at, number in enumerate(chatter) if at % THINNED}
    found, seen = [], Counter[str]()
    for number in range(len(names)):
        if number in left_out:
            continue
        kind = _NUMBER.sub("#", names[number])
        if seen[kind] < REPEATS or HOWS[seen[kind] % len(HOWS)] == how:
            found.append(number)
        seen[kind] += 1
    return found


def check(names: list[str], numbers: list[int], how: str, runs: list[Played]) -> None:
    """Check that each effect broke in its run, and that every promise was kept all the same."""
    assert [played.hit for played in runs] == [[f"{how} {names[number]}"] for number in numbers]
    for number, played in zip(numbers, runs, strict=True):
        assert not played.problem, f"plan {{{number}: {how!r}}}: {played.hit}\n{played.problem}"


def test_the_script_is_clean_and_goes_everywhere() -> None:
    assert calm().problem == ""
    assert calm().hit == []
    assert calm().counters["delivered"] >= 100
    told = "\n".join(calm().names)
    for effect in (
        "answer to CreateTopic", "answer to OpenProducer", "answer to Publish", "answer to AddRun",
        "answer to FenceLedger", "answer to Attach", "answer to Poll", "answer to Acknowledge", "answer to Progress",
        "answer to DeleteLedgers", "disk append journal", "disk append marks", "disk replace checkpoint",
        "meta topic/", "meta partition/", "meta subscription/", "meta delayed/", "meta ids/ledger 1",
        "object delayed/", ".bucket deleted", "object assignments/",
    ):  # fmt: skip
        assert effect in told, effect


def test_a_run_replays_and_the_chosen_effect_breaks() -> None:
    assert play({}).names == calm().names
    number = next(at for at, name in enumerate(calm().names) if name.startswith("answer to Publish"))
    broken = play({number: "before"})
    assert broken.hit == [f"before {calm().names[number]}"]
    assert broken.names[:number] == calm().names[:number]


def test_runs_that_branch_off_are_those_of_their_plans() -> None:
    numbers = (60, 200)
    assert play_each(numbers, "lost") == [play({number: "lost"}) for number in numbers]
    assert play_each([150], "after", erasing=True) == [play_erasing({150: "after"})]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", HOWS)
def test_every_single(how: str) -> None:
    numbers = chosen(calm().names, how)
    assert len(numbers) > 120
    check(calm().names, numbers, how, play_each(numbers, how))


@cache
def calm_erasing() -> Played:
    """The script that erases keys, without a breakage."""
    return play_erasing({})


def test_the_erasing_script_is_clean_and_goes_everywhere() -> None:
    assert calm_erasing().problem == ""
    assert calm_erasing().counters["erased"] > 0
    told = "\n".join(calm_erasing().names)
    for effect in (
        "answer to Erase",
        "answer to DeleteLedgers",
        "meta partition/",
        "object history/",
        ".parquet deleted",
    ):
        assert effect in told, effect


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", HOWS)
def test_every_single_while_keys_are_erased(how: str) -> None:
    names = calm_erasing().names
    begun = next(number for number, name in enumerate(names) if name.startswith("meta partition/"))
    numbers = [number for number in chosen(names, how) if number >= begun]
    assert len(numbers) > 60
    check(names, numbers, how, play_each(numbers, how, erasing=True))


@pytest.mark.skipif(not ASKED.startswith("pairs:"), reason="pairs are played on demand: CRASH_MATRIX=pairs:N")
@pytest.mark.timeout(36_000)
def test_pairs() -> None:
    rng = random.Random(ASKED)
    for _ in range(int(ASKED.partition(":")[2])):
        first, second = sorted(rng.sample(range(len(calm().names)), 2))
        plan = {first: rng.choice(HOWS), second: rng.choice(HOWS)}
        played = play(plan)
        assert not played.problem, f"plan {plan}: {played.hit}\n{played.problem}"
