"""The cursor against a plain set, and its encoding against damage. Scenario S12: monotonic and honest.

Records with a checksum.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.cursor import Cursor, seal, unseal
from sluice.storage.format.position import EARLIEST, MAX_ENTRY, Positions, position, run_positions


def _column(*positions: int) -> Positions:
    return np.array(positions, np.int64)


# -- examples ------------------------------------------------------------------------------------------------------


def test_a_new_cursor_has_nothing_done() -> None:
    cursor = Cursor()
    assert cursor.mark_delete == EARLIEST
    assert cursor.next_unacknowledged(EARLIEST) == 0
    assert not cursor.is_acknowledged(run_positions(1, 0, 5)).any()
    cursor.acknowledge(np.empty(0, np.int64))
    assert cursor.mark_delete == EARLIEST


def test_acknowledgements_in_order_move_the_mark_delete_position() -> None:
    cursor = Cursor()
    cursor.chain([(5, None)])
    cursor.acknowledge(run_positions(5, 0, 10))
    assert cursor.mark_delete == position(5, 9)
    assert cursor.acknowledged_count == cursor.holes == 0
    assert cursor.next_unacknowledged(0) == position(5, 10)


def test_a_gap_holds_the_mark_delete_position_until_it_is_closed() -> None:
    cursor = Cursor()
    cursor.chain([(5, None)])
    cursor.acknowledge(_column(position(5, 1), position(5, 2), position(5, 4)))
    assert cursor.mark_delete == EARLIEST
    assert (cursor.acknowledged_count, cursor.holes) == (3, 2)
    assert cursor.next_unacknowledged(position(5, 1)) == position(5, 3)
    cursor.acknowledge(_column(position(5, 0)))
    assert cursor.mark_delete == position(5, 2)
    cursor.acknowledge(_column(position(5, 3)))
    assert cursor.mark_delete == position(5, 4)
    assert cursor.acknowledged_count == 0


def test_the_mark_delete_position_steps_over_ledger_ends() -> None:
    cursor = Cursor()
    cursor.chain([(1, 2), (2, -1), (4, -1), (7, None)])
    cursor.acknowledge(np.concatenate([run_positions(1, 0, 3), run_positions(7, 0, 2)]))
    assert cursor.mark_delete == position(7, 1)


def test_acknowledgements_behind_a_ledgers_end_do_not_move_it() -> None:
    cursor = Cursor()
    cursor.chain([(1, 2), (2, None)])
    cursor.acknowledge(run_positions(1, 0, 6))
    assert cursor.mark_delete == position(1, 2)


def test_without_the_chain_it_waits_at_the_end_of_a_ledger() -> None:
    cursor = Cursor()
    cursor.chain([(1, None)])
    cursor.acknowledge(np.concatenate([run_positions(1, 0, 3), run_positions(2, 0, 5)]))
    assert cursor.mark_delete == position(1, 2), "nobody said that ledger 1 ends here, or that 2 follows"
    cursor.chain([(1, 2)])
    assert cursor.mark_delete == position(1, 2), "nobody said that 2 follows"
    cursor.chain([(2, None)])
    assert cursor.mark_delete == position(2, 4)


def test_a_complete_chain_declares_trimmed_ledgers_done() -> None:
    cursor = Cursor()
    cursor.chain([(1, 99)])
    cursor.acknowledge(_column(position(1, 5), position(3, 0), position(3, 1)))
    cursor.chain([(3, None)])
    assert cursor.mark_delete == EARLIEST
    cursor.chain([(3, None)], complete=True)
    assert cursor.mark_delete == position(3, 1)
    assert cursor.is_acknowledged(run_positions(1, 0, 100)).all()


def test_an_empty_first_ledger_does_not_hold_up_a_complete_chain() -> None:
    cursor = Cursor(position(1, 7))
    cursor.chain([(3, -1), (4, None)], complete=True)
    cursor.acknowledge(run_positions(4, 0, 2))
    assert cursor.mark_delete == position(4, 1)


def test_a_closed_ledger_does_not_change_its_end_nor_reopen() -> None:
    cursor = Cursor()
    cursor.chain([(1, 9), (2, None)])
    with pytest.raises(Invalid, match="closed at entry 9"):
        cursor.chain([(1, 10)])
    cursor.chain([(1, None), (2, None)])
    cursor.acknowledge(run_positions(1, 0, 10))
    assert cursor.next_unacknowledged(0) == position(2, 0)


@pytest.mark.parametrize("ids", [[2, 1], [1, 1], [-1]])
def test_a_chain_that_does_not_ascend_is_invalid(ids: list[int]) -> None:
    with pytest.raises(Invalid, match="ascend"):
        Cursor().chain([(ledger, None) for ledger in ids])


@pytest.mark.parametrize("wrong", [[3, 2], [-5, 2], [EARLIEST]])
def test_bad_columns_are_invalid_and_change_nothing(wrong: list[int]) -> None:
    cursor = Cursor()
    before = cursor.encode()
    with pytest.raises(Invalid):
        cursor.acknowledge(_column(*wrong))
    assert cursor.encode() == before


def test_repeated_positions_count_once() -> None:
    cursor = Cursor()
    cursor.acknowledge(_column(position(1, 3), position(1, 3), position(1, 4)))
    cursor.acknowledge(_column(position(1, 3), position(1, 4)))
    assert cursor.acknowledged_count == 2


def test_reset_is_the_only_way_back_and_skip_to_is_not() -> None:
    cursor = Cursor()
    cursor.chain([(1, 9), (2, None)])
    cursor.acknowledge(np.concatenate([run_positions(1, 0, 10), run_positions(2, 5, 1)]))
    cursor.skip_to(position(1, 3))
    assert cursor.mark_delete == position(1, 9)
    cursor.skip_to(position(2, 3))
    assert cursor.mark_delete == position(2, 2)
    assert cursor.is_acknowledged(run_positions(2, 0, 7)).tolist() == [True, True, True, False, False, True, False]
    cursor.reset(position(1, 4))
    assert cursor.mark_delete == position(1, 3)
    assert cursor.acknowledged_count == 0
    cursor.reset(EARLIEST)
    assert cursor.mark_delete == EARLIEST


def test_trimmed_range_behind_a_position_is_acknowledged() -> None:
    cursor = Cursor(position(3, 4))
    cursor.chain([(3, None)])
    cursor.trimmed(position(3, 5), 7)
    assert cursor.unacknowledged_in(position(3, 5), position(7, 1)) == 2
    assert cursor.next_unacknowledged(position(3, 5)) == position(7, 0)
    cursor.acknowledge(run_positions(7, 0, 2))
    assert cursor.mark_delete == position(7, 1)

    held = Cursor(position(3, 1))  # 3:2 to 3:4 are with a consumer; the end of 3 is known, 4 and 5 are as good as gone
    held.chain([(3, 9), (4, 4), (5, None)])
    held.acknowledge(np.array([position(3, 7), position(5, 3)]))
    held.trimmed(position(3, 5), 6)
    assert held.next_unacknowledged(0) == position(3, 2)
    assert held.holes == 1
    held.acknowledge(run_positions(3, 2, 3))
    assert held.mark_delete == position(3, 9)
    assert held.next_unacknowledged(0) == position(6, 0)

    ahead = Cursor(position(3, 1))  # somebody who came back acknowledged 3:8 before it was read
    ahead.acknowledge(np.array([position(3, 8)]))
    ahead.trimmed(position(3, 2), 6)
    assert (ahead.mark_delete, ahead.holes) == (position(3, 8), 0)


def test_a_reset_to_a_ledgers_start_leaves_nothing_before_it() -> None:
    cursor = Cursor()
    cursor.chain([(1, 9), (2, -1), (7, None)])
    for target in (position(7, 0), position(5, 0)):
        cursor.reset(target)
        assert cursor.mark_delete == target - 1
        assert cursor.is_acknowledged(run_positions(1, 0, 10)).all()
        assert cursor.is_acknowledged(run_positions(4, 0, 10)).all(), "a ledger that nobody named"
        assert cursor.next_unacknowledged(0) == target
    unknown = Cursor()
    unknown.reset(position(3, 0))
    assert unknown.next_unacknowledged(0) == position(3, 0)
    unknown.acknowledge(run_positions(3, 0, 2))
    assert unknown.mark_delete == position(3, 1)


def test_a_reset_to_an_empty_ledger_goes_on_in_the_next() -> None:
    cursor = Cursor()
    cursor.chain([(3, 9), (4, -1), (5, None)])
    cursor.reset(position(4, 0))
    assert cursor.next_unacknowledged(0) == position(5, 0)
    cursor.acknowledge(run_positions(5, 0, 1))
    assert cursor.mark_delete == position(5, 0)


def test_the_last_possible_entry_is_no_obstacle() -> None:
    cursor = Cursor(position(1, MAX_ENTRY - 3))
    cursor.chain([(1, MAX_ENTRY), (2, None)])
    cursor.acknowledge(run_positions(1, MAX_ENTRY - 2, 3))
    assert cursor.mark_delete == position(1, MAX_ENTRY)
    cursor.acknowledge(run_positions(2, 0, 1))
    assert cursor.mark_delete == position(2, 0)


def test_unacknowledged_messages_are_counted_across_ledgers() -> None:
    cursor = Cursor()
    cursor.chain([(1, 9), (2, -1), (3, 4), (4, None)])
    cursor.acknowledge(_column(position(1, 0), position(1, 5), position(3, 0), position(4, 1)))
    assert cursor.unacknowledged_in(0, position(4, 2)) == 8 + 4 + 2
    assert cursor.unacknowledged_in(position(1, 5), position(3, 1)) == 4 + 1
    assert cursor.unacknowledged_in(position(4, 0), position(4, 0)) == 1
    assert cursor.unacknowledged_in(position(4, 1), position(4, 0)) == 0


# -- a reference model ---------------------------------------------------------------------------------------------


class CursorModel(RuleBasedStateMachine):
    """The cursor beside a set of done positions, over a topic of a few short ledgers."""

    @initialize(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6), gap=st.integers(1, 3))
    def begin(self, sizes: list[int], gap: int) -> None:
        self.ledgers = [(1 + gap * at, size) for at, size in enumerate(sizes)]
        self.universe = [position(ledger, entry) for ledger, size in self.ledgers for entry in range(size)]
        self.done: list[int] = []
        self.cursor = Cursor()
        self.told = [False] * len(sizes)
        self.highest = EARLIEST

    def _pairs(self, low: int, high: int) -> list[tuple[int, int | None]]:
        pairs: list[tuple[int, int | None]] = [(ledger, size - 1) for ledger, size in self.ledgers[low:high]]
        if high == len(self.ledgers):
            pairs[-1] = (pairs[-1][0], None)
        return pairs

    def _finish(self, done: list[int]) -> None:
        self.done = sorted(done)
        assert self.cursor.mark_delete >= self.highest, "S12: the mark-delete position went back"
        self.highest = self.cursor.mark_delete

    @rule(data=st.data())
    def tell_some_of_the_chain(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, len(self.ledgers) - 1))
        if self.cursor.mark_delete == EARLIEST and not any(self.told):
            low = 0  # a cursor that stands before everything is first told of the first ledger
        high = data.draw(st.integers(low + 1, len(self.ledgers)))
        self.cursor.chain(self._pairs(low, high))
        self.told[low:high] = [True] * (high - low)
        # What was told before and after a gap would claim that nothing lies between; nobody may leave such a gap.
        known = [at for at, told in enumerate(self.told) if told]
        if known and known[-1] - known[0] + 1 != len(known):
            self.cursor.chain(self._pairs(known[0], known[-1] + 1))
            self.told[known[0] : known[-1] + 1] = [True] * (known[-1] + 1 - known[0])
        self._finish(self.done)

    @rule(data=st.data())
    def tell_the_whole_chain(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, len(self.ledgers) - 1))
        self.cursor.chain(self._pairs(low, len(self.ledgers)), complete=True)
        self.told[low:] = [True] * (len(self.ledgers) - low)
        trimmed = [at for at in self.universe if at < position(self.ledgers[low][0], 0)]
        self._finish(list(dict.fromkeys(self.done + trimmed)))

    @rule(data=st.data())
    def acknowledge_some(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.universe), unique=True)) if self.universe else []
        self.cursor.acknowledge(np.array(sorted(some), np.int64))
        self._finish(list(dict.fromkeys(self.done + some)))

    @rule(data=st.data())
    def acknowledge_a_run(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, len(self.universe)))
        high = data.draw(st.integers(low, len(self.universe)))
        self.cursor.acknowledge(np.array(self.universe[low:high], np.int64))
        self._finish(list(dict.fromkeys(self.done + self.universe[low:high])))

    @precondition(lambda self: self.universe)
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from(self.universe)) + data.draw(st.integers(0, 1))
        self.cursor.skip_to(to)
        self._finish(list(dict.fromkeys(self.done + [at for at in self.universe if at < to])))

    @precondition(lambda self: self.universe)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from(self.universe))
        self.cursor.reset(to)
        self.highest = EARLIEST
        self.told = [False] * len(self.ledgers)  # ledgers that lie behind may have been forgotten
        known = [at for at, (ledger, _) in enumerate(self.ledgers) if ledger in self.cursor._ids]
        for at in known:
            self.told[at] = True
        self._finish([at for at in self.universe if at < to])

    @rule()
    def restart(self) -> None:
        before = self.cursor
        self.cursor = Cursor.decode(before.encode())
        assert self.cursor.encode() == before.encode()

    @invariant()
    def keeps_its_invariants(self) -> None:
        self.cursor.check()

    @invariant()
    def what_is_done_is_exactly_what_was_acknowledged_or_skipped(self) -> None:
        expected = [at in self.done for at in self.universe]
        assert self.cursor.is_acknowledged(np.array(self.universe, np.int64)).tolist() == expected
        assert all(at in self.done for at in self.universe if at <= self.cursor.mark_delete)
        scattered = [at for at in self.done if at > self.cursor.mark_delete]
        assert self.cursor.acknowledged_count == len(scattered)
        assert self.cursor.holes == sum(at - 1 not in scattered for at in scattered)

    @invariant()
    def with_the_whole_chain_it_finds_the_first_open_message(self) -> None:
        if not all(self.told):
            return
        open_ones = [at for at in self.universe if at not in self.done]
        for start in (EARLIEST, *self.universe):
            behind = [at for at in open_ones if at >= start]
            found = self.cursor.next_unacknowledged(start)
            if behind:
                assert found == behind[0]
            else:
                assert found not in self.universe
                assert found > max(self.universe, default=EARLIEST)
        if self.universe:
            swallowed = [at for at in self.universe if not open_ones or at < open_ones[0]]
            assert self.cursor.mark_delete >= max(swallowed, default=EARLIEST)
            assert self.cursor.unacknowledged_in(0, self.universe[-1]) == len(open_ones)
            assert self._walked(most=3) == open_ones

    def _walked(self, most: int) -> list[int]:
        """Every open message, a piece of the log at a time."""
        found: list[int] = []
        while len(piece := self.cursor.open_from(found[-1] + 1 if found else EARLIEST, self.universe[-1], most)):
            found += piece.tolist()
        return found


CursorModel.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
TestS12CursorAgainstASet = CursorModel.TestCase


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5_000), max_size=200), st.lists(st.integers(0, 200_000), max_size=200))
def test_dense_and_sparse_lookups_agree(acked: list[int], asked: list[int]) -> None:
    """Lookups go through a dense mask or an intersection, by the span of what is asked."""
    cursor = Cursor()
    column = np.unique(np.array(acked, np.int64)) + position(3, 0)
    cursor.acknowledge(column)
    for factor in (1, 40):
        wanted = np.unique(np.array(asked, np.int64) // factor) + position(3, 0)
        assert cursor.is_acknowledged(wanted).tolist() == np.isin(wanted, column).tolist()


# -- bytes ---------------------------------------------------------------------------------------------------------


def _scattered() -> Cursor:
    cursor = Cursor(position(3, 17))
    cursor.chain([(3, 99), (4, -1), (9, None)])
    cursor.acknowledge(_column(position(3, 20), position(3, 30), position(9, 0), position(9, 2)))
    return cursor


def test_every_flipped_bit_and_every_truncation_is_corrupt() -> None:
    whole = _scattered().encode()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            Cursor.decode(bytes(damaged))
    for size in range(len(whole)):
        with pytest.raises(Corrupt):
            Cursor.decode(whole[:size])
    with pytest.raises(Corrupt):
        Cursor.decode(whole + b"\0")


def test_a_million_holes_survive_a_restart() -> None:
    cursor = Cursor()
    cursor.chain([(1, None)])
    positions = np.arange(1, 2_000_001, 2, dtype=np.int64) + position(1, 0)
    cursor.acknowledge(positions)
    assert cursor.holes == 1_000_000
    back = Cursor.decode(cursor.encode())
    assert back.holes == 1_000_000
    assert back.is_acknowledged(positions).all()
    assert not back.is_acknowledged(positions - 1).any()
    back.acknowledge(positions - 1)
    assert back.mark_delete == position(1, 1_999_999)


def test_a_sealed_body_comes_back() -> None:
    assert unseal(b"KIND", seal(b"KIND", b"what it says"), "the note") == b"what it says"


def test_damaged_bytes_are_reported_by_name() -> None:
    whole = seal(b"KIND", b"what it says")
    with pytest.raises(Corrupt, match=r"^the note is cut off$"):
        unseal(b"KIND", whole[:7], "the note")
    for damaged in (seal(b"ELSE", b"what it says"), whole[:-1], whole[:9] + b"?" + whole[10:]):
        with pytest.raises(Corrupt, match=r"^the note's checksum does not fit$"):
            unseal(b"KIND", damaged, "the note")
