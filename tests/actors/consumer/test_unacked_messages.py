"""The messages that a consumer holds, and the rest after acknowledgements and a lost session."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import LazyBatch, Received, UnackedMessageTracker


def part(first: int, count: int) -> Received:
    """Positions first .. first+count-1."""
    zeros = np.zeros(count, np.int64)
    return Received(
        rows=pa.record_batch({"payload": [b""] * count}),
        partition=0,
        positions=np.arange(first, first + count),
        dispatch=zeros,
        redeliveries=zeros.astype(np.uint8),
        deliver_at=zeros,
        epoch=1,
        session=1,
    )


def unread() -> LazyBatch:
    """Rows 1 and 3 of one run, and all of another."""
    runs = [
        pa.record_batch({"key": keys, "payload": [b"x"] * len(keys)}) for keys in ([b"a", b"b", b"c", b"d"], [b"e"])
    ]
    one, zeros = part(10, 3), np.zeros(3, np.int64)
    return LazyBatch(
        [(runs[0], np.array([1, 3])), (runs[1], None)],
        partition=0,
        positions=one.positions,
        dispatch=zeros,
        redeliveries=one.redeliveries,
        deliver_at=zeros,
        epoch=1,
        session=1,
    )


def test_rows_are_taken_out_when_somebody_looks() -> None:
    one = unread()
    assert one.column("key").to_pylist() == [b"b", b"d", b"e"]
    assert len(one.pieces) == 2
    assert one.schema.equals(one.pieces[0][0].schema)
    assert one.rows.column("key").to_pylist() == [b"b", b"d", b"e"]
    assert one.rows is one.rows
    assert one.column("key").to_pylist() == [b"b", b"d", b"e"]


def test_neighbours_that_are_half_of_a_run_are_not_copied() -> None:
    run, held = pa.record_batch({"payload": [b"x", b"y", b"z", b"u"]}), part(10, 2)
    addresses = []
    for chosen in ([1, 2], [0, 2], [3]):
        columns = {name: getattr(held, name)[: len(chosen)] for name in ("positions", "dispatch", "redeliveries")}
        due = np.zeros(len(chosen), np.int64)
        one = LazyBatch([(run, np.array(chosen))], partition=0, deliver_at=due, epoch=1, session=1, **columns)
        assert one.rows.column("payload").to_pylist() == [b"xyzu"[at : at + 1] for at in chosen]
        addresses.append(one.rows.column("payload").buffers()[2].address)
    there = run.column("payload").buffers()[2].address
    assert [address == there for address in addresses] == [True, False, False]


def test_unread_rows_taken_back_are_never_seen() -> None:
    one = unread()
    one.take_back(np.array([1]))
    assert one.rows.column("key").to_pylist() == [b"b", b"e"]
    assert one.positions.tolist() == [10, 12]


def test_rows_that_are_let_go_are_still_held() -> None:
    for one in (unread(), part(10, 3)):
        schema = one.schema
        one.release()
        assert one.rows.num_rows == 0
        assert one.rows.get_total_buffer_size() < 16, "a slice of the rows would keep their memory"
        assert one.schema.equals(schema)
        assert one.close(np.array([1])).tolist() == [11]
        assert one.close().tolist() == [10, 12]


def test_closing_rows_tells_each_position_once() -> None:
    """A second acknowledgement of the same rows says nothing."""
    one = part(10, 4)
    assert one.close(np.array([1, 3])).tolist() == [11, 13]
    assert one.close(np.array([1, 2])).tolist() == [12]
    assert one.close().tolist() == [10]
    assert one.close().tolist() == []


def test_holding_is_what_is_open_in_order() -> None:
    """Positions of all parts, ascending; finished parts are forgotten."""
    holding = UnackedMessageTracker()
    late, early = part(50, 2), part(10, 3)
    holding.add(late)
    holding.add(early)
    early.close(np.array([0]))
    assert holding.positions().tolist() == [11, 12, 50, 51]
    late.close()
    assert holding.positions().tolist() == [11, 12]


def test_a_lost_session_leaves_nothing() -> None:
    """Everything is revoked: acknowledging it later sends nothing."""
    holding = UnackedMessageTracker()
    one = part(10, 3)
    holding.add(one)
    holding.revoke()
    assert one.revoked
    assert one.close().tolist() == []
    assert holding.positions().tolist() == []
