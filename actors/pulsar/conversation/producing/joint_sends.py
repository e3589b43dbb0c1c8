"""Frames of several producers of one partition that were read together: they stay one piece of work up to the receipts.

Callers that each wait for a receipt have one small message under way. With an object and a queue for each of them, that
is most of what such a message costs. If their joint publish is refused, or its outcome is unknown, each producer goes
on with its own frames as if they had come alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate

from sluice.actors.producer.batches import Outgoing, places
from sluice.actors.producer.producer import PartitionProducer
from sluice.actors.producer.waves import JOINT_BYTES, Outcome, Over, PartitionWaves, PublishColumns
from sluice.actors.pulsar.codec.loop_decoder import SentRows, batch_of, sends_of
from sluice.actors.pulsar.codec.send_decoder import hash_without_key
from sluice.actors.pulsar.codec.vectorized_decoder import Receipts, Sends
from sluice.actors.pulsar.conversation.producing.wire_producer import ProducerSession, WireProducer
from sluice.storage.errors import InvariantViolation, SluiceError
from sluice.storage.format.batch import StoredBatch
from sluice.storage.format.frame import MAX_NAMES_BYTES, MAX_SEGMENTS

Sent = tuple[WireProducer, SentRows]
"""A producer, and its frames of one read."""


def send_together(
    session: ProducerSession,
    read: Mapping[int, SentRows | Sends | None],
    find: Callable[[int], WireProducer | None],
) -> dict[int, tuple[WireProducer, SentRows | Sends]]:
    """Send the frames of one read, and return those that were taken, each with its producer; by the producer's number.

    find: the producer of a number, None without one.
    """
    rows: dict[int, Sent] = {}
    columns: dict[int, tuple[WireProducer, Sends]] = {}
    for number, found in read.items():
        producer = find(number)
        if producer is not None and isinstance(found, SentRows):
            rows[number] = producer, found
        elif producer is not None and isinstance(found, Sends):
            columns[number] = producer, found
    alone = _send_jointly(session, rows)
    taken: dict[int, tuple[WireProducer, SentRows | Sends]] = {n: one for n, one in rows.items() if n not in alone}
    for number, (producer, sends) in (columns | alone).items():
        if producer.takes(sends):
            taken[number] = producer, sends
            producer.send_vectorized(sends)
    return taken


def _send_jointly(session: ProducerSession, several: Mapping[int, Sent]) -> dict[int, tuple[WireProducer, Sends]]:
    """Send what may go jointly, and return the rest as columns: frames of producers that are alone on their partition,
    or that have something under way.
    """
    groups: dict[PartitionWaves, list[int]] = {}
    for number, (producer, taken) in several.items():
        if producer.may_join() and taken.size <= JOINT_BYTES:
            groups.setdefault(producer.part.waves, []).append(number)
    joint: list[list[int]] = []
    for numbers in groups.values():
        while (fitting := _fitting([several[number] for number in numbers])) > 1:
            joint.append(numbers[:fitting])
            numbers = numbers[fitting:]
    sent = {number: several[number][1] for numbers in joint for number in numbers}
    if sent:
        whole, begin = batch_of(list(sent.values())), 0
        for numbers in joint:
            end = begin + sum([sent[number].messages for number in numbers])
            JointSends(session, [several[number] for number in numbers], whole.slice(begin, end)).start()
            begin = end
    rest = {number: taken for number, (_, taken) in several.items() if number not in sent}
    return {number: (several[number][0], sends) for number, sends in sends_of(rest).items()}


def _fitting(group: list[Sent]) -> int:
    """Return how many producers from the first on fit into one run; they have one owner."""
    if len(group) < 2:
        return 0
    address, names, size = group[0][0].part.address, 0, 0
    for number, (producer, taken) in enumerate(group[:MAX_SEGMENTS]):
        names, size = names + producer.part.name_bytes, size + taken.size
        if names > MAX_NAMES_BYTES or size > JOINT_BYTES or producer.part.address != address:
            return number
    return min(len(group), MAX_SEGMENTS)


class JointSends:
    """Frames of at least two producers, which are published as one part of a wave.

    It is the `WaveProducer` for all of them. Invariant: until the outcome is there each of them has nothing else under
    way, and its receipts for later frames wait behind this.
    """

    alone = False

    def __init__(self, session: ProducerSession, several: Sequence[Sent], batch: StoredBatch) -> None:
        self._session, self._several, self.settled = session, several, False
        self._parts: list[PartitionProducer] = [producer.part for producer, _ in several]
        self._counts = [taken.messages for _, taken in several]
        self._firsts = [producer.join(self, count) for (producer, _), count in zip(several, self._counts, strict=True)]
        self.segments, self.address = len(several), self._parts[0].address
        self.name_bytes = sum([part.name_bytes for part in self._parts])
        self._size = sum([taken.size for _, taken in several])
        self.on_published = self._parts[0].on_published
        self._outgoing: Outgoing | None = Outgoing(batch, 0, places(len(batch)), _nothing, self._size)
        self._hash_without_keys(batch)

    def _hash_without_keys(self, batch: StoredBatch) -> None:
        begin = 0
        for (producer, taken), count in zip(self._several, self._counts, strict=True):
            for row, number in taken.keyless:
                batch.hashes[begin + row] = hash_without_key(producer.name, number)
            begin += count

    def start(self) -> None:
        """Publish with the next wave."""
        self._parts[0].waves.join(self)

    # -- as a WaveProducer ----------------------------------------------------------------------------------------

    @property
    def head(self) -> Outgoing | None:
        return self._outgoing

    def gather(self) -> tuple[list[Outgoing], int, int]:
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is None:
            raise InvariantViolation("joint sends are published once")
        return [outgoing], len(outgoing.rows), self._size

    def add_segments(self, to: PublishColumns, gathered: list[Outgoing], count: int) -> None:
        to.producers += [part.name for part in self._parts]
        to.sessions += [part.session for part in self._parts]
        to.first_sequences += self._firsts
        to.counts += self._counts
        to.follows += [part.last_sequence for part in self._parts]

    def publish(self, gathered: list[Outgoing], over: Over) -> None:
        """Never needed: it has several segments. Each producer publishes by itself."""
        over(partial(self.publish_alone, gathered))

    def confirm(self, gathered: list[Outgoing], ledger: int, first_entry: int) -> None:
        """See WaveProducer. All receipts go out before those of later frames."""
        self.settled = True
        receipts = Receipts(self._several[0][0].tp.wire_partition, [])
        entries = accumulate(self._counts, initial=first_entry)
        for (producer, taken), part, first, entry in zip(
            self._several, self._parts, self._firsts, entries, strict=False
        ):
            part.last_sequence = first + taken.messages - 1
            if producer.closed:
                continue
            numbers = enumerate(zip(taken.sequence, taken.highest, strict=True), entry)
            receipts.rows += [(producer.number, sequence, highest, ledger, at) for at, (sequence, highest) in numbers]
        self._session.settled(self._size)
        self._session.confirm(receipts)
        for producer, _ in self._several:
            producer.answer()

    def go_on(self) -> None:
        for part in self._parts:
            part.go_on()

    def publish_alone(self, gathered: list[Outgoing], outcome: Outcome | None = None) -> None:
        """See WaveProducer. What the outcome of all was says nothing of one, but that it may be stored."""
        sends = sends_of({number: taken for number, (_, taken) in enumerate(self._several)})
        for (producer, _), first, own in zip(self._several, self._firsts, sends.values(), strict=True):
            producer.send_alone(self, own, first, outcome)


def _nothing(rows: object, first: int, error: SluiceError | None) -> None:
    """The outcome is reported by `confirm`."""
