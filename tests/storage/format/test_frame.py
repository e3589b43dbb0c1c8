"""Frames: the same bytes at rest and on the wire; any damage is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import google_crc32c
import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.storage.errors import Corrupt, Invalid
from sluice.storage.format.batch import decode_body, make_batch
from sluice.storage.format.frame import (
    MAX_HEADER_BYTES,
    MAX_SEGMENTS,
    PREFIX_BYTES,
    Header,
    Run,
    decode_frame,
    decode_head,
    encode_head,
    make_run,
    run_of,
    run_parts,
)


def example(delayed: bool = False) -> tuple[Header, Run, bytes]:
    """A small frame, its header and its run."""
    columns: dict[str, object] = {"key": ["a", "b", "c"], "payload": ["1", "22", "333"]}
    if delayed:
        columns["deliver_at"] = [0, 5, 6]
    run = make_run(make_batch(pa.record_batch(columns), now=9, producer="p"))
    header = Header(3, 7, 100, run.count, 2, 99, "p", 41, run.delayed, run.shape, run.crc)
    return header, run, encode_head(header, len(run.payload)) + bytes(run.payload)


@pytest.mark.parametrize("delayed", [False, True])
def test_a_frame_comes_back_as_it_was(delayed: bool) -> None:
    """Header, index columns and body; what follows the frame is ignored."""
    header, run, data = example(delayed)
    frame = decode_frame(data + b"next")
    assert frame.header == header
    assert frame.header.last_entry == 102
    assert bytes(frame.payload) == bytes(run.payload)
    assert len(frame.hashes) == 3
    assert (frame.deliver_at is None) is not delayed
    assert decode_body(frame.body, header.shape, 3)["payload"].to_pylist() == [b"1", b"22", b"333"]
    assert decode_head(data) == header


def test_positions_of_results_travel_in_the_header() -> None:
    """A header without them is the bytes that it was before there were any."""
    header, run, data = example()
    with_results = replace(header, producer="=in/s/0", positions=b"any")
    encoded = encode_head(with_results, len(run.payload))
    assert decode_head(encoded) == with_results
    packed = data[PREFIX_BYTES : len(data) - len(run.payload)]
    assert msgpack.packb([3, 7, 100, 3, 2, 99, "p", 41, False, run.shape, run.crc]) == packed
    with pytest.raises(Invalid, match="header needs"):
        encode_head(replace(header, positions=bytes(MAX_HEADER_BYTES)), len(run.payload))


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("optional", [{}, {"properties": [[("a", "b")], [], None] * 4}, {"deliver_at": [0, 9, 7] * 4}])
def test_a_run_in_parts_is_the_same_run(optional: dict[str, object], start: int) -> None:
    """Nothing large is copied for it, also where the batch is a slice of a larger one."""
    types = {"properties": pa.map_(pa.string(), pa.string())}
    columns = {name: pa.array(values, types.get(name)) for name, values in optional.items()}
    columns |= {"key": pa.array(["a", None, "ccc"] * 4), "payload": pa.array(["x" * 5000, "", "yy"] * 4)}
    batch = make_batch(pa.record_batch(columns), now=9, producer="p").slice(start, 12)
    parts = run_parts(batch)
    run = run_of(batch, memoryview(b"".join(parts)), parts)
    assert run == make_run(batch)
    if not start:
        payload = batch.rows.column("payload").buffers()[2]
        assert payload.address in [pa.py_buffer(part).address for part in parts]


def test_every_flipped_byte_is_seen() -> None:
    """One at a time, over the whole frame."""
    _, _, data = example(delayed=True)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x10
        with pytest.raises(Corrupt):
            decode_frame(bytes(broken))


def test_every_cut_is_seen() -> None:
    """A frame is whole or it is none."""
    _, _, data = example()
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            decode_frame(data[:end])


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_foreign_bytes_are_corrupt_and_nothing_else(data: bytes) -> None:
    """Also behind a true magic, with lengths of any size."""
    for start in (b"", b"SLC1"):
        with pytest.raises(Corrupt):
            decode_frame(start + data)


def test_lengths_are_checked_before_anything_is_read() -> None:
    """A header that says 4 GB costs nothing."""
    with pytest.raises(Corrupt, match="beyond the limits"):
        decode_frame(b"SLC1" + b"\xff" * 12 + b"\0" * (PREFIX_BYTES - 16))


def test_a_payload_that_is_trusted_is_not_summed_again() -> None:
    """verify=False reads a frame whose payload was damaged in memory; the head is checked all the same."""
    header, _, data = example()
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    assert decode_frame(damaged, verify=False).header == header


def test_empty_run_or_too_long_producer_name_is_refused() -> None:
    batch = make_batch(pa.record_batch({"payload": ["x"]}), now=1, producer="p")
    with pytest.raises(Invalid, match="1 to 65536"):
        make_run(batch.slice(0, 0))
    header, run, _ = example()
    with pytest.raises(Invalid, match="the limit is"):
        encode_head(replace(header, producer="p" * MAX_HEADER_BYTES), len(run.payload))


SEGMENTS = (("p", 4, 1), ("q", 7, 2))


def with_segments(segments: object = SEGMENTS, **more: object) -> bytes:
    """A frame whose header has these segments."""
    header, run, _ = example()
    changed = replace(header, producer="", first_sequence=0, segments=segments, **more)  # type: ignore[arg-type]
    return encode_head(changed, len(run.payload)) + bytes(run.payload)


def test_segments_travel_in_a_frame_of_their_own_kind() -> None:
    frame = decode_frame(with_segments())
    assert frame.header.segments == frame.header.parts == SEGMENTS
    assert with_segments()[:4] == b"SLC2"
    assert example()[0].parts == (("p", 41, 3),)


@pytest.mark.parametrize(
    "segments",
    [
        (("p", 4, 1), ("q", 7, 1)),
        (("p", 4, 3), ("q", 7, 0)),
        (("p", 4, 1), ("p", 5, 2)),
        (("p", 4, 1), ("", 7, 2)),
        (("p", 4, 1), (7, 7, 2)),
        (("p", 4, 1), ("q", "7", 2)),
        (("p", 4), ("q", 7, 2)),
        ("p", "q"),
        tuple((str(number), 0, 1) for number in range(MAX_SEGMENTS + 1)),
    ],
)
def test_segments_that_do_not_make_up_the_run_are_corrupt(segments: object) -> None:
    with pytest.raises(Corrupt):
        decode_head(with_segments(segments))


@pytest.mark.parametrize("more", [{"producer": "p"}, {"first_sequence": 1}, {"positions": b"any"}])
def test_segments_beside_a_producer_are_corrupt(more: dict[str, Any]) -> None:
    header, run, _ = example()
    changed = replace(header, **{"producer": "", "first_sequence": 0, "segments": SEGMENTS, **more})
    with pytest.raises(Corrupt):
        decode_head(encode_head(changed, len(run.payload)))


def test_magic_that_does_not_fit_the_segments_is_corrupt() -> None:
    for data, magic in ((with_segments(), b"SLC1"), (example()[2], b"SLC2")):
        head = bytearray(data)
        head[:4] = magic
        size = int.from_bytes(head[4:8], "little")
        checked = bytes(head[:16]) + bytes(head[PREFIX_BYTES : PREFIX_BYTES + size])
        head[16:20] = google_crc32c.value(checked).to_bytes(4, "little")
        with pytest.raises(Corrupt, match="magic"):
            decode_head(bytes(head))
