"""The synchronous heart against a naive model: a dict of due times."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.storage.delayed.core import DelayedCore, tracked
from sluice.storage.delayed.entries import EMPTY, END, Bound, Entries, concat, stable_order, time_order
from sluice.storage.delayed.queue import FAN_IN, PULL, SortedRun, tidy
from sluice.storage.format.position import position


def entries(rows: list[tuple[int, int]]) -> Entries:
    times, places = np.array(rows, np.int64).reshape(-1, 2).T
    return Entries(times.copy(), places.copy(), (places & 0xFFFF).astype(np.uint32))


def drain(core: DelayedCore, now: int, limit: int = 1000) -> list[int]:
    positions, hashes = core.pop_due(limit, now)
    assert ((positions & 0xFFFF) == hashes).all()
    taken: list[int] = positions.tolist()
    return taken


def test_iq_1_order_is_time_then_position() -> None:
    rows = entries([(5, position(2, 1)), (5, position(1, 9)), (4, position(3, 3)), (5, position(1, 2))])
    assert rows.sorted().positions.tolist() == [position(3, 3), position(1, 2), position(1, 9), position(2, 1)]


def test_iq_2_many_runs_come_out_sorted_and_whole() -> None:
    rng = np.random.default_rng(7)
    core = DelayedCore()
    all_rows = []
    for ledger in range(1, 30):
        rows = entries([(int(t), position(ledger, i)) for i, t in enumerate(rng.integers(1, 50, 2))])
        core.index.add(rows.positions)
        core.add_loose(SortedRun(rows.sorted()))
        all_rows.append(rows)
    core.add_loose(SortedRun(EMPTY))
    assert drain(core, 100) == concat(all_rows).sorted().positions.tolist()


def test_iq_3_the_time_at_the_head_is_that_of_the_next_entry_out() -> None:
    """The bound is exact for an unsorted, sorted, loose or pulled entry: a timer set by it wakes for that entry."""
    rng = np.random.default_rng(3)
    core, due = DelayedCore(), dict[int, int]()
    for step in range(60):
        rows = [(int(t), position(step // 3 + 1, step * 9 + i)) for i, t in enumerate(rng.integers(1, 200, 7))]
        due.update((place, at) for at, place in rows)
        new = entries(rows)
        core.index.add(new.positions)
        if step % 3:
            core.keep(new)
        else:
            core.add_loose(SortedRun(new.sorted()))
        for _ in range(int(rng.integers(0, 10))):
            head = core.bound()[0]
            assert drain(core, head - 1, 1) == []
            (taken,) = drain(core, head, 1)
            assert due.pop(taken) == head <= min(due.values(), default=head)
    while due:
        head = core.bound()[0]
        (taken,) = drain(core, head, 1)
        assert due.pop(taken) == head <= min(due.values(), default=head)
    assert core.bound() == END


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(1 << 62), 1 << 62), max_size=50))
def test_the_order_is_stable_even_where_keys_do_not_fit(values: list[int]) -> None:
    column = np.array(values, np.int64)
    assert stable_order(column).tolist() == sorted(range(len(values)), key=lambda i: values[i])
    same = np.zeros(len(values), np.int64)
    assert time_order(column, same).tolist() == stable_order(column).tolist()


PLACE = st.builds(position, st.integers(1, 3), st.integers(0, 30))
ADD = st.tuples(st.just("add"), st.lists(PLACE, max_size=20, unique=True))
TAKE = st.tuples(st.just("take"), st.integers(0, 12))
PASS = st.tuples(st.just("pass"), st.integers(-5, 15))
FORGET = st.tuples(st.just("forget"), st.lists(PLACE, max_size=9))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(ADD, TAKE, PASS, FORGET), max_size=25), st.sampled_from([0, 7]), st.integers(1, 60))
def test_the_core_is_a_dict_of_due_times(steps: list[tuple[str, object]], tick: int, spread: int) -> None:
    """A message's due time never changes, so here it is a function of its position."""
    core, model, now = DelayedCore(tick), dict[int, int](), 20
    for step, argument in steps:
        if step == "add":
            rows = {place: (place * 31 + (place >> 32) * 17) % spread - 1 for place in argument}  # type: ignore[attr-defined]
            places = np.array(list(rows), np.int64)
            due = np.array(list(rows.values()), np.int64)
            waits, new = core.admit(places, (places & 0xFFFF).astype(np.uint32), due, now)
            core.keep(new)
            assert waits.tolist() == [due > max(now + tick, 0) for due in rows.values()]
            for place, at in rows.items():
                if at > max(now + tick, 0):
                    model.setdefault(place, at)
                else:
                    model.pop(place, None)
        elif step == "take":
            due_now = sorted((at, place) for place, at in model.items() if at <= now + tick)[:argument]  # type: ignore[index]
            assert drain(core, now, argument) == [place for _, place in due_now]  # type: ignore[arg-type]
            for _, place in due_now:
                del model[place]
        elif step == "pass":
            now += argument  # type: ignore[operator]
        else:
            core.index.discard(np.array(argument, np.int64))
            for place in argument:  # type: ignore[attr-defined]
                model.pop(place, None)
        assert len(core.index) == len(model)
        kept = tracked(core.parts(), core.index)
        assert list(zip(kept.deliver_at.tolist(), kept.positions.tolist(), strict=True)) == sorted(
            (at, place) for place, at in model.items()
        )


def test_nothing_at_or_after_the_horizon_is_given_out() -> None:
    core = DelayedCore()
    rows = entries([(5, position(1, 1)), (5, position(1, 3)), (6, position(1, 4))])
    core.index.add(rows.positions)
    run = SortedRun(rows)

    def take(horizon: Bound) -> list[int]:
        taken: list[int] = core.pop_due(10, 100, lambda: [run], horizon)[0].tolist()
        return taken

    assert take((5, position(1, 1))) == []
    assert take((5, position(1, 2))) == [position(1, 1)]
    assert take((6, position(1, 4))) == [position(1, 3)]
    assert take(END) == [position(1, 4)]


def test_pulls_are_bounded_when_very_much_is_due() -> None:
    core, count = DelayedCore(), 6 * PULL
    for ledger in range(1, 4):
        times = np.sort(np.random.default_rng(ledger).integers(1, 1000, count // 3))
        places = position(ledger, 0) + np.arange(count // 3, dtype=np.int64)
        core.index.add(places)
        core.add_loose(SortedRun(Entries(times, places, np.zeros(count // 3, np.uint32)).sorted()))
    first = core.pop_due(10, 5000)[0]
    assert first.size == 10
    assert 0 < core.loaded() - sum(len(run) for run in core.loose) < 4 * PULL
    rest = core.pop_due(count, 5000)[0]
    assert rest.size == count - 10
    assert len(core.index) == 0


def test_runs_of_similar_size_are_merged() -> None:
    runs = [SortedRun(entries([(i, position(1, i))])) for i in range(FAN_IN)]
    merged = tidy(runs)
    assert len(merged) == 1
    assert merged[0].entries.positions.tolist() == [position(1, i) for i in range(FAN_IN)]


def test_the_clock_jumps_back_and_nothing_is_early() -> None:
    core = DelayedCore()
    for due, place in ((10, position(1, 1)), (20, position(1, 2))):
        core.index.add(np.array([place], np.int64))
        core.keep(entries([(due, place)]))
    assert drain(core, 25, 1) == [position(1, 1)]
    assert drain(core, 15) == []
    _, new = core.admit(np.array([position(1, 3)]), np.array([3], np.uint32), np.array([18]), 15)
    core.keep(new)
    assert drain(core, 30) == [position(1, 3), position(1, 2)]
