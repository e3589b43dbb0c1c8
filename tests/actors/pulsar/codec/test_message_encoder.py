"""MESSAGE frames that are encoded together equal those encoded one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec import delivery_encoder
from sluice.actors.pulsar.codec.delivery_encoder import encode_part, first_rows
from sluice.actors.pulsar.codec.frame_cache import FrameCache
from sluice.actors.pulsar.codec.frames import Cutter, body_of
from sluice.actors.pulsar.codec.message_encoder import Addressee, encode_fronts, encode_pieces
from sluice.actors.pulsar.codec.protocol import Command, Metadata, parse
from sluice.actors.pulsar.codec.send_decoder import decode_sends
from sluice.storage.format.batch import LAST_TIME, decode_body, make_batch
from sluice.storage.format.checked_payload import CheckedPayload
from sluice.storage.format.frame import make_run
from tests.actors.pulsar.made import NOW, batch, part, single, taken

text = st.sampled_from([b"", b"k", "ä".encode(), b"key-" * 40])
plain = {"payload": st.binary(max_size=200), "partition_key": text, "event_time": st.integers(0, LAST_TIME)}
rich = {
    **plain,
    "ordering_key": st.binary(max_size=9),
    "null_value": st.just(True),
    "properties": st.just([(b"a", b"b")]),
}
common = {
    "deliver_at_time": st.integers(0, LAST_TIME),
    "schema_version": st.just(b"\0" * 8),
    "producer_name": st.sampled_from([b"till", b"other"]),
}
who = st.builds(Addressee, st.integers(0, 1 << 40), st.integers(-1, 500), st.one_of(st.none(), st.integers(0, 9)))


@st.composite
def parts(draw: st.DrawFn, fields: Any) -> Received:
    """Draw what a consumer is given of a few clients' batches and single messages: pieces, partly seen before."""
    message = st.fixed_dictionaries(
        {"payload": fields["payload"]}, optional={name: value for name, value in fields.items() if name != "payload"}
    )
    more: dict[str, Any]
    sends = []
    for several in draw(st.lists(st.lists(message, min_size=1, max_size=4), min_size=1, max_size=6)):
        more = draw(st.fixed_dictionaries({}, optional=common))
        alone = len(several) == 1 and draw(st.booleans())
        sends.append(single(**several[0], **more) if alone else batch(*several, **more))
    (group,) = decode_sends(sends, now=NOW, producer="till")
    whole = part(group.batch, first=draw(st.integers(1 << 32, 1 << 62)))
    rows = draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=len(whole), unique=True))
    some = taken(whole, sorted(rows))
    some.redeliveries[:] = draw(st.lists(st.integers(0, 2), min_size=len(some), max_size=len(some)))
    return some


def told(data: bytes) -> list[tuple[Any, Any, bytes]]:
    """Command, metadata and payload of each frame."""
    found = []
    for frame in Cutter().feed(data):
        body = body_of(frame.rest)
        assert not body.damaged
        found.append((parse(Command, frame.command), parse(Metadata, body.metadata), bytes(body.payload)))
    return found


def one_by_one(some: Received, to: Addressee) -> bytes:
    before, delivery_encoder.VECTORIZED_FROM = delivery_encoder.VECTORIZED_FROM, 1 << 30
    try:
        return encode_part(some, to).data
    finally:
        delivery_encoder.VECTORIZED_FROM = before


@given(parts(plain), who)
def test_plain_messages_are_encoded_vectorized_as_one_by_one(some: Received, to: Addressee) -> None:
    frames = encode_pieces(some, first_rows(some), to)
    assert frames is not None
    assert told(b"".join(frames.to_pylist())) == told(one_by_one(some, to))


@given(parts(rich), who)
def test_any_messages_are_encoded_alike_or_one_by_one(some: Received, to: Addressee) -> None:
    frames = encode_pieces(some, first_rows(some), to)
    if frames is not None:
        assert told(b"".join(frames.to_pylist())) == told(one_by_one(some, to))


def test_native_messages_are_encoded_vectorized() -> None:
    data = pa.record_batch({"key": [b"k", None], "payload": [b"a", b""]})
    some = part(make_batch(data, now=NOW, producer="p"))
    frames = encode_pieces(some, first_rows(some), Addressee(1, 2, None))
    assert frames is not None
    assert told(b"".join(frames.to_pylist())) == told(one_by_one(some, Addressee(1, 2, None)))


def test_pieces_that_are_done_are_left_out() -> None:
    sends = [single(b"%d" % number, sequence_id=number) for number in range(40)]
    (group,) = decode_sends(sends, now=NOW, producer="till")
    some = part(group.batch)
    some.close(np.arange(0, 40, 2))
    pieces = encode_part(some, Addressee(1, -1, None))
    assert [payload for _, _, payload in told(pieces.data)] == [b"%d" % number for number in range(1, 40, 2)]
    assert pieces.firsts.tolist() == list(range(1, 40, 2))
    assert pieces.positions.tolist() == [(1 << 32) + number for number in range(1, 40, 2)]


@pytest.mark.parametrize("least", [1, 1 << 30], ids=["vectorized", "alone"])
def test_open_messages_of_a_batch_are_sent(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_encoder, "VECTORIZED_FROM", least)
    (group,) = decode_sends([batch(*({} for _ in range(5)))], now=NOW, producer="till")
    some = part(group.batch)
    some.close(np.array([0, 3]))
    pieces = encode_part(some, Addressee(1, -1, None))
    assert (pieces.firsts.tolist(), pieces.counts.tolist()) == ([1, 4], [2, 1])
    assert [metadata.num_messages for _, metadata, _ in told(pieces.data)] == [2, 1]
    assert [one.message.message_id.entry for one, _, _ in told(pieces.data)] == [1, 4]


@pytest.mark.parametrize(
    ("done", "sent"),
    [
        ([0, 1], [([2, 3, 4], 0)]),
        ([3, 4], [([0, 1, 2], 0)]),
        ([1, 2], [([0], 0), ([3, 4], 3)]),
        ([0, 2], [([1], 0), ([3, 4], 3)]),
    ],
)
def test_batch_that_is_done_in_part_goes_with_holes(done: list[int], sent: list[tuple[list[int], int]]) -> None:
    (group,) = decode_sends([batch(*({"payload": b"%d" % number} for number in range(5)))], now=NOW, producer="till")
    some = part(group.batch)
    some.close(np.array(done))
    pieces = encode_part(some, Addressee(1, -1, None), known=())
    rows = [[*range(first, first + count)] for first, count in zip(pieces.firsts, pieces.counts, strict=True)]
    assert [*zip(rows, (pieces.positions - (1 << 32)).tolist(), strict=True)] == sent


def test_large_payloads_are_parts_of_their_own_without_a_copy() -> None:
    large, small = bytes(2 * delivery_encoder.LARGE_BYTES), b"small"
    wanted = [large, small, large] * 20
    (group,) = decode_sends([single(payload) for payload in wanted], now=NOW, producer="till")
    some = part(group.batch)
    pieces = encode_part(some, Addressee(1, -1, None))
    assert [payload for _, _, payload in told(pieces.data)] == wanted
    column = some.rows.column("payload").buffers()[2]
    apart = [one for one in pieces.parts if isinstance(one, memoryview)]
    assert len(apart) == 40
    addresses = [np.frombuffer(one, np.uint8).ctypes.data for one in apart]
    assert all(column.address <= one < column.address + column.size for one in addresses)
    assert pieces.size == len(pieces.data)


LARGE = [bytes([number]) * (delivery_encoder.LARGE_BYTES + number) for number in range(40)]


def stored(payloads: list[bytes]) -> tuple[Received, CheckedPayload]:
    """Single messages as they come from a disk: their payload was verified there."""
    (group,) = decode_sends([single(each, sequence_id=1) for each in payloads], now=NOW, producer="till")
    run = make_run(group.batch)
    found = CheckedPayload.verified(run.payload, run.crc)
    assert found is not None
    some = part(group.batch)
    some.rows = decode_body(found.view()[4 * run.count :], run.shape, run.count)
    return some, found


@pytest.mark.parametrize("count", [3, 40], ids=["alone", "vectorized"])
def test_known_sums_change_no_byte_of_a_frame(count: int) -> None:
    some, found = stored([*LARGE[: count - 1], b"small"])
    plain = encode_part(some, Addressee(1, -1, None)).data
    some.sums = found.sums(some.column("payload"), np.arange(count))
    assert encode_part(some, Addressee(1, -1, None)).data == plain
    assert [payload for _, _, payload in told(plain)] == [*LARGE[: count - 1], b"small"]


@pytest.mark.parametrize("count", [3, 40], ids=["alone", "vectorized"])
def test_damage_behind_the_verification_is_seen_by_a_client(count: int) -> None:
    """The checksum of a frame is that of the stored bytes, whatever has happened to them in memory."""
    some, found = stored(LARGE[:count])
    some.sums = found.sums(some.column("payload"), np.arange(count))
    some.rows = some.rows.set_column(
        some.rows.schema.get_field_index("payload"), "payload", pa.array([*LARGE[: count - 1], bytes(20_000)])
    )
    frames = Cutter().feed(encode_part(some, Addressee(1, -1, None)).data)
    assert [body_of(frame.rest).damaged for frame in frames] == [*[False] * (count - 1), True]


@given(parts(plain), who)
def test_fronts_and_payloads_are_the_frames_of_single_rows(some: Received, to: Addressee) -> None:
    frames = encode_fronts(some, to)
    if frames is not None:
        assert told(b"".join(map(b"".join, frames))) == told(one_by_one(some, to))
    else:
        assert "batch_index" in some.schema.names
        assert some.column("batch_index").null_count < len(some)


def test_large_payloads_that_came_lately_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        raise AssertionError("the cache was asked")

    some, _ = stored(LARGE)
    recent = FrameCache(lambda: 0, 1_000)
    for name in ("find", "whole"):
        monkeypatch.setattr(recent, name, ask)
    frames = encode_part(some, Addressee(1, -1, None), None, recent)
    assert [payload for _, _, payload in told(frames.data)] == LARGE
