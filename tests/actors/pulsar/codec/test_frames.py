"""Frames: cut at every place, and every length that lies is refused."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.pulsar.codec.compression import LZ4, MAX_INFLATED, NONE, SNAPPY, ZLIB, ZSTD, inflate
from sluice.actors.pulsar.codec.frames import MAX_FRAME_BYTES, U32, Cutter, body_of, encode
from sluice.actors.pulsar.codec.protocol import Command, MalformedCommand, command, parse
from tests.actors.pulsar.made import frame

PING = encode(command("ping"))
SEND = frame(command("send", producer_id=1, sequence_id=2), b"metadata", b"payload")


@given(st.lists(st.sampled_from([PING, SEND]), max_size=6), st.data())
def test_frames_come_out_as_they_went_in(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    cutter = Cutter()
    got = [
        found
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for found in cutter.feed(stream[start:end])
    ]
    assert [bool(found.rest) for found in got] == [one == SEND for one in frames]
    for found, one in zip(got, frames, strict=True):
        assert parse(Command, found.command).type == (6 if one == SEND else 18)
        if one == SEND:
            body = body_of(found.rest)
            assert (bytes(body.metadata), bytes(body.payload), body.damaged) == (b"metadata", b"payload", False)


def test_a_large_frame_is_not_joined_at_every_read() -> None:
    stream = frame(command("send", producer_id=1, sequence_id=2), b"m", b"x" * 1_000_000)
    cutter = Cutter()
    found = [one for at in range(0, len(stream), 1000) for one in cutter.feed(stream[at : at + 1000])]
    assert len(found) == 1
    assert len(found[0].rest) > 1_000_000


@pytest.mark.parametrize("total", [0, 3, MAX_FRAME_BYTES + 1, 0xFFFFFFFF])
def test_a_frame_of_an_impossible_length(total: int) -> None:
    with pytest.raises(MalformedCommand, match=str(total)):
        Cutter().feed(U32.pack(total) + b"\0" * 8)


def test_a_command_that_reaches_behind_its_frame() -> None:
    with pytest.raises(MalformedCommand, match="a command of 9 bytes"):
        Cutter().feed(U32.pack(8) + U32.pack(9) + b"\0" * 4)[0]


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\x0e\x01",
        b"\x0e\x01\0\0\0\0",
        b"\x0e\x01\0\0\0\0\0\0\0\x05abc",
        b"\0\0\0\x05abc",
        b"\x0e\x02\0\0\0\x09abc",
    ],
)
def test_metadata_that_reach_behind_their_frame(rest: bytes) -> None:
    with pytest.raises(MalformedCommand):
        body_of(memoryview(rest))


def test_a_checksum_that_does_not_fit_is_seen_and_may_be_missing() -> None:
    rest = bytearray(Cutter().feed(SEND)[0].rest)
    rest[-1] ^= 1
    assert body_of(memoryview(bytes(rest))).damaged
    assert not body_of(memoryview(bytes(rest[6:]))).damaged


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    try:
        for found in Cutter().feed(data):
            parse(Command, found.command)
            body_of(found.rest)
    except MalformedCommand:
        pass


CODECS = {LZ4: "lz4_raw", ZSTD: "zstd", SNAPPY: "snappy"}


@pytest.mark.parametrize("codec", [NONE, LZ4, ZSTD, SNAPPY, ZLIB])
@given(st.binary(min_size=1, max_size=300), st.integers(-5, 5))
def test_a_size_that_lies_is_refused(codec: int, data: bytes, off: int) -> None:
    packed = memoryview(packed_by(codec, data))
    assert bytes(inflate(codec, packed, len(data))) == data
    if off and codec != NONE and len(data) + off >= 0:
        with pytest.raises(MalformedCommand):
            inflate(codec, packed, len(data) + off)


@pytest.mark.parametrize("codec", [LZ4, ZSTD, SNAPPY, ZLIB])
@given(st.binary(max_size=100), st.integers(0, 1000))
def test_any_bytes_inflate_or_are_refused(codec: int, data: bytes, size: int) -> None:
    with contextlib.suppress(MalformedCommand):
        assert len(inflate(codec, memoryview(data), size)) == size


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    packed = memoryview(packed_by(ZSTD, b"\0" * 50_000_000))
    with pytest.raises(MalformedCommand, match="the limit"):
        inflate(ZSTD, packed, 50_000_000)
    for size in (1000, MAX_INFLATED):
        with pytest.raises(MalformedCommand):
            inflate(ZSTD, packed, size)


def packed_by(codec: int, data: bytes) -> bytes:
    """As clients compress."""
    if codec == NONE:
        return data
    if codec == ZLIB:
        import zlib

        return zlib.compress(data)
    return bytes(pa.Codec(CODECS[codec]).compress(data))
