"""Decodes the SEND frames of one read together, in a few dozen steps, however many frames there are.

Nearly all frames come with a checksum, unencrypted, not compressed. A producer with one frame that does not has all of
its frames of that read decoded one by one (actors.pulsar.codec.send_decoder), so that their order stays. Either way
gives the same rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.actors.pulsar.codec.batch_decoder import (
    Heads,
    MessageSlices,
    find_messages,
    of_like_size,
    starts_of,
    table_of,
)
from sluice.actors.pulsar.codec.batch_encoder import is_text
from sluice.actors.pulsar.codec.fields import UNSIGNED, Bytes, Field, Fields, Slices, encode_numbers, read_fields
from sluice.actors.pulsar.codec.frame_cache import CachedBodies
from sluice.actors.pulsar.codec.frames import CHECKSUMMED, Cut, checksums
from sluice.actors.pulsar.codec.properties import read_pairs
from sluice.actors.pulsar.codec.protocol import Metadata, command, tags
from sluice.actors.pulsar.codec.send_decoder import hash_without_key, run_of
from sluice.actors.pulsar.codec.varints import Flags, Ints, of_u32, ranges, side_by_side
from sluice.storage.format.batch import LAST_TIME, MAX_RUN_MESSAGES, StoredBatch
from sluice.storage.format.position import entry_of, ledger_of

SEND_COMMAND = b"\x08\x06"
"""How the command of a SEND begins, whoever writes it: its type."""
_TYPE, _SEND, _RECEIPT = tags("Command", "type", "send", "send_receipt")
_SHORT = int.from_bytes(bytes([*SEND_COMMAND, _SEND, 0]), "big")
"""The same, with the tag of its fields and their length, 0."""
_OF_SEND = _PRODUCER, _SEQUENCE, _COUNT, _HIGHEST = tags(
    "Send", "producer_id", "sequence_id", "num_messages", "highest_sequence_id"
)
_PROPERTIES, _NAME, _NUMBER, _PUBLISHED, _KEY, _EVENT, _ORDER, _DUE, _LAST = tags(
    "Metadata", "properties", "producer_name", "sequence_id", "publish_time", "partition_key", "event_time",
    "ordering_key", "deliver_at_time", "highest_sequence_id",
)  # fmt: skip
_CODEC, _SIZE, _MESSAGES, _SCHEMA = tags(
    "Metadata", "compression", "uncompressed_size", "num_messages", "schema_version"
)
_FLAGS = tags("Metadata", "key_is_base64", "null_value", "null_partition_key")
"""Flags of one message. Java's client says of every key that it is not base64."""
_OF_METADATA = (
    _NAME, _NUMBER, _PUBLISHED, _KEY, _CODEC, _SIZE, _MESSAGES, _EVENT, _SCHEMA, _ORDER, _DUE, _LAST, *_FLAGS,
)  # fmt: skip
"""The fields that columns hold, or that mean nothing. A frame with another field is decoded alone."""
_PLAIN_REST = 256
"""The most bytes without a column that each message of a batch may get without being looked at,"""
_MOST_FOLD, _SMALL = 4, 64 * 1024
"""and the most for all messages together: a multiple of the frame's size, and bytes on top of that."""
_LEDGER, _ENTRY, _PARTITION = tags("MessageId", "ledger", "entry", "partition")
_HEADS = [struct.pack(">II", size + 4, size) for size in range(128)]
"""The bytes before a receipt, by its size."""
PLAIN_RECEIPTS = 120
"""For fewer receipts a loop is cheaper than columns."""
_OF_RECEIPT = tags("Receipt", "producer_id", "sequence_id", "message_id", "highest_sequence_id")


@dataclass(slots=True, eq=False)
class Sends:
    """Frames of one producer, in order; n frames. sequence, highest: the client's numbers, highest -1: it said none.

    rows: how many rows each became. bodies: what follows the command of each, None where that is not for consumers as
    it is. batch: the table as it is published, None where that depends on its producer. first: position of the first
    row, once it is confirmed; -1 if it is not known. error: why all of them were refused. keyless: (row, sequence id)
    of messages without a key, whose hash in `batch` is not made yet.
    """

    sequence: Ints
    highest: Ints
    rows: Ints
    table: pa.RecordBatch
    size: int
    bodies: CachedBodies | None = None
    batch: StoredBatch | None = None
    error: tuple[int, str] | None = None
    first: int = -1
    settled: bool = False
    keyless: Sequence[tuple[int, int]] = ()

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def messages(self) -> int:
        return int(self.table.num_rows)

    def run(self, producer: str, now: Callable[[], int]) -> StoredBatch:
        """Return the rows as this producer publishes them."""
        if self.batch is None:
            return run_of(self.table, now=now(), producer=producer)
        for row, number in self.keyless:
            self.batch.hashes[row] = hash_without_key(producer, number)
        return self.batch

    def halves(self) -> tuple[Sends, Sends]:
        """Return the same in two, in order; of at least two frames."""
        middle = len(self) // 2
        rows, size = int(self.rows[:middle].sum()), self.size * middle // len(self)
        return (
            Sends(self.sequence[:middle], self.highest[:middle], self.rows[:middle], self.table.slice(0, rows), size),
            Sends(
                self.sequence[middle:],
                self.highest[middle:],
                self.rows[middle:],
                self.table.slice(rows),
                self.size - size,
            ),
        )

    def _entries(self) -> Ints:
        """Return the entry of the first row of each frame, once they are stored."""
        return entry_of(self.first) + np.cumsum(self.rows) - self.rows

    def answers(self, producer: int) -> list[Receipt]:
        """Return the answers to all of them, to be encoded one by one."""
        known = self.first >= 0
        ledger, entries = ledger_of(self.first) if known else UNSIGNED, [UNSIGNED] * len(self)
        if known:
            entries = self._entries().tolist()
        columns = self.sequence.tolist(), self.highest.tolist(), entries
        return [(producer, sequence, highest, ledger, entry) for sequence, highest, entry in zip(*columns, strict=True)]

    def receipts(self, producer: int, partition: int) -> bytes:
        """Return the answers to all of them."""
        message_id: list[Field]
        if self.first >= 0:
            message_id = [(_LEDGER, ledger_of(self.first)), (_ENTRY, self._entries())]
        else:
            message_id = [(_LEDGER, UNSIGNED), (_ENTRY, UNSIGNED)]
        message_id.append((_PARTITION, partition & UNSIGNED))
        return _receipts(len(self), message_id, (producer, self.sequence, self.highest))


Receipt = tuple[int, int, int, int, int]
"""The answer to one frame of one message: its producer, the client's two numbers as in Sends, ledger and entry."""


@dataclass(slots=True, eq=False)
class Receipts:
    """The answers to frames of several producers on one partition."""

    partition: int
    rows: list[Receipt]


Answered = tuple[int, int, Sends] | Receipts
"""Frames that are stored: producer, partition, frames; or the answers to them."""


def receipts(answered: Sequence[Answered]) -> bytes:
    """Return the answers to frames of several producers, encoded together."""
    several = [one for one in answered if not isinstance(one, Receipts)]
    if len(several) < len(answered) or sum([len(sends.sequence) for _, _, sends in several]) < PLAIN_RECEIPTS:
        return _few_receipts(answered)
    if len(several) == 1 or any(sends.first < 0 for _, _, sends in several):
        return b"".join(sends.receipts(producer, partition) for producer, partition, sends in several)
    frames = [sends for _, _, sends in several]
    counts = [len(sends) for sends in frames]
    rows = np.concatenate([sends.rows for sends in frames])
    before = np.cumsum(rows) - rows
    begins = np.cumsum(counts) - counts
    entries = np.array([entry_of(sends.first) for sends in frames]) - before[begins]
    message_id: list[Field] = [
        (_LEDGER, np.repeat([ledger_of(sends.first) for sends in frames], counts)),
        (_ENTRY, np.repeat(entries, counts) + before),
        (_PARTITION, np.repeat(np.array([partition & UNSIGNED for _, partition, _ in several], np.uint64), counts)),
    ]
    sequence = np.concatenate([sends.sequence for sends in frames])
    highest = np.concatenate([sends.highest for sends in frames])
    producers = np.repeat([producer for producer, _, _ in several], counts)
    return _receipts(len(rows), message_id, (producers, sequence, highest))


def _few_receipts(answered: Sequence[Answered]) -> bytes:
    """Encode the answers one by one: cheaper than columns for few."""
    made: list[bytes] = []
    whole = command("send_receipt", message_id={})
    answer = whole.send_receipt
    place = answer.message_id
    encode = whole.SerializeToString
    for one in answered:
        if isinstance(one, Receipts):
            place.partition, rows = one.partition, one.rows
        else:
            producer, place.partition, sends = one
            rows = sends.answers(producer)
        for producer, sequence, highest, ledger, entry in rows:
            answer.producer_id, answer.sequence_id = producer, sequence
            place.ledger, place.entry = ledger, entry
            if highest >= 0:
                answer.highest_sequence_id = highest
            encoded = encode()
            made += _HEADS[len(encoded)], encoded
            if highest >= 0:
                answer.ClearField("highest_sequence_id")
    return b"".join(made)


def _receipts(count: int, message_id: list[Field], names: tuple[Ints | int, Ints, Ints]) -> bytes:
    """names: the producers, and their clients' numbers of the frames."""
    producer, sequence, highest = names
    values = (producer, sequence, encode_numbers(count, message_id), highest)
    answer = encode_numbers(count, list(zip(_OF_RECEIPT, values, strict=True)))
    command_bytes = encode_numbers(count, [(_TYPE, _RECEIPT >> 3), (_RECEIPT, answer)])
    length = command_bytes.lengths()
    return side_by_side(count, [of_u32(length + 4), of_u32(length), command_bytes]).joined()


@dataclass(slots=True)
class _Read:
    """The fields found in n frames. at, end: the payload. odd: frames that are decoded one by one.

    rests: of each what comes up to the end of its command, and what follows it; binary (2 n,).
    """

    source: Bytes
    command: Fields
    metadata: Fields
    at: Ints
    end: Ints
    odd: Flags
    rests: pa.Array


def sends_in(cut: Cut) -> Flags:
    """Return which of the frames are SENDs."""
    if not len(cut):
        return np.zeros(0, bool)
    data = np.frombuffer(cut.data, np.uint8)
    starts = np.array(cut.starts)
    kind = np.minimum(starts + 8, len(data) - 2)
    found: Flags = (data[kind] == SEND_COMMAND[0]) & (data[kind + 1] == SEND_COMMAND[1]) & (starts + 10 <= cut.end)
    return found


def read_sends(cut: Cut, first: int, end: int) -> dict[int, Sends | None] | None:
    """SEND frames number first .. end-1, by producer; None for one whose frames are to be decoded one by one.

    None instead of that: all of them are.
    """
    starts = np.array(cut.starts[first:end], np.int64)
    ends = np.append(starts[1:], cut.starts[end] if end < len(cut) else cut.end)
    read = _read(cut.data, starts, ends)
    if read is None:
        return None
    producers = read.command.value[_PRODUCER]
    slow = dict.fromkeys(producers[read.odd].tolist())
    while True:
        taken = np.flatnonzero(~np.isin(producers, list(slow)))
        if not len(taken):
            break
        found, counts, odd = _messages(cut.data, read, taken)
        pairs, wrong = read_pairs(read.source, found.several, len(found.key_at))
        odd[np.repeat(np.arange(len(taken)), counts)[wrong]] = True
        if not odd.any():
            break
        slow |= dict.fromkeys(producers[taken[odd]].tolist())
    if not len(taken):
        return dict(slow)
    if pairs is None:
        found, taken, counts = _side_by_side(found, producers, taken, counts)
    table = table_of(read.source, found, _heads(read, taken, counts), pairs)
    return _by_producer(read, taken, table, counts, ends - starts) | slow


def _side_by_side(found: MessageSlices, producers: Ints, taken: Ints, counts: Ints) -> tuple[MessageSlices, Ints, Ints]:
    """The same with each producer's frames one behind the other, so that its rows are a slice of all rows."""
    order = np.argsort(producers[taken], kind="stable")
    if bool((np.diff(order) > 0).all()):
        return found, taken, counts
    firsts = np.cumsum(counts) - counts
    return found.take(ranges(firsts[order], counts[order])), taken[order], counts[order]


def _read(data: bytes, starts: Ints, ends: Ints) -> _Read | None:
    """Commands and metadata; None if a command has to be looked at alone."""
    source = Bytes(data, padded=True)
    stop = starts + 8 + source.u32(starts + 4)
    if (stop > ends).any():
        return None
    command, wrong = _commands(source, starts + 8, stop)
    if (wrong | (command.value[_PRODUCER] < 0) | (command.value[_SEQUENCE] < 0)).any():
        return None
    magic = (source.data[stop] == CHECKSUMMED[0]) & (source.data[stop + 1] == CHECKSUMMED[1])
    at = np.where(magic & (stop + 10 <= ends), stop + 10, ends)
    length = source.u32(np.maximum(at - 4, 0))
    payload = at + length
    odd = (at == ends) | (payload > ends)
    metadata = read_fields(source, at, np.where(odd, at, payload), _OF_METADATA, _PROPERTIES)
    value = metadata.value
    odd |= metadata.odd | (value[_CODEC] > 0)
    for flag in _FLAGS:
        odd |= (value[flag] > 0) & (value[_MESSAGES] < 0)
    for name in (_NAME, _NUMBER, _PUBLISHED):
        odd |= value[name] < 0
    odd |= (value[_PUBLISHED] > LAST_TIME) | (value[_DUE] > LAST_TIME)
    odd |= (value[_MESSAGES] == 0) | (value[_MESSAGES] > MAX_RUN_MESSAGES)
    rest = value[_NAME] + value[_SCHEMA]
    grows = rest * value[_MESSAGES] > _MOST_FOLD * (ends - starts) + _SMALL
    odd |= (value[_MESSAGES] > 1) & ((rest > _PLAIN_REST) | grows)
    odd |= checksums(data, stop + 6, ends) != source.u32(stop + 2)
    offsets = np.append(np.stack([starts, stop], axis=1).ravel(), ends[-1]).astype(np.int32)
    rests = pa.Array.from_buffers(
        pa.binary(), 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(source.data)]
    )
    return _Read(source, command, metadata, payload, ends, odd, rests)


def _commands(source: Bytes, at: Ints, stop: Ints) -> tuple[Fields, Flags]:
    """(What the commands say that stand at these places, which of them have to be looked at alone.)"""
    begin, size = at + 4, stop - at - 4
    short = (size >= 0) & (size < 128)  # its length is one byte
    if short.all() and bool((source.u32(at) == (_SHORT + size)).all()):
        command = read_fields(source, begin, stop, _OF_SEND)
        return command, command.odd
    envelope = read_fields(source, at, stop, (_TYPE, _SEND))
    begin = envelope.at[_SEND]
    command = read_fields(source, begin, begin + np.maximum(envelope.value[_SEND], 0), _OF_SEND)
    return command, envelope.odd | command.odd | (envelope.value[_SEND] < 0)


def _messages(data: bytes, read: _Read, taken: Ints) -> tuple[MessageSlices, Ints, Flags]:
    """(The messages of these frames, how many each has, which frames are odd.)"""
    given = read.metadata.value[_MESSAGES][taken]
    counts = np.maximum(given, 1)
    at, end = read.at[taken], read.end[taken]
    begin, odd = _begins(data, read.source, at, end, given)
    if odd.any():
        return MessageSlices.nothing(len(begin)), counts, odd
    lasts = np.cumsum(counts) - 1
    stop = np.append(begin[1:], 0)
    stop[lasts] = end
    single = np.flatnonzero(given <= 0)
    if not len(single):
        found, wrong = find_messages(read.source, begin, stop)
        odd[np.unique(lasts.searchsorted(np.flatnonzero(wrong)))] = True
        return found, counts, odd
    found, batched = MessageSlices.nothing(len(begin)), np.ones(len(begin), bool)
    batched[lasts[single]] = False
    if batched.any():
        inside, wrong = find_messages(read.source, begin[batched], stop[batched])
        found.put(np.flatnonzero(batched), inside)
        odd[np.unique(lasts.searchsorted(np.flatnonzero(batched)[wrong]))] = True
    alone = _singles(read, taken[single])
    found.put(lasts[single], alone)
    odd[single[alone.odd()]] = True
    return found, counts, odd


def _begins(data: bytes, source: Bytes, at: Ints, end: Ints, counts: Ints) -> tuple[Ints, Flags]:
    """(Where the messages of frames begin, ascending, which frames are odd). counts: as clients said them.

    Of frames that are odd it means nothing.
    """
    odd = np.zeros(len(at), bool)
    even, begin = of_like_size(source, at, end, counts)
    if len(even) == len(at):
        return begin, odd
    starts = [begin, at[counts <= 0]]
    walked = counts > 0
    walked[even] = False
    for number in np.flatnonzero(walked).tolist():
        inside = starts_of(data[at[number] : end[number]], int(counts[number]))
        odd[number] = inside is None
        starts.append(np.array(inside or [0] * int(counts[number]), np.int64) + at[number])
    return np.sort(np.concatenate(starts), kind="stable"), odd


def _singles(read: _Read, frames: Ints) -> MessageSlices:
    """Return frames that are one message each."""
    value, at = read.metadata.value, read.metadata.at
    return MessageSlices(
        key_at=at[_KEY][frames],
        key_size=value[_KEY][frames],
        order_at=at[_ORDER][frames],
        order_size=value[_ORDER][frames],
        payload_at=read.at[frames],
        payload_size=(read.end - read.at)[frames],
        event_time=value[_EVENT][frames],
        sequence=value[_NUMBER][frames],
        several=_their(read, frames),
    )


def _their(read: _Read, frames: Ints) -> list[Slices]:
    """Return the properties of frames that are one message each, by their places among these."""
    number_of = np.full(len(read.at), -1, np.int64)
    number_of[frames] = np.arange(len(frames))
    found = []
    for each in read.metadata.several:
        mine = number_of[each.rows] >= 0
        found.append(Slices(number_of[each.rows[mine]], each.at[mine], each.size[mine]))
    return found


def _heads(read: _Read, taken: Ints, counts: Ints) -> Heads:
    value, (rests, kinds) = read.metadata.value, _rests(read, taken)
    return Heads(
        counts=counts,
        alone=value[_MESSAGES][taken] < 0,
        sequence=value[_NUMBER][taken],
        publish_time=value[_PUBLISHED][taken],
        deliver_at=np.maximum(value[_DUE][taken], 0),
        rests=rests,
        kinds=kinds,
    )


def _by_producer(read: _Read, taken: Ints, table: pa.RecordBatch, counts: Ints, sizes: Ints) -> dict[int, Sends | None]:
    """The frames of each. What can be done for the rows of all of them at once is; each producer's are a slice."""
    mine = read.command.value[_PRODUCER][taken]
    firsts = _begins_of(mine)
    if len(firsts) > 1 and len(np.unique(mine[firsts])) < len(firsts):
        order = np.argsort(mine, kind="stable")
        table = table.take(pa.array(ranges((np.cumsum(counts) - counts)[order], counts[order])))
        mine, taken, counts = mine[order], taken[order], counts[order]
        firsts = _begins_of(mine)
    sequence, highest = (read.command.value[tag][taken] for tag in (_SEQUENCE, _HIGHEST))
    offsets, size = taken * 2 + 1, np.add.reduceat(sizes[taken], firsts).tolist()
    keys = table.column("key")
    plain = _is_as_it_came(read, taken, keys)
    # Where a message has no key its hash is made of the producer's name.
    whole = None if keys.null_count else run_of(table, now=0, producer="")
    made: dict[int, Sends | None] = {}
    begin = 0
    ends = np.append(firsts[1:], len(mine))
    for number, (first, end, rows) in enumerate(
        zip(firsts.tolist(), ends.tolist(), np.add.reduceat(counts, firsts).tolist(), strict=True)
    ):
        part, stop = slice(first, end), begin + rows
        bodies = None
        if plain or _is_as_it_came(read, taken[part], keys.slice(begin, rows)):
            bodies = CachedBodies(read.rests, offsets[part])
        made[int(mine[first])] = (
            None
            if rows > MAX_RUN_MESSAGES
            else Sends(
                sequence[part],
                highest[part],
                counts[part],
                table.slice(begin, rows),
                size[number],
                bodies,
                None if whole is None else _slice(whole, begin, stop),
            )
        )
        begin = stop
    return made


def _begins_of(producers: Ints) -> Ints:
    """Return the first frame of each run of frames of one producer, int64; 0 is the first."""
    begins: Ints = np.concatenate([[0], np.flatnonzero(np.diff(producers)) + 1])
    return begins


def _slice(batch: StoredBatch, begin: int, stop: int) -> StoredBatch:
    """Return rows begin .. stop-1 as a batch of their own."""
    part = batch.slice(begin, stop)
    if part.deliver_at is None or part.deliver_at.any():
        return part
    return StoredBatch(part.rows, None, part.hashes)


def _is_as_it_came(read: _Read, frames: Ints, keys: pa.Array) -> bool:
    """Whether the bodies of frames may go to consumers unchanged. A body may have to be made again if a message is
    delayed, because its time may be changed, or has a key that is no text.
    """
    return not (read.metadata.value[_DUE][frames] > 0).any() and is_text(keys)


def _rests(read: _Read, taken: Ints) -> tuple[pa.Array, Ints]:
    """(What no column explains: the producer's name and the schema's version; which of these each frame has.)"""
    value, at = read.metadata.value, read.metadata.at
    names, versions = ((at[tag][taken], value[tag][taken]) for tag in (_NAME, _SCHEMA))
    differs = read.source.differ(*names) | read.source.differ(*versions)
    rests = []
    for frame in np.flatnonzero(differs).tolist():
        metadata = Metadata(producer_name=read.source.slice(names[0][frame], names[1][frame]))
        if versions[1][frame] >= 0:
            metadata.schema_version = read.source.slice(versions[0][frame], versions[1][frame])
        rests.append(metadata.SerializeToString())
    return pa.array(rests, pa.binary()), np.cumsum(differs) - 1
