"""What each tier of the codec of Pulsar's protocol saves: processor time a message with it and without it.

    python benchmarks/codec.py [--messages N] [--rounds N]

The messages are those of benchmarks/java_clients.py: two producers, batches by key (10,000 keys by Zipf's law), 100
bytes. They are decoded as the gateway decodes what it has read, and encoded as a consumer's frames, each in several
ways. `without` says which tier is left out. Every way gives the same rows and the same frames, which is checked first.
Medians over the rounds of the processor time in microseconds a message, and the last line is JSON.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import google_crc32c
import numpy as np
import pyarrow as pa

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.pulsar.codec import delivery_encoder
from sluice.actors.pulsar.codec.delivery_encoder import encode_part
from sluice.actors.pulsar.codec.frame_cache import FrameCache
from sluice.actors.pulsar.codec.frames import Cut, Cutter, body_of
from sluice.actors.pulsar.codec.message_encoder import Addressee
from sluice.actors.pulsar.codec.protocol import Command, Metadata, Single, command, parse
from sluice.actors.pulsar.codec.send_decoder import Send, decode_sends, run_of
from sluice.actors.pulsar.codec.vectorized_decoder import read_sends
from sluice.cluster.base.arguments import ArgumentParser, count

KEYS, SIZE, TOGETHER = 10_000, 100, 1_000
"""Keys, bytes of a message, and how many messages a client's producer gathers before it sends their batches."""
READ = 2_000
"""Messages that the gateway reads at once."""
NEVER = 1 << 60
FIRST = 5 << 32
TO = Addressee(3, 1, None)
NOW = 1_795_310_341_430
U32 = struct.Struct(">I")


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=count, default=100_000)
    parser.add_argument("--rounds", type=count, default=7)
    given = parser.parse_args()
    reads = [frames_of(seed, READ) for seed in range(max(1, given.messages // READ))]
    result: dict[str, dict[str, float]] = {}
    for name, ways in (("decode", decoding(reads)), ("encode", encoding(reads))):
        result[name] = measured(ways, len(reads) * READ, given.rounds)
        for way, spent in result[name].items():
            print(f"{name:8} {way:44} {spent:7.2f} us a message")
    print(json.dumps(result))


def frames_of(seed: int, messages: int) -> list[bytes]:
    """SENDs of one producer in batches by key, as Java's client makes them."""
    chance = np.random.default_rng(seed)
    keys = np.minimum(chance.zipf(1.2, messages), KEYS)
    payload = chance.bytes(SIZE)
    frames: list[bytes] = []
    for begin in range(0, messages, TOGETHER):
        batches: dict[int, list[int]] = {}
        for place, key in enumerate(keys[begin : begin + TOGETHER].tolist()):
            batches.setdefault(key, []).append(begin + place)
        frames += [_batch(str(key).encode(), places, payload) for key, places in batches.items()]
    return frames


def _batch(key: bytes, places: list[int], payload: bytes) -> bytes:
    parts: list[bytes] = []
    for place in places:
        one = Single(payload_size=SIZE, partition_key=key, sequence_id=place).SerializeToString()
        parts += [U32.pack(len(one)), one, payload]
    told = Metadata(
        producer_name=b"till", sequence_id=places[0], publish_time=NOW, num_messages=len(places), partition_key=key
    ).SerializeToString()
    head = command("send", producer_id=1, sequence_id=places[0], num_messages=len(places)).SerializeToString()
    body = U32.pack(len(told)) + told + b"".join(parts)
    rest = b"\x0e\x01" + U32.pack(google_crc32c.value(body)) + body
    return b"".join((U32.pack(4 + len(head) + len(rest)), U32.pack(len(head)), head, rest))


def decoding(reads: list[list[bytes]]) -> dict[str, Callable[[], list[Any]]]:
    """Each way to make rows of what was read."""
    data = [b"".join(frames) for frames in reads]

    def together() -> list[Any]:
        return [_rows(cut) for cut in _cuts(data)]

    def a_frame_at_a_time() -> list[Any]:
        return [_decoded(cut) for cut in _cuts(data)]

    def a_message_at_a_time() -> list[Any]:
        with patch("sluice.actors.pulsar.codec.send_decoder.VECTORIZED_FROM", NEVER):
            return [_decoded(cut) for cut in _cuts(data)]

    return {
        "all tiers": together,
        "without vectorized_decoder": a_frame_at_a_time,
        "without any (protobuf, a message at a time)": a_message_at_a_time,
    }


def _cuts(data: list[bytes]) -> list[Cut]:
    return [Cutter().feed(one) for one in data]


def _rows(cut: Cut) -> pa.RecordBatch:
    (sends,) = (read_sends(cut, 0, len(cut)) or {}).values()
    assert sends is not None
    return run_of(sends.table, now=NOW, producer="till").rows


def _decoded(cut: Cut) -> pa.RecordBatch:
    sends = [Send(parse(Command, found.command).send, body_of(found.rest)) for found in cut]
    (group,) = decode_sends(sends, now=NOW, producer="till")
    return group.batch.rows


def encoding(reads: list[list[bytes]]) -> dict[str, Callable[[], list[Any]]]:
    """Each way to make a consumer's frames of the rows that it is given: all of a read, or every second key of it."""
    parts: list[tuple[Received, FrameCache]] = []
    for frames in reads:
        (sends,) = (read_sends(Cutter().feed(b"".join(frames)), 0, len(frames)) or {}).values()
        assert sends is not None
        assert sends.bodies is not None
        recent = FrameCache(lambda: 0, 1)
        recent.keep(FIRST, sends.rows, sends.bodies)
        parts.append((_part(run_of(sends.table, now=NOW, producer="till").rows), recent))

    def as_they_came() -> list[Any]:
        return [encode_part(part, TO, recent=recent).data for part, recent in parts]

    def from_columns() -> list[Any]:
        return [encode_part(part, TO).data for part, _ in parts]

    def one_by_one() -> list[Any]:
        with patch.object(delivery_encoder, "VECTORIZED_FROM", NEVER):
            return [encode_part(part, TO).data for part, _ in parts]

    return {
        "all tiers": as_they_came,
        "without frame_cache": from_columns,
        "without any (protobuf, a frame at a time)": one_by_one,
    }


def _part(rows: pa.RecordBatch) -> Received:
    """All rows, as one consumer is given them."""
    rows_in_all = rows.num_rows
    return Received(
        rows=rows,
        partition=0,
        positions=FIRST + np.arange(rows_in_all, dtype=np.int64),
        dispatch=np.zeros(rows_in_all, np.int64),
        redeliveries=np.zeros(rows_in_all, np.uint8),
        deliver_at=np.zeros(rows_in_all, np.int64),
        epoch=1,
        session=1,
    )


def measured(ways: dict[str, Callable[[], list[Any]]], messages: int, rounds: int) -> dict[str, float]:
    """Median processor time of each way, in microseconds a message. The ways take turns."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    first = next(iter(ways.values()))()
    for way in ways.values():
        assert all(len(one) == len(other) for one, other in zip(way(), first, strict=True)), "one result, whatever way"
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            way()
            spent[name].append((time.process_time() - began) * 1e6 / messages)
    return {name: round(float(np.median(times)), 3) for name, times in spent.items()}


if __name__ == "__main__":
    main()
