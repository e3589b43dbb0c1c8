"""Decodes the SEND frames of a read in a plain loop: for a few dozen frames that is cheaper than columns.

The loop takes messages that travel alone, unencrypted and not compressed. If one frame of a producer is otherwise,
actors.pulsar.codec.send_decoder decodes all of its frames of that read, so that their order stays. Either way gives the
same rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import google_crc32c
import numpy as np

from sluice.actors.pulsar.codec.compression import NONE
from sluice.actors.pulsar.codec.frames import CHECKSUMMED, U32, Cut
from sluice.actors.pulsar.codec.metadata_checks import check_metadata
from sluice.actors.pulsar.codec.protocol import Command, MalformedCommand, Metadata, parse, tags
from sluice.actors.pulsar.codec.send_decoder import (
    IN_COLUMNS,
    KEY,
    OF_ONE,
    ORDERING_KEY,
    SEQUENCE_ID,
    Row,
    left_of,
    row_of,
    stored,
)
from sluice.actors.pulsar.codec.varints import number_of
from sluice.actors.pulsar.codec.vectorized_decoder import SEND_COMMAND, Sends, read_sends
from sluice.storage.format.batch import LAST_TIME, MAX_MESSAGE_BYTES, StoredBatch

VECTORIZED_FROM = 180
"""From so many messages of one read on columns are cheaper than the loop: measured with messages of 100 bytes of one
producer (185) and of eight (195).
"""
_BATCHES_FROM = 16
"""From so many frames on columns are cheaper for batches; fewer batches are decoded one by one."""
_SEND = SEND_COMMAND[1]
_OFTEN = ("sequence_id", "publish_time", "partition_key")
"""The fields with columns that nearly every message has. Others that stay make the rest a rarer one, and no other."""
_SHORT = 256
"""The loop leaves longer rests of metadata to others."""
_VARINT = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
_PLAIN = re.compile(
    rb"\x08\x06\x32(.)\x08" + _VARINT + rb"\x10" + _VARINT + rb"(?:\x18\x01)?"
    rb"\x0e\x01(....)(....)\x0a(.)([ -~]*)\x10" + _VARINT + rb"\x18" + _VARINT,
    re.DOTALL,
)
"""How a SEND begins of which nothing but its numbers, its key and its payload differs from that before it: its command,
the checksum, and of its metadata name, sequence id and time. Numbers of 63 bits at most.
"""
_KEY_TAG = tags("Metadata", "partition_key")[0]
_LAST = (1 << 63) - 1
"""The columns of Sends hold no higher number."""


_ONES = np.ones(VECTORIZED_FROM, np.int64)
_ONES.flags.writeable = False


@dataclass(slots=True)
class SentRows:
    """The frames of one producer, a row each. sequence, highest: the client's numbers of each, highest -1: it said
    none. size: the bytes of the frames. keyless: (row, sequence id) of messages without a key.
    """

    rows: list[Row] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    highest: list[int] = field(default_factory=list)
    size: int = 0
    keyless: list[tuple[int, int]] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return len(self.rows)


def read_few(
    cut: Cut,
    first: int,
    end: int,
    vectorized_from: int = VECTORIZED_FROM,
) -> Mapping[int, SentRows | Sends | None]:
    """Decode SEND frames number first .. end-1; as read_sends, but an empty answer stands for its None.

    vectorized_from: so many messages are decoded as columns; as many as the first frame has count for each. Fewer are
    rows, which `sends_of` makes into columns.
    """
    found: dict[int, SentRows | None] = {}
    least = min(_BATCHES_FROM, vectorized_from)
    data, checksum, number_at = cut.data, google_crc32c.value, U32.unpack_from
    bounds = [*cut.starts[first:end], cut.starts[end] if end < len(cut) else cut.end]
    few = end - first < vectorized_from
    for start, stop in pairwise(bounds):
        if few and _take_plain(found, data, start, stop):
            continue
        at = start + 8 + number_at(data, start + 4)[0]
        try:
            command = parse(Command, data[start + 8 : at])
        except MalformedCommand:
            return {}
        asked = command.send
        if start == bounds[0] and (asked.num_messages > 1 or end - first >= vectorized_from):
            together = end - first >= least and (end - first) * asked.num_messages >= vectorized_from
            return (together and read_sends(cut, first, end)) or {}
        if at > stop or command.type != _SEND or not command.HasField("send"):
            return {}
        producer = asked.producer_id
        if producer in found:
            if (taken := found[producer]) is None:
                continue
        else:
            taken = found[producer] = SentRows()
        begin = at + 10
        plain = stop >= begin and data[at : at + 2] == CHECKSUMMED
        if plain and checksum(data[at + 6 : stop]) == number_at(data, at + 2)[0]:
            behind = begin + number_at(data, at + 6)[0]
            if behind <= stop and _take(taken, asked, data[begin:behind], data[behind:stop]):
                taken.size += stop - start
                continue
        found[producer] = None
    return found


def _take_plain(found: dict[int, SentRows | None], data: bytes, start: int, stop: int) -> bool:
    """Add the row of a frame with nothing but what nearly every one has; False for any other."""
    match = _PLAIN.match(data, start + 8, stop)
    if match is None:
        return False
    length, producer_id, sequence_id, checksum, size, name_length, name, number, time = match.groups()
    at = match.start(4) - 2
    command_size, behind = U32.unpack_from(data, start + 4)[0], at + 10 + int.from_bytes(size, "big")
    fits = at == start + 8 + command_size and length[0] == command_size - 4 and len(name) == name_length[0] < 0x80
    if not fits or not match.end() <= behind <= stop:
        return False
    key, key_at = None, match.end()
    if key_at + 2 <= behind and data[key_at] == _KEY_TAG and data[key_at + 1] < 0x80:
        key_at += 2 + data[key_at + 1]
        key = data[match.end() + 2 : key_at]
    left = data[match.start(7) - 2 : match.end(7)] + data[key_at:behind]
    publish_time, payload = number_of(time), data[behind:stop]
    kept = _kept_plain(left) if len(left) <= _SHORT and key_at <= behind else None
    if kept is None or publish_time > LAST_TIME or len(payload) > MAX_MESSAGE_BYTES:
        return False
    if google_crc32c.value(data[at + 6 : stop]) != int.from_bytes(checksum, "big"):
        return False
    producer, sequence = number_of(producer_id), number_of(number)
    taken = found.setdefault(producer, SentRows())
    if taken is not None:
        if key is None:
            taken.keyless.append((len(taken.rows), sequence))
        taken.rows.append((key, payload, publish_time, None, None, None, 0, sequence, None, kept))
        taken.sequence.append(number_of(sequence_id))
        taken.highest.append(-1)
        taken.size += stop - start
    return True


@lru_cache(1024)
def _kept_plain(left: bytes) -> bytes | None:
    """Return what `_kept` does, and None where a field with a column is among them, or a key that is too long."""
    try:
        metadata = parse(Metadata, left)
    except MalformedCommand:
        return None
    if metadata.properties or any(metadata.HasField(name) for name in IN_COLUMNS if name != "properties"):
        return None
    return _kept(metadata.SerializeToString())


def _take(taken: SentRows, asked: Any, encoded: bytes, payload: bytes) -> bool:
    """Add the row of a frame; False for a frame that the loop leaves to others."""
    sequence = asked.sequence_id
    highest = asked.highest_sequence_id if asked.HasField("highest_sequence_id") else -1
    if sequence > _LAST or highest > _LAST or asked.txn_least or asked.txn_most:
        return False
    try:
        metadata = parse(Metadata, encoded)
        there = metadata.HasField("sequence_id") and metadata.HasField("publish_time")
        if not there or metadata.publish_time > LAST_TIME or metadata.deliver_at_time > LAST_TIME:
            return False
        row = row_of(metadata, metadata, payload, metadata.sequence_id, None, b"")
    except MalformedCommand:
        return False
    for name in IN_COLUMNS if any(row[ORDERING_KEY:SEQUENCE_ID]) or highest >= 0 else _OFTEN:
        metadata.ClearField(name)
    rest = metadata.SerializeToString()
    kept = _kept(rest) if len(rest) <= _SHORT else None
    if kept is None:
        return False
    if row[KEY] is row[ORDERING_KEY] is None:
        taken.keyless.append((len(taken.rows), row[SEQUENCE_ID]))
    taken.rows.append((*row[:-1], kept) if kept else row)
    taken.sequence.append(sequence)
    taken.highest.append(highest)
    return True


@lru_cache(1024)
def _kept(rest: bytes) -> bytes | None:
    """Return what of these metadata no column holds; None for metadata of a frame that the loop leaves to others.

    rest: the metadata without the fields that differ from message to message, so nearly all messages have the same.
    """
    metadata = parse(Metadata, rest)
    sealed = metadata.encryption_keys or metadata.HasField("uuid") or metadata.compression != NONE
    several = metadata.HasField("num_messages") or metadata.num_chunks > 1
    if sealed or several or any(getattr(metadata, name) for name in OF_ONE):
        return None
    metadata.sequence_id = metadata.publish_time = 0
    try:
        check_metadata(metadata, 0)
    except MalformedCommand:
        return None
    return left_of(metadata, opaque=False)


def batch_of(several: Sequence[SentRows]) -> StoredBatch:
    """Make all rows in one step: a batch of one row costs as much as one of a hundred. The hashes of messages without a
    key are not made yet.
    """
    return stored([row for taken in several for row in taken.rows], producer="")


def sends_of(several: Mapping[int, SentRows]) -> dict[int, Sends]:
    """Make the rows of several producers into columns."""
    if not several:
        return {}
    whole = batch_of(list(several.values()))
    made: dict[int, Sends] = {}
    begin = 0
    for producer, taken in several.items():
        stop = begin + len(taken.rows)
        batch = whole if len(several) == 1 else whole.slice(begin, stop)
        made[producer] = Sends(
            np.array(taken.sequence, np.int64),
            np.array(taken.highest, np.int64),
            _ONES[: stop - begin] if stop - begin <= len(_ONES) else np.ones(stop - begin, np.int64),
            batch.rows,
            taken.size,
            batch=batch,
            keyless=taken.keyless,
        )
        begin = stop
    return made
