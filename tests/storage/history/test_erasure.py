"""Erasure of keys: the remains of a message whose key must be forgotten."""

from __future__ import annotations

import pyarrow as pa

from sluice.storage.format.batch import GIVEN_BY_CLIENTS, decode_body, make_batch
from sluice.storage.format.frame import Frame, Header, make_run
from sluice.storage.history.erasure import holds, without
from sluice.storage.history.part import PartWriter, SealedPart, decode_footer, decode_group

KEYS = [b"ada", b"bob", None, b"ada", b"eve"]


def frame_of(keys: list[bytes | None], **columns: object) -> Frame:
    count = len(keys)
    table = pa.table(
        {"key": pa.array(keys, pa.binary()), "payload": [b"secret %d" % n for n in range(count)], **columns}
    )
    batch = make_batch(table, now=1_000, producer="p", first_sequence=7, accepted=GIVEN_BY_CLIENTS)
    run = make_run(batch)
    header = Header(
        ledger=3, run=0, first_entry=0, count=count, epoch=1, last_confirmed=-1, producer="p", first_sequence=7,
        delayed=batch.deliver_at is not None, shape=run.shape, crc=run.crc, positions=b"",
    )  # fmt: skip
    return Frame(header, run.payload)


def anew(frame: Frame, keys: list[bytes]) -> tuple[Frame, list[int], bytes]:
    """Return the run of a file rewritten without some keys, the number of rows each key had, and the new file."""
    file = write(frame)
    footer = decode_footer(bytes(file.data[-file.footer_bytes :]), len(file.data), file.footer_crc)
    group = footer.groups[0]
    rows = decode_group(footer, 0, bytes(file.data[group.start : group.start + group.length]))
    left, counts = rows.without(keys)
    return left.frame(0), counts, bytes(write(left.frame(0)).data)


def write(frame: Frame) -> SealedPart:
    writer = PartWriter(3, 0, 0)
    writer.add([frame])
    return writer.finish()


def test_nothing_of_a_key_is_left_but_its_place() -> None:
    properties = pa.array([[("name", f"n{n}")] for n in range(5)], pa.map_(pa.string(), pa.string()))
    frame = frame_of(
        KEYS, properties=properties, ordering_key=[b"o-ada"] * 5, deliver_at=[9_000] * 5, event_time=[5] * 5
    )
    left, counts, data = anew(frame, [b"ada", b"nobody"])
    assert counts == [2, 0]
    rows = rows_of(left)
    assert rows.column("key").to_pylist() == [None, b"bob", None, None, b"eve"]
    assert rows.column("payload").to_pylist() == [b"", b"secret 1", b"secret 2", b"", b"secret 4"]
    assert rows.column("ordering_key").to_pylist() == [None, b"o-ada", b"o-ada", None, b"o-ada"]
    assert [value is None for value in rows.column("properties").to_pylist()] == [True, False, False, True, False]
    assert left.header.count == 5
    assert left.header.first_sequence == 7
    assert left.deliver_at is not None
    assert left.deliver_at.tolist() == [9_000] * 5
    without_key = frame_of([None] * 5)
    assert [left.hashes[row] == without_key.hashes[row] for row in (0, 3)] == [True, True]
    assert [left.hashes[row] == frame.hashes[row] for row in (1, 2, 4)] == [True, True, True]
    for word in (b"secret 0", b"secret 3", b"n0", b"n3"):
        assert word not in data


def test_erased_message_hashes_like_a_message_without_key() -> None:
    numbers = [30, 31, 32, 33, 34]
    left, _, _ = anew(frame_of(KEYS, sequence_id=numbers), [b"ada"])
    without_key = frame_of([None] * 5, sequence_id=numbers)
    assert [left.hashes[row] == without_key.hashes[row] for row in (0, 2, 3)] == [True, True, True]


def test_rows_without_the_erased_key_are_unchanged() -> None:
    frame = frame_of(KEYS)
    left, counts, _ = anew(frame, [b"nobody"])
    assert counts == [0]
    assert left.payload == frame.payload
    assert holds(rows_of(frame), [b"nobody", b"eve"])
    assert not holds(rows_of(frame), [b"nobody"])
    rows = rows_of(frame)
    assert without(rows, [b"nobody"]) == (rows, [0])


def rows_of(frame: Frame) -> pa.RecordBatch:
    return decode_body(frame.body, frame.header.shape, frame.header.count)
