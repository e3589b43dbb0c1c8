"""Frames that go out as they came in say what those say that are made of the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sluice.actors.consumer.unacked_messages import LazyBatch, Received
from sluice.actors.messages.limits import KEPT_MS
from sluice.actors.pulsar.codec.delivery_encoder import encode_part
from sluice.actors.pulsar.codec.frame_cache import CachedBodies, FrameCache
from sluice.actors.pulsar.codec.message_encoder import Addressee
from sluice.actors.pulsar.codec.protocol import Single, command
from sluice.actors.pulsar.codec.send_decoder import run_of
from sluice.actors.pulsar.codec.vectorized_decoder import Sends, read_sends
from tests.actors.pulsar.codec.test_message_encoder import told
from tests.actors.pulsar.codec.test_vectorized_decoder import cut_of, plain, sent_frames, text
from tests.actors.pulsar.made import NOW, U32, batch, frame, part, taken

TO = Addressee(3, 1, None)
FIRST = 5 << 32
_OF_PART = ("partition", "positions", "dispatch", "redeliveries", "deliver_at", "epoch", "session")


def stored(frames: list[bytes]) -> Sends:
    """The frames of one producer, decoded."""
    read = read_sends(cut_of(frames), 0, len(frames))
    assert read is not None
    (sends,) = read.values()
    assert sends is not None
    return sends


def said(data: bytes) -> list[Any]:
    """Return what a consumer sees of each frame: its command, and each message's key, properties, number, payload."""
    seen: list[Any] = []
    for asked, metadata, payload in told(data):
        if not metadata.HasField("num_messages"):
            pairs = [(pair.key, pair.value) for pair in metadata.properties]
            seen.append((asked, metadata.sequence_id, metadata.partition_key, pairs, payload))
            continue
        at, messages = 0, []
        for _ in range(metadata.num_messages):
            size = U32.unpack_from(payload, at)[0]
            one = Single.FromString(payload[at + 4 : at + 4 + size])
            at += 4 + size
            pairs = [(pair.key, pair.value) for pair in one.properties]
            messages.append((one.partition_key, pairs, one.sequence_id, payload[at : at + one.payload_size]))
            at += one.payload_size
        assert at == len(payload)
        seen.append((asked, metadata.num_messages, messages))
    return seen


def bodies(*given: bytes) -> CachedBodies:
    """As they are kept, what follows them being something else."""
    column = pa.array([one for body in given for one in (body, b"?")], pa.binary())
    return CachedBodies(column, np.arange(0, 2 * len(given), 2))


def given_of(sends: Sends) -> Received:
    return part(run_of(sends.table, now=NOW, producer="till"), first=FIRST)


with_text_keys = st.builds(lambda message, key: {**message, "partition_key": key}, plain, text)
"""Messages whose frames may go out as they came: a key that is no text would have to be encoded anew."""


@settings(max_examples=40, deadline=None)
@given(st.lists(sent_frames(with_text_keys, st.just({})), min_size=1, max_size=40), st.data())
def test_cached_frames_equal_encoded_ones(frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    """Rows are chosen at random, with some frames cached and others not, in two stretches; done pieces are left out."""
    mine = [one for number, one in frames if number == frames[0][0]]
    sends = stored(mine)
    whole = given_of(sends)
    rows = sorted(data.draw(st.sets(st.sampled_from(range(len(whole))), min_size=1)))
    some = taken(whole, rows) if data.draw(st.booleans()) else whole
    done = data.draw(st.sets(st.sampled_from(range(len(some)))))
    some.close(np.array(sorted(done), np.int64))
    came = sends.bodies
    assume(came is not None)
    assert came is not None
    recent, half = FrameCache(lambda: 0, 1), data.draw(st.integers(0, len(mine)))
    begins = np.cumsum(sends.rows) - sends.rows
    if half:
        recent.keep(FIRST, sends.rows[:half], came._replace(offsets=came.offsets[:half]))
    if half < len(mine) and data.draw(st.booleans()):
        rest = came._replace(offsets=came.offsets[half:])
        recent.keep(FIRST + int(begins[half]), sends.rows[half:], rest)
    repeated, made = encode_part(some, TO, recent=recent, vectorized_from=1), encode_part(some, TO)
    assert said(repeated.data) == said(made.data)
    for one, other in zip(
        (repeated.firsts, repeated.counts, repeated.positions), (made.firsts, made.counts, made.positions), strict=True
    ):
        assert one.tolist() == other.tolist()


def test_bytes_are_those_that_came() -> None:
    asked = command("send", producer_id=1, sequence_id=0)
    body = batch({"payload": b"a"}, {"payload": b"b"}, uncompressed_size=7).body
    mine = [frame(asked, bytes(body.metadata), bytes(body.payload))] * 40
    sends, recent = stored(mine), FrameCache(lambda: 0, 1)
    assert sends.bodies is not None
    recent.keep(FIRST, sends.rows, sends.bodies)
    frames = told(encode_part(given_of(sends), TO, recent=recent).data)
    assert [metadata.uncompressed_size for _, metadata, _ in frames] == [7] * 40


@pytest.mark.parametrize("sizes", [[5] * 9, [5] * 6 + [6] * 3, [5, 7, 5, 5, 6, 5, 5, 5, 5]])
@pytest.mark.parametrize("number", [0, 124])
def test_the_cut_parts_of_a_batch_are_those_that_are_made(sizes: list[int], number: int) -> None:
    """At both ends of what a consumer is given, whole frames between them; the messages of one size, or of several."""
    asked, frames = command("send", producer_id=1, sequence_id=0), []
    for key in (b"a", b"b", b"c"):
        messages = [
            {"payload": bytes(size), "partition_key": key, "sequence_id": number + place}
            for place, size in enumerate(sizes)
        ]
        body = batch(*messages, partition_key=key, sequence_id=number).body
        frames.append(frame(asked, bytes(body.metadata), bytes(body.payload)))
    sends, recent = stored(frames), FrameCache(lambda: 0, 1)
    assert sends.bodies is not None
    recent.keep(FIRST, sends.rows, sends.bodies)
    whole = given_of(sends)
    for first, end in ((4, 22), (0, 25), (1, 3), (8, 27), (5, 9)):
        some = taken(whole, list(range(first, end)))
        unread = LazyBatch(
            [(whole.rows, np.arange(first, first + 2)), (whole.rows.slice(first + 2, end - first - 2), None)],
            **{name: getattr(some, name) for name in _OF_PART},
        )
        made = encode_part(some, TO)
        for one in (some, unread):
            repeated = encode_part(one, TO, recent=recent, vectorized_from=1)
            assert said(repeated.data) == said(made.data)
            heads = [metadata.SerializeToString() for _, metadata, _ in told(made.data)]
            assert [metadata.SerializeToString() for _, metadata, _ in told(repeated.data)] == heads
            assert repeated.firsts.tolist() == made.firsts.tolist()


def test_messages_of_one_size_are_found_inside_a_batch() -> None:
    asked = command("send", producer_id=1, sequence_id=0)
    even = batch(*({"payload": bytes([place] * 3)} for place in range(5))).body
    other = batch(*({"payload": bytes(3 * place)} for place in range(5))).body
    sends = stored([frame(asked, bytes(body.metadata), bytes(body.payload)) for body in (even, other)])
    recent = FrameCache(lambda: 0, 1)
    assert sends.bodies is not None
    recent.keep(FIRST, sends.rows, sends.bodies)
    each = len(even.payload) // 5
    for first, count in ((0, 2), (1, 4), (4, 1)):
        found = recent.inside(FIRST + first, count)
        assert found is not None
        assert found == even.payload[first * each : (first + count) * each]
    assert recent.inside(FIRST, 5) is None  # a whole frame is no part
    assert recent.inside(FIRST + 3, 3) is None  # nor is what goes over into the next one
    assert recent.inside(FIRST + 6, 2) is None
    assert recent.inside(FIRST - 1, 1) is None
    assert recent.inside(FIRST + 10, 1) is None


def test_delayed_frame_is_not_cached() -> None:
    asked = command("send", producer_id=1, sequence_id=0)
    body = batch({"payload": b"a"}, deliver_at_time=NOW).body
    assert stored([frame(asked, bytes(body.metadata), bytes(body.payload))]).bodies is None


def test_the_oldest_go_first() -> None:
    recent = FrameCache(lambda: 0, 1, most=250)
    for number in range(3):
        recent.keep(FIRST + 10 * number, np.array([2]), bodies(b"x" * 96))
    found = recent.whole(FIRST + np.array([0, 1, 10, 11, 20, 21]))
    assert (found.starts.tolist(), found.counts.tolist(), len(found.bodies)) == ([2, 4], [2, 2], 2)


def test_frames_read_at_once_count_once() -> None:
    """And as long as some of it is kept."""
    recent, several = FrameCache(lambda: 0, 1, most=250), bodies(b"x" * 96, b"y" * 96)
    for number in range(2):
        recent.keep(FIRST + 10 * number, np.array([1]), several._replace(offsets=several.offsets[number : number + 1]))
    kept = FIRST + np.array([0, 10, 20])
    assert recent.whole(kept).starts.tolist() == [0, 1]
    recent.keep(FIRST + 20, np.array([1]), bodies(b"z" * 96))
    assert recent.whole(kept).starts.tolist() == [2]


def test_a_part_of_a_frame_is_not_the_frame() -> None:
    recent = FrameCache(lambda: 0, 1)
    recent.keep(FIRST, np.array([2, 3]), bodies(b"a", b"b"))

    def whole(*rows: int) -> list[tuple[int, bytes]]:
        found = recent.whole(FIRST + np.array(rows, np.int64))
        return list(zip(found.starts.tolist(), found.bodies.to_pylist(), strict=True))

    assert whole(0, 1, 2, 3, 4) == [(0, b"a"), (2, b"b")]
    assert whole(0, 1, 2, 3, 9) == [(0, b"a")]
    assert whole(0, 2, 3, 4, 5) == [(1, b"b")]
    assert whole(1, 2, 4) == []
    assert whole(3, 2, 1, 0) == []
    assert whole() == []
    positions = FIRST + np.array([0, 2])
    assert recent.find(positions, np.array([2, 2]))[0].tolist() == [True, False]
    assert recent.find(positions + 1, np.array([1, 3]))[0].tolist() == [False, False]
    assert recent.find(positions[::-1], np.array([3, 2]))[0].tolist() == [False, False]


def test_frames_are_not_sent_when_messages_may_be_erased() -> None:
    now = 5
    recent = FrameCache(lambda: now, KEPT_MS)
    recent.keep(FIRST, np.array([2]), bodies(b"x" * 96))
    now += KEPT_MS - 1
    recent.keep(FIRST + 10, np.array([2]), bodies(b"y" * 96))
    both, counts = FIRST + np.array([0, 10]), np.array([2, 2])
    assert recent.find(both, counts)[0].tolist() == [True, True]
    now += 1
    assert recent.find(both, counts)[0].tolist() == [False, True]
    assert recent.whole(FIRST + np.array([0, 1])).starts.tolist() == []
    now += KEPT_MS
    assert recent.inside(FIRST + 10, 1) is None
