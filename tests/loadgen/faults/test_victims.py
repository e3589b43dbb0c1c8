"""The messages that a consumer holds before it is killed, with owners that are pretended."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.loadgen.faults.victims import BEHIND, Victims
from sluice.storage.errors import Unavailable


def stats(held: int, permits: int, replay: int, name: str = "a") -> dict[str, Any]:
    row = {"consumerName": name, "unackedMessages": held, "availablePermits": permits}
    return {"msgInReplay": replay, "consumers": [row]}


class Owners:
    """Tells the given answers in turn, the last one again and again; an error is raised."""

    def __init__(self, *answers: list[dict[str, Any]] | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    def stats(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def holding(*answers: list[dict[str, Any]] | Exception) -> Victims:
    return Victims(Owners(*answers), "t", "s")  # type: ignore[arg-type]


def test_messages_of_all_partitions_and_of_this_consumer_count() -> None:
    assert holding([stats(3, 9, 0), stats(4, 9, 0), stats(50, 9, 0, "b")]).held("a") == 7
    assert holding(Unavailable("just being replaced")).held("a") == 0


def test_messages_are_behind_only_where_the_queue_is_full() -> None:
    assert holding([stats(1, 0, 30), stats(1, 5, 70), stats(1, 0, 900, "b")]).waiting("a") == 30


def test_an_idle_consumer_is_waited_for() -> None:
    assert holding([stats(0, 9, 0)], Unavailable("busy"), [stats(2, 9, 0)]).until_held("a") == {"held": 2}


def test_a_full_queue_is_waited_for() -> None:
    full = [stats(500, 0, BEHIND)]
    assert holding([stats(400, 8, 0)], [stats(500, 0, BEHIND - 1)], full).until_behind("a") == {
        "held": 500,
        "behind": BEHIND,
    }


def test_one_who_never_gets_anything_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.loadgen.faults.victims.HOLD_S", 0.0)
    monkeypatch.setattr("sluice.loadgen.faults.victims.HANG_S", 0.0)
    assert holding([stats(0, 9, 0)]).until_held("a") == {"held": 0}
    assert holding([stats(5, 9, 0)]).until_behind("a") == {"held": 5, "behind": 0}
