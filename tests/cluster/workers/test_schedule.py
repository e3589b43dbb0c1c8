"""The order in which a worker handles what it has, against the rules: one key once at a time, each key in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.cluster.workers.schedule import KeySchedule

Item = tuple[bytes, int]


def schedule(concurrency: int, stale: set[Item] | None = None) -> KeySchedule[Item]:
    return KeySchedule(concurrency, lambda item: item in (stale or set()))


def test_a_key_waits_for_itself_and_for_no_other() -> None:
    plan = schedule(2)
    for item in [(b"a", 1), (b"a", 2), (b"b", 1), (b"c", 1)]:
        plan.add(item[0], item)
    assert plan.start() == [(b"a", (b"a", 1)), (b"b", (b"b", 1))]
    plan.done(b"b")
    assert plan.start() == [(b"c", (b"c", 1))]
    plan.done(b"a")
    assert plan.start() == [(b"a", (b"a", 2))]
    assert plan.waiting == 0


def test_message_taken_back_is_left_out() -> None:
    stale: set[Item] = set()
    plan = schedule(1, stale)
    for number in (1, 2):
        plan.add(b"a", (b"a", number))
    assert plan.start() == [(b"a", (b"a", 1))]
    stale.add((b"a", 2))
    plan.done(b"a")
    plan.add(b"a", (b"a", 1))
    plan.add(b"a", (b"a", 3))
    assert plan.start() == [(b"a", (b"a", 1))]
    plan.done(b"a")
    assert plan.start() == [(b"a", (b"a", 3))]


def test_a_key_of_which_all_was_taken_back_takes_no_place() -> None:
    plan = schedule(1, {(b"a", 1)})
    plan.add(b"a", (b"a", 1))
    plan.add(b"b", (b"b", 1))
    assert plan.start() == [(b"b", (b"b", 1))]
    plan.done(b"b")
    plan.add(b"a", (b"a", 2))
    assert plan.start() == [(b"a", (b"a", 2))]


@given(
    concurrency=st.integers(1, 4),
    steps=st.lists(st.one_of(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(0, 3)), max_size=80),
)
def test_every_key_is_in_order_and_never_beside_itself(concurrency: int, steps: list[bytes | int]) -> None:
    """Bytes: a message of that key comes. A number: one of those that run ends."""
    plan = schedule(concurrency)
    sent: dict[bytes, int] = {}
    handled: dict[bytes, list[int]] = {}
    running: list[bytes] = []

    def start() -> None:
        for key, (_, number) in plan.start():
            assert key not in running
            running.append(key)
            handled.setdefault(key, []).append(number)
        waiting = {key for key, _ in plan.first_waiting()}
        assert len(running) == concurrency or waiting <= set(running)

    for step in steps:
        if isinstance(step, bytes):
            sent[step] = sent.get(step, 0) + 1
            plan.add(step, (step, sent[step]))
        elif running:
            plan.done(running.pop(step % len(running)))
        start()
        assert len(running) <= concurrency
    while running:
        plan.done(running.pop())
        start()
    assert handled == {key: list(range(1, count + 1)) for key, count in sent.items()}
    assert plan.waiting == 0
