"""Checksums of parts of a verified payload are those that a pass over the bytes gives."""

from __future__ import annotations

import random

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.storage.format.batch import make_batch, schema_of
from sluice.storage.format.checked_payload import (
    CHECKED_FROM,
    MARK_BYTES,
    NO_SUMS,
    SUMMED_FROM,
    CheckedPayload,
    behind_another,
    checked,
    holder,
    moved,
)
from sluice.storage.format.frame import Header, decode_frame, encode_head, make_run

DATA = random.Random(1).randbytes(3 * MARK_BYTES + 100)
CRC = google_crc32c.value(DATA)


def verified(data: bytes = DATA) -> CheckedPayload:
    found = CheckedPayload.verified(memoryview(data), google_crc32c.value(data))
    assert found is not None
    return found


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_checksum_of_two_pieces_is_that_of_the_whole(one: bytes, other: bytes) -> None:
    assert moved(google_crc32c.value(one), len(other)) ^ google_crc32c.value(other) == google_crc32c.value(one + other)


@pytest.mark.parametrize("power", range(24))
def test_checksum_is_moved_by_each_power_of_two(power: int) -> None:
    zeros = bytes(1 << power)
    whole = google_crc32c.value(b"abc" + zeros)
    assert moved(google_crc32c.value(b"abc"), len(zeros)) ^ google_crc32c.value(zeros) == whole


@given(st.integers(0, len(DATA)))
def test_any_beginning_has_the_checksum_of_its_bytes(offset: int) -> None:
    assert verified().before(offset) == google_crc32c.value(DATA[:offset])


@pytest.mark.parametrize("offset", [0, MARK_BYTES - 1, MARK_BYTES, 3 * MARK_BYTES, len(DATA)])
def test_beginning_at_a_mark_has_the_checksum_of_its_bytes(offset: int) -> None:
    assert verified().before(offset) == google_crc32c.value(DATA[:offset])
    assert verified(DATA[: 2 * MARK_BYTES]).before(2 * MARK_BYTES) == google_crc32c.value(DATA[: 2 * MARK_BYTES])


@pytest.mark.parametrize("size", [CHECKED_FROM - 1, CHECKED_FROM, len(DATA)])
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["first", "middle", "last"])
def test_payload_with_a_flipped_byte_is_refused(size: int, part: float) -> None:
    crc, data = google_crc32c.value(DATA[:size]), bytearray(DATA[:size])
    data[int((size - 1) * part)] ^= 1
    assert checked(memoryview(bytes(data)), crc) is None
    whole = checked(memoryview(DATA[:size]), crc)
    assert whole is not None
    assert bytes(whole) == DATA[:size]


def test_whole_view_alone_leads_back_to_the_verification() -> None:
    view = checked(memoryview(DATA), CRC)
    assert view is not None
    found = CheckedPayload.shown_by(view)
    assert found is not None
    assert CheckedPayload.shown_by(memoryview(view).cast("B").toreadonly()) is found
    assert CheckedPayload.verified(view, CRC) is found
    assert CheckedPayload.verified(view, CRC ^ 1) is None
    assert CheckedPayload.shown_by(view[1:]) is None
    assert CheckedPayload.shown_by(memoryview(bytes(view))) is None
    assert view.readonly
    assert holder(view) is DATA
    assert holder(memoryview(DATA)) is DATA


@pytest.mark.parametrize("delayed", [False, True])
def test_sums_of_rows_give_the_checksums_of_their_payloads(delayed: bool) -> None:
    payloads = [DATA[:size] for size in (SUMMED_FROM, 0, 2 * SUMMED_FROM + 1, SUMMED_FROM + 7, SUMMED_FROM)]
    columns = {"payload": payloads} | ({"deliver_at": [77] * 5} if delayed else {})
    run = make_run(make_batch(pa.record_batch(columns), now=9, producer="p"))
    head = encode_head(Header(1, 0, 0, 5, 1, -1, "p", 0, run.delayed, run.shape, run.crc), len(run.payload))
    frame = decode_frame(head + run.payload)
    found = CheckedPayload.shown_by(frame.payload)
    assert found is not None
    rows = pa.ipc.read_record_batch(pa.py_buffer(frame.body), schema_of(run.shape))
    for chosen in ([0, 1, 2, 3, 4], [4], [0, 3]):
        sums = found.sums(rows.column("payload"), np.array(chosen))
        assert sums.shape == (len(chosen), 2)
        for (before, end), row in zip(sums.tolist(), chosen, strict=True):
            whole = google_crc32c.value(b"metadata" + payloads[row])
            assert behind_another(google_crc32c.value(b"metadata"), before, end, len(payloads[row])) == whole
    part = rows.slice(2, 2).column("payload")
    assert found.sums(part, np.array([1])).tolist() == found.sums(rows.column("payload"), np.array([3])).tolist()


def test_values_that_are_small_or_elsewhere_have_no_sums() -> None:
    column = pa.array([DATA[:SUMMED_FROM], DATA[: SUMMED_FROM + 3]], pa.binary())
    assert verified().sums(column, np.arange(2)) is NO_SUMS
    bounds = np.array([0, SUMMED_FROM - 1], np.int32)
    data = memoryview(DATA)[: SUMMED_FROM - 1]  # it does lie in the payload
    small = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    assert verified().sums(small, np.arange(1)) is NO_SUMS
