"""A large frame decoded piece by piece becomes the same rows as at once, and is refused alike."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.pulsar.codec import batch_decoder, send_decoder
from sluice.actors.pulsar.codec.batch_decoder import starts_of
from sluice.actors.pulsar.codec.compression import ZSTD
from sluice.actors.pulsar.codec.frames import Body
from sluice.actors.pulsar.codec.send_decoder import PIECE_MESSAGES, Send, decode_ahead, decode_sends
from tests.actors.pulsar.made import NOW, batch

COUNT = 2 * PIECE_MESSAGES + 100
NINE = [(b"%d" % number, b"v") for number in range(9)]


def plain(number: int) -> dict[str, Any]:
    """A message like all others."""
    return {"properties": NINE}


def of_two_sizes(number: int) -> dict[str, Any]:
    """A message of another size than the one before it."""
    return {"properties": NINE[number % 2 :], "partition_key": b"k%d" % (number % 7)}


def partly_odd(number: int) -> dict[str, Any]:
    """A message that columns do not explain, in the second piece."""
    return {"null_value": number == PIECE_MESSAGES + 5}


def without_sequence(number: int) -> dict[str, Any]:
    """A message that is numbered by its place in the batch."""
    return {"sequence_id": 0} if number % 2 else {}


def large(number: int) -> dict[str, Any]:
    """A message so large that a piece has few."""
    return {"payload": b"x" * 100_000} if number < 20 else {}


KINDS = [plain, of_two_sizes, partly_odd, without_sequence, large]


def packed(send: Send) -> Send:
    """The same, compressed."""
    metadata, size = send_decoder.read_metadata(send), len(send.body.payload)
    metadata.compression, metadata.uncompressed_size = ZSTD, size
    payload = pa.Codec("zstd").compress(bytes(send.body.payload), asbytes=True)
    return Send(send.command, Body(memoryview(metadata.SerializeToString()), memoryview(payload), damaged=False))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_large_frame_decoded_in_pieces_has_the_same_rows(
    kind: Callable[[int], dict[str, Any]], compressed: bool
) -> None:
    given = batch(*(kind(number) for number in range(COUNT)), deliver_at_time=NOW + 5)
    if compressed:
        given = packed(given)
    ahead, whole = (Send(given.command, given.body) for _ in range(2))
    assert sum(1 for _ in decode_ahead(ahead)) >= 3
    (group,) = decode_sends([ahead], now=NOW, producer="till")
    (wanted,) = decode_sends([whole], now=NOW, producer="till")
    assert (ahead.rows, ahead.error) == (whole.rows, None) == (COUNT, None)
    assert group.batch.rows == wanted.batch.rows
    assert group.batch.hashes.tolist() == wanted.batch.hashes.tolist()
    assert ahead.ahead is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [-1, -50_000, 3])
def test_malformed_large_frame_is_refused_in_pieces(kind: Callable[[int], dict[str, Any]], cut: int) -> None:
    given = batch(*(kind(number) for number in range(COUNT)))
    payload = bytes(given.body.payload)[:cut] if cut < 0 else bytes(given.body.payload) + bytes(cut)
    ahead, whole = (Send(given.command, Body(given.body.metadata, memoryview(payload), damaged=False)) for _ in "12")
    for _ in decode_ahead(ahead):
        pass
    assert decode_sends([ahead], now=NOW, producer="till") == decode_sends([whole], now=NOW, producer="till") == []
    assert ahead.error == whole.error
    assert ahead.error is not None


def test_messages_of_two_sizes_are_each_looked_at_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = bytes(batch(*(of_two_sizes(number) for number in range(COUNT))).body.payload)
    looked_at = 0

    def frombuffer(data: bytes, kind: Any, count: int, at: int) -> Any:
        nonlocal looked_at
        looked_at += count
        return np.frombuffer(data, kind, count, at)

    monkeypatch.setattr(batch_decoder, "np", SimpleNamespace(**{**vars(np), "frombuffer": frombuffer}))
    assert len(starts_of(payload, COUNT) or []) == COUNT
    assert looked_at <= 4 * len(payload)
