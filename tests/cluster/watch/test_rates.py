"""Rates over several owners, while some are silent at times and some are replaced."""

from __future__ import annotations

from typing import Any

from sluice.cluster.watch.rates import OwnerRates


def stats(count: int, epoch: int = 1) -> dict[str, Any]:
    return {"epoch": epoch, "msgOutCounter": count}


def seen(*rounds: list[dict[str, Any] | None]) -> list[float]:
    """The rate after each round, a second apart."""
    rates = OwnerRates({"delivered": "msgOutCounter"})
    return [rates.update(1000 * at, owners)["delivered"] for at, owners in enumerate(rounds, 1)]


def test_the_rise_of_all_owners_is_added_up() -> None:
    assert seen([stats(5), stats(100)], [stats(7), stats(110)], [stats(7), stats(110)]) == [0.0, 12.0, 0.0]


def test_an_owner_that_was_silent_is_no_burst() -> None:
    """The whole count of a silent owner fell out of the sum, and came back into it within a fifth of a second."""
    rounds: list[list[dict[str, Any] | None]] = [
        [stats(1_000_000), stats(5)],
        [None, stats(6)],
        [stats(1_000_004), stats(7)],
    ]
    assert seen(*rounds) == [0.0, 1.0, 1.0 + 2.0]


def test_an_owner_that_is_new_counts_from_zero() -> None:
    assert seen([stats(90, 1)], [stats(3, 2)], [stats(3, 3)]) == [0.0, 3.0, 3.0]
