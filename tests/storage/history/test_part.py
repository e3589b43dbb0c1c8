"""Runs as Parquet: what goes in comes out, what was damaged is not believed, and any engine reads the rows."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Sequence
from dataclasses import replace

import google_crc32c
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.storage.errors import Corrupt
from sluice.storage.format.batch import MAX_RUN_MESSAGES, make_batch
from sluice.storage.format.frame import Frame, Header, decode_frame, encode_head, make_run
from sluice.storage.history.part import PartFooter, PartWriter, SealedPart, decode_footer, decode_group, same_rows

LEDGER = 7
TEXTS = st.dictionaries(st.text("ab", min_size=1), st.text("xy", max_size=3), max_size=3)


def frame_of(columns: dict[str, object], run: int, first_entry: int, compression: str | None = None) -> Frame:
    """A run of what a user sends; its producer's sequences go on from 100."""
    batch = make_batch(pa.table(columns), now=1_000, producer="p", first_sequence=100)
    made = make_run(batch, compression)
    header = Header(
        LEDGER, run, first_entry, made.count, 3, first_entry - 1, f"p{run % 2}", 100, made.delayed, made.shape, made.crc
    )
    return decode_frame(encode_head(header, len(made.payload)) + bytes(made.payload))


def columns_of(payloads: Sequence[bytes], start: int = 0, **more: object) -> dict[str, object]:
    keys = [b"k%d" % ((start + row) % 3) if row % 2 else None for row in range(len(payloads))]
    return {"key": pa.array(keys, pa.binary()), "payload": pa.array(payloads, pa.binary()), **more}


def followed(several: Sequence[dict[str, object]], compression: str | None = None) -> list[Frame]:
    frames: list[Frame] = []
    for columns in several:
        first = frames[-1].header.last_entry + 1 if frames else 0
        frames.append(frame_of(columns, len(frames), first, compression))
    return frames


def part_of(frames: Sequence[Frame], each: int = 2) -> SealedPart:
    """A file with so many runs in each row group."""
    writer = PartWriter(LEDGER, frames[0].header.run, frames[0].header.first_entry)
    for start in range(0, len(frames), each):
        writer.add(frames[start : start + each])
    return writer.finish()


def footer_of(part: SealedPart) -> PartFooter:
    size = len(part.data)
    return decode_footer(bytes(part.data[size - part.footer_bytes :]), size, part.footer_crc)


def runs_of(part: SealedPart) -> list[Frame]:
    """All runs, as a broker reads them: a row group at a time, by its bytes."""
    footer = footer_of(part)
    found = []
    for number, group in enumerate(footer.groups):
        rows = decode_group(footer, number, bytes(part.data[group.start : group.start + group.length]))
        found += [rows.frame(run) for run in range(group.first_run, group.stop_run)]
    return found


@st.composite
def users_columns(draw: st.DrawFn) -> dict[str, object]:
    payloads = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=6))
    count = len(payloads)
    columns = columns_of(payloads)
    optional = {
        "properties": (TEXTS, pa.map_(pa.string(), pa.string())),
        "event_time": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
        "ordering_key": (st.binary(max_size=3), pa.binary()),
    }
    for name, (values, kind) in optional.items():
        if draw(st.booleans()):
            cells = draw(st.lists(st.none() | values, min_size=count, max_size=count))
            cells = [list(cell.items()) if isinstance(cell, dict) else cell for cell in cells]
            columns[name] = pa.array(cells, kind)
    if draw(st.booleans()):
        columns["deliver_at"] = pa.array(draw(st.lists(st.integers(0, 9_000), min_size=count, max_size=count)))
    return columns


@settings(max_examples=25, deadline=None)
@given(st.lists(users_columns(), min_size=1, max_size=5), st.integers(1, 3), st.sampled_from([None, "zstd"]))
def test_runs_come_out_as_they_went_in(several: list[dict[str, object]], each: int, compression: str | None) -> None:
    frames = followed(several, compression)
    part = part_of(frames, each)
    found = runs_of(part)
    assert len(found) == len(frames)
    for one, wanted in zip(found, frames, strict=True):
        assert same_rows(one, wanted)
        assert (one.header.first_entry, one.header.producer, one.header.first_sequence) == (
            wanted.header.first_entry, wanted.header.producer, wanted.header.first_sequence,
        )  # fmt: skip
        assert one.header.epoch == wanted.header.epoch
    footer = footer_of(part)
    assert footer.first_entries.tolist() == [frame.header.first_entry for frame in frames]
    for number, group in enumerate(footer.groups):
        rows = decode_group(footer, number, bytes(part.data[group.start : group.start + group.length]))
        assert len(rows.unlike([frame.header for frame in frames[group.first_run : group.stop_run]])) <= len(frames)


def test_a_run_without_compression_has_the_same_bytes() -> None:
    frames = followed([columns_of([b"a", b"bb"]), columns_of([b"c"] * 5, deliver_at=[0, 1, 2, 3, 4])])
    assert [bytes(frame.payload) for frame in runs_of(part_of(frames))] == [bytes(frame.payload) for frame in frames]


def test_every_run_of_a_row_group_has_the_same_bytes() -> None:
    """Else it would be read from bookies once more when it is compared."""
    payloads = [[b"%d " % run * 100] * 50 for run in range(4)]
    frames = followed([{**columns_of(each), "event_time": pa.array(range(50))} for each in payloads])
    assert [bytes(frame.payload) for frame in runs_of(part_of(frames, 4))] == [bytes(frame.payload) for frame in frames]


def test_any_reader_of_parquet_sees_the_messages() -> None:
    part = part_of(followed([columns_of([b"a", b"b"], deliver_at=[0, 5_000]), columns_of([b"c"])]))
    table = pq.read_table(io.BytesIO(part.data))
    assert table.column("payload").to_pylist() == [b"a", b"b", b"c"]
    assert table.column("entry").to_pylist() == [0, 1, 2]
    assert table.column("sequence").to_pylist() == [100, 101, 100]
    assert [at and at.timestamp() for at in table.column("deliver_at").to_pylist()] == [None, 5.0, None]
    assert table.column("publish_time").type == pa.timestamp("us", "UTC")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_one_flipped_byte_is_never_believed(data: st.DataObject) -> None:
    frames = followed([columns_of([b"%d" % row for row in range(20)]) for _ in range(4)])
    part = part_of(frames)
    at = data.draw(st.integers(4, len(part.data) - 1))
    damaged = bytearray(part.data)
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        runs_of(SealedPart(memoryview(damaged), part.footer_bytes, part.footer_crc, part.headers))


def test_bytes_of_a_neighbour_are_refused() -> None:
    part = part_of(followed([columns_of([b"a"]), columns_of([b"b"])]), each=1)
    footer = footer_of(part)
    other = footer.groups[1]
    with pytest.raises(Corrupt, match="row group 0 does not fit"):
        decode_group(footer, 0, bytes(part.data[other.start : other.start + other.length]))


def test_a_run_of_results_knows_what_it_was_made_of() -> None:
    first, second = followed([columns_of([b"a"]), columns_of([b"b"])])
    results = Frame(replace(second.header, positions=b"\x93\x01"), second.payload)
    assert [frame.header.positions for frame in runs_of(part_of([first, results]))] == [b"", b"\x93\x01"]


def test_runs_must_follow_each_other() -> None:
    frames = followed([columns_of([b"a"]), columns_of([b"b"]), columns_of([b"c"])])
    writer = PartWriter(LEDGER, 0, 0)
    writer.add(frames[:1])
    with pytest.raises(Corrupt, match="run 2 does not follow"):
        writer.add(frames[2:])


def test_a_group_tells_which_run_is_another() -> None:
    frames = followed([columns_of([b"a", b"b"]), columns_of([b"c"])])
    part = part_of(frames)
    footer = footer_of(part)
    rows = decode_group(footer, 0, bytes(part.data[footer.groups[0].start :][: footer.groups[0].length]))
    assert rows.unlike([replace(frame.header, crc=1) for frame in frames]) == [0, 1]
    moved = [replace(frames[0].header, first_sequence=101)]
    with pytest.raises(Corrupt, match=r"run 0 .* as it went in"):
        rows.unlike(moved)


def test_the_largest_run_fits() -> None:
    payload = pa.array([b"x"] * MAX_RUN_MESSAGES, pa.binary())
    frames = followed([{"key": pa.array(np.arange(MAX_RUN_MESSAGES).astype(str)), "payload": payload}])
    part = part_of(frames)
    assert len(part.data) > 0
    assert runs_of(part)[0].header.crc == frames[0].header.crc


def test_an_unknown_format_is_named() -> None:
    sink = io.BytesIO()
    writer = pq.ParquetWriter(sink, pa.schema([("a", pa.int64())]))
    values = base64.b64encode(zlib.compress(msgpack.packb({"format": 9})))
    writer.add_key_value_metadata({b"sluice": values})
    writer.close()
    tail = sink.getvalue()[4:]
    with pytest.raises(Corrupt, match="format 9, known are 1 and 2"):
        decode_footer(tail, len(tail) + 4, google_crc32c.value(tail))


def test_producers_of_a_joint_run_come_out_as_they_went_in() -> None:
    frames = followed([columns_of([b"a"] * 6), columns_of([b"b"] * 3), columns_of([b"c"] * 2)])
    segments = (("p", 7, 1), ("q", 3, 3), ("p", 8, 2))
    joint = replace(frames[0].header, producer="", first_sequence=0, segments=segments)
    data = encode_head(joint, len(frames[0].payload)) + bytes(frames[0].payload)
    found = runs_of(part_of([decode_frame(data), *frames[1:]], each=3))
    assert [frame.header.parts for frame in found] == [segments, *(frame.header.parts for frame in frames[1:])]
    assert bytes(found[0].payload) == bytes(frames[0].payload)
