"""Frames: what is written is read, however the bytes arrive; whatever else arrives is refused and costs nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cluster.wire import frames
from sluice.cluster.wire.frames import (
    HEADER,
    MAGIC,
    REPLY,
    REQUEST,
    VERSION,
    FrameReader,
    MalformedFrame,
    OtherVersion,
    WireFrame,
)


def written(frame: WireFrame) -> bytes:
    """A frame as it travels."""
    return b"".join(frames.encode(frame.kind, frame.correlation, frame.route, frame.head, frame.parts))


def read(data: bytes, cuts: list[int], limit: int = frames.MAX_FRAME) -> list[WireFrame]:
    """Return the frames of bytes that arrive in pieces. cuts: the most bytes of each piece."""
    reader = FrameReader(limit)
    found: list[WireFrame] = []
    left = memoryview(data)
    at = 0
    while left:
        room = reader.buffer()
        assert len(room) > 0
        count = min(len(left), len(room), cuts[at] if at < len(cuts) else 50_000)
        at += 1
        room[:count] = left[:count]
        left = left[count:]
        found += reader.advance(count)
    return found


def told(frame: WireFrame) -> tuple[int, int, bytes, bytes, list[bytes]]:
    """Return the content of a frame."""
    return frame.kind, frame.correlation, frame.route, frame.head, [bytes(part) for part in frame.parts]


sizes = st.sampled_from([0, 1, 7, 8, 9, 100, 2049, 20_000, 70_000, 200_000])
any_frame = st.builds(
    WireFrame,
    kind=st.sampled_from([REQUEST, REPLY]),
    correlation=st.integers(0, 2**64 - 1),
    route=st.binary(max_size=40),
    head=sizes.map(lambda size: b"h" * size),
    parts=st.lists(sizes.map(lambda size: memoryview(np.random.default_rng(size).bytes(size))), max_size=4),
)


@settings(deadline=None)
@given(st.lists(any_frame, min_size=1, max_size=5), st.lists(st.integers(1, 100_000), max_size=60))
def test_frames_are_read_however_their_bytes_arrive(sent: list[WireFrame], cuts: list[int]) -> None:
    got = read(b"".join(map(written, sent)), cuts)
    assert list(map(told, got)) == list(map(told, sent))
    for frame in got:
        for part in frame.parts:
            assert part.readonly
            address = np.frombuffer(part, np.uint8).__array_interface__["data"][0] if len(part) else 0
            assert address % 8 == 0


@settings(deadline=None)
@given(any_frame, st.data())
def test_a_damaged_frame_is_refused_or_is_another_frame(frame: WireFrame, data: st.DataObject) -> None:
    """Nothing but MalformedFrame is ever raised, and no attachment reaches beyond its frame."""
    damaged = bytearray(written(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(len(damaged), 200) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = read(bytes(damaged), [1 << 20], limit=1 << 20)
    except MalformedFrame:
        return
    for other in got:
        assert sum(map(len, other.parts)) + len(other.head) + len(other.route) <= other.size


@given(st.binary(max_size=300))
def test_noise_is_refused_or_waited_for(noise: bytes) -> None:
    if not noise:
        return
    try:
        assert read(noise, [64]) == []
    except MalformedFrame:
        assert len(noise) >= HEADER.size


def test_a_frame_above_the_limit_is_refused_before_allocation() -> None:
    huge = HEADER.pack(MAGIC, VERSION, REQUEST, 0, 1, 0, 0, 0, 1 << 60)
    with pytest.raises(MalformedFrame, match="more than the 4096"):
        read(huge, [100], limit=4096)
    assert len(read(written(WireFrame(REQUEST, 1, b"", b"x" * 4000, [])), [100], limit=4096)) == 1
    with pytest.raises(MalformedFrame, match="more than"):
        read(written(WireFrame(REQUEST, 1, b"", b"x" * 4096, [])), [100], limit=4096)


def test_another_version_is_named() -> None:
    other = HEADER.pack(MAGIC, VERSION + 1, REQUEST, 0, 1, 0, 0, 0, 0)
    with pytest.raises(OtherVersion, match=f"speaks version {VERSION + 1} of the wire protocol, this one {VERSION}"):
        read(other, [100])


def test_lengths_that_contradict_each_other_are_refused() -> None:
    for route, head, parts, descriptors, body in (
        (9, 0, 0, 0, 8), (0, 9, 0, 0, 8), (0, 0, 2, 0, 8), (0, 0, 0, 0, 8), (0, 0, 0, 1, 0), (0, 0, 0, 65, 0),
    ):  # fmt: skip
        wrong = HEADER.pack(MAGIC, VERSION, REQUEST, route, 1, head, parts, descriptors, body) + bytes(body)
        with pytest.raises(MalformedFrame):
            read(wrong, [100])
    beyond = HEADER.pack(MAGIC, VERSION, REQUEST, 0, 1, 0, 1, 0, 16) + (9).to_bytes(8, "little") + bytes(8)
    with pytest.raises(MalformedFrame, match="beyond the end"):
        read(beyond, [100])
