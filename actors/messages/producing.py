"""Requests of producers to the owner of a partition, and what it asks of those who serve them."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import numpy as np

from sluice.actors.messages.common import Done, Text
from sluice.actors.ports.wire import Blob, Reply, Request

AccessMode = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
ACCESS_MODES: tuple[AccessMode, ...] = get_args(AccessMode)
"""In the order in which Pulsar's protocol numbers them."""
ProducerNews = Literal["none", "taken", "over"]


class ProducerOpened(Reply, kw_only=True):
    """last_sequence: highest sequence of this producer that is stored, -1 for none. session fences older namesakes.

    topic_epoch: of a producer that has the partition to itself, how often one has had it before; -1 of one that shares
    it. session 0: others have it; the producer stands in line, and asks again.
    """

    session: int
    last_sequence: int
    epoch: int
    topic_epoch: int = -1


class OpenProducer(Request[ProducerOpened], kw_only=True):
    """Register a producer name. A newer session of the same name fences the older one.

    home: who can be asked whether it is still there (`ProducersHere`); empty for nobody: then a producer that has the
    partition to itself asks again and again. access: Pulsar's access mode. topic_epoch: what it was told when it had
    the partition to itself. again: the name was made up for its client, which comes back on another connection: who has
    it is an earlier self. Of two others with a home the one that is there stays. resumes: this very producer was open
    before, and may have something on its way; also where the topic was terminated meanwhile it learns what became of
    that.
    """

    reply: ClassVar[type[Reply]] = ProducerOpened
    producer: str
    incarnation: str
    home: str = ""
    access: AccessMode = "shared"
    topic_epoch: int | None = None
    again: bool = False
    resumes: bool = False


class CloseProducer(Request[Done], kw_only=True):
    """A producer has left, or does not wait for its turn any more."""

    reply: ClassVar[type[Reply]] = Done
    producer: str
    incarnation: str


class ProducersPresent(Reply, kw_only=True):
    """The incarnations that are still there."""

    incarnations: list[str]


class ProducersHere(Request[ProducersPresent], kw_only=True):
    """A question to a home: which of these producers on a partition does it still serve? news: what they are told by
    it. taken: another producer has the partition to itself now, and they are to give way. over: it takes no more
    messages; they leave when everything they sent is confirmed or refused, and their clients come again and learn it.
    """

    reply: ClassVar[type[Reply]] = ProducersPresent
    topic: str
    partition: int
    incarnations: list[str]
    news: ProducerNews = "none"


class ClientsHere(Request[Text], kw_only=True):
    """Which clients of Pulsar's protocol a gateway serves on a partition: its producers and consumers, as JSON.

    partition: None stands for all; each row then says its own.
    """

    reply: ClassVar[type[Reply]] = Text
    topic: str
    partition: int | None


class RatesHere(Request[Text], kw_only=True):
    """A request for the rates that a gateway lets pass under limits that hold for all gateways, as JSON: see
    actors.pulsar.conversation.limits.rates.
    """

    reply: ClassVar[type[Reply]] = Text


class SendAway(Request[Done], kw_only=True):
    """Clients on a topic, or on one partition, must connect again with their producers and consumers."""

    reply: ClassVar[type[Reply]] = Done
    topic: str
    partition: int | None = None


class Published(Reply, kw_only=True, frozen=True):  # type: ignore[misc]
    """The run is stored: entries first_entry .. first_entry+count-1 of the ledger, durable on ack_quorum bookies.

    duplicate: it (or part of it) had been stored before. ledger is 0 if it was stored so long ago that its place is
    no longer remembered.
    """

    ledger: int
    first_entry: int
    count: int
    duplicate: bool = False


class Publish(Request[Published], kw_only=True, frozen=True):  # type: ignore[misc]
    """Append one run (storage.format.frame.Run) with consecutive sequences first_sequence, first_sequence+1, ...

    Sequences at or below the producer's last stored one are not stored again. Answered when confirmed. A gap behind
    the last run waits for its predecessor and is Conflict in the end, unless `follows` says that there is none:
    everything between `follows` and first_sequence was answered with a refusal and will not come again.
    keyed_delay: some message has both a key and a delay, which a subscription may refuse (delay_key_policy=reject).
    """

    reply: ClassVar[type[Reply]] = Published
    producer: str
    session: int
    first_sequence: int
    count: int
    delayed: bool
    shape: int
    crc: int
    payload: Blob
    follows: int | None = None
    keyed_delay: bool = False


class PublishMany(Request[Published], kw_only=True, frozen=True):  # type: ignore[misc]
    """Append one run with the messages of several producers, all or none of them. Producers are named at most once.

    producers, sessions, first_sequences, counts, follows: of each in the order of its rows, as in Publish; the counts
    make up the run. The answer says where the first message is. Raises Conflict where one of them is to be judged by
    itself, because of a repetition or a gap or an older process: each then sends a Publish of its own.
    """

    reply: ClassVar[type[Reply]] = Published
    producers: tuple[str, ...]
    sessions: tuple[int, ...]
    first_sequences: tuple[int, ...]
    counts: tuple[int, ...]
    follows: tuple[int, ...]
    delayed: bool
    shape: int
    crc: int
    payload: Blob
    keyed_delay: bool = False

    @property
    def count(self) -> int:
        """Messages of the run."""
        return sum(self.counts)


class PublishResults(Request[Published], kw_only=True):
    """Append what was made of messages of a source, a subscription on a partition, once for each message.

    positions: of the message that each row was made of (int64, one a row); all rows that a message has in this
    partition are here. finished: up to here the subscription has durably finished everything. Messages whose results
    are stored are passed over. Raises Invalid on a topic that does not deduplicate, and Conflict for a message that was
    finished before.
    """

    reply: ClassVar[type[Reply]] = Published
    source: str
    positions: np.ndarray
    finished: int
    count: int
    delayed: bool
    shape: int
    crc: int
    payload: Blob
    keyed_delay: bool = False
