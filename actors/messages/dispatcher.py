"""Requests of consumers and operators to a dispatcher."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from sluice.actors.messages.common import Done, Text, no_counts, no_positions, no_rows
from sluice.actors.messages.limits import MOST_BEATS
from sluice.actors.ports.wire import Blob, Reply, Request
from sluice.storage.format.batch import LAST_TIME, MAX_KEY_BYTES


class Attached(Reply, kw_only=True):
    """session identifies this consumer from now on; it ends after `lease` ms without a Poll or Acknowledge.

    session 0: refused. This incarnation was given up and what it holds went to others; attach as another, holding none.
    revokes: this owner may ask for messages back (`nack_order=key`); no owner begins to while anybody is attached.
    apart: somebody said SentApart.
    """

    session: int
    epoch: int
    lease: int
    revokes: bool = False
    apart: bool = False


class Attach(Request[Attached], kw_only=True):
    """A consumer joins, or comes back to a new owner with what it still holds.

    incarnation is unique per consumer object and never reused; a repetition returns the same session. holding:
    unacknowledged positions from before the owner changed, which stay with this consumer. process: where it runs, for
    `ports.Watch`; when that process has ended, nobody waits for the lease. Empty: the lease alone counts. keep_place:
    with `grace_ms`, its hashes may be kept for one of its name, because the name is not one that was made up for it.
    hands_over_to: as in HandOver, said in this session or an earlier one. read_compacted: of each key it wants the last
    message alone, as far as the topic was compacted; on an exclusive or failover subscription, where all want the same.
    moves: it is told which hashes move (MOVES). One that does not care is not woken for them, and a consumer that joins
    takes hashes from up to a hundred others. properties: kept with the subscription if it has none yet.
    """

    reply: ClassVar[type[Reply]] = Attached
    consumer: str
    incarnation: Annotated[str, Meta(min_length=1, max_length=512)]
    ranges: Annotated[list[tuple[int, int]], Meta(max_length=4096)] = []
    priority: Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)] = 0
    holding: np.ndarray = msgspec.field(default_factory=no_positions)
    process: Annotated[str, Meta(max_length=512)] = ""
    keep_place: bool = True
    hands_over_to: Annotated[str, Meta(max_length=512)] = ""
    read_compacted: bool = False
    moves: bool = True
    properties: dict[str, str] = {}


class Part(msgspec.Struct, kw_only=True):
    """Messages of one run for one consumer.

    rows: uint32 offsets from first_entry, ascending. redeliveries: uint8 counts of redelivery, empty = all zero.
    dispatch: the dispatcher's number of the first row, the others follow. blob None: ask the topic (ReadPayload).
    overtook: those of the rows that the application had before an earlier message of their key came again (uint32).
    cut: the rows that the blob holds (uint32, ascending, all of `rows` among them), whose checksum crc is then; empty:
    the blob is the whole run.
    """

    ledger: int
    first_entry: int
    count: int
    delayed: bool
    shape: int
    crc: int
    dispatch: int
    rows: np.ndarray
    redeliveries: np.ndarray = msgspec.field(default_factory=no_counts)
    overtook: np.ndarray = msgspec.field(default_factory=no_rows)
    cut: np.ndarray = msgspec.field(default_factory=no_rows)
    blob: Blob | None = None


class Revocation(msgspec.Struct, kw_only=True):
    """With `nack_order=key`: the consumer gives these back (NegativeAcknowledge, not counted), or acknowledges them.

    An earlier message of their keys was given back, and goes out again before them; until these are back their keys
    wait. What the consumer has not shown to its application it drops unseen. number: rises with each revocation of a
    session. positions: int64, ascending, all of them delivered with this answer or before.
    """

    number: int
    positions: np.ndarray = msgspec.field(default_factory=no_positions)


MOVES = ("assigned", "revoked", "drained")
"""Kinds of events that tell which hashes a consumer has."""


class Event(msgspec.Struct, kw_only=True):
    """News for a consumer: hash ranges (inclusive pairs) that were assigned to it, revoked or drained.

    inactive, without ranges: it has joined a Failover subscription behind another consumer, and waits. handed_over,
    without ranges: all its hashes are with the consumer that it handed them over to. end_of_topic, without ranges: the
    topic was terminated, and everything in it is done.
    """

    kind: str
    ranges: list[tuple[int, int]] = []
    epoch: int = 0


class Delivery(Reply, kw_only=True):
    """Answer to a Poll. confirmed: highest acknowledgement turn that is durable with all before it.

    consumer_epoch: of the last RedeliverUnacknowledged that was carried out before these messages were sent.
    revocation: None as long as nothing was ever revoked; the positions come once, the number with every answer.
    by_index: as in Poll, said by anybody of this subscription at any time.
    """

    turn: int
    parts: list[Part] = []
    confirmed: int = 0
    events: list[Event] = []
    consumer_epoch: int = 0
    revocation: Revocation | None = None
    by_index: bool = False


class Poll(Request[Delivery], kw_only=True):
    """Wait up to `wait` ms for messages. A repetition of a turn brings the same delivery again, never a second one.

    granted: messages that this consumer was ever ready to take, cumulative over the session (permits are the
    difference to what was ever sent). acks: positions done; ack_turn numbers this group of acknowledgements.
    rows_from: of runs of at least so many bytes the consumer's rows are enough (Part.cut); 0: it wants whole runs.
    by_index: of clients' batches single messages are acknowledged, so that what is left of one has to keep its ids.
    wait: longer than the lease only where heartbeats renew that.
    """

    reply: ClassVar[type[Reply]] = Delivery
    session: int
    turn: int
    granted: int
    wait: int = 1000
    ack_turn: int = 0
    acks: np.ndarray = msgspec.field(default_factory=no_positions)
    rows_from: int = 0
    by_index: bool = False


class HeartbeatAnswer(Reply, kw_only=True):
    """Every session was renewed but those at these places. refused: by the owner. elsewhere: the owner is not in this
    process. unasked: renewed, but the poll of that turn does not wait there: it never came, or its answer is on its way
    or was lost. compares: the turns were looked at; earlier versions do not. unknown: rosters that this process does
    not have, so none of their sessions was renewed. enlisted: the new roster is known from now on.
    """

    refused: list[int] = []
    elsewhere: list[int] = []
    unasked: list[int] = []
    compares: bool = False
    unknown: list[int] = []
    enlisted: bool = False


class Heartbeat(Request[HeartbeatAnswer], kw_only=True):
    """Renew these sessions, whose consumers are all in the process that sends this. One dispatcher is asked, for all in
    its process. owners, sessions: addresses of dispatchers, and at the same place the number of the session there.
    turns: at the same place the turn of the poll that is under way, 0 if none is.

    rosters: numbers of lists of sessions, with their owners and turns, that earlier heartbeats enlisted; they are asked
    for as if they were named. firsts: which place the first session of each has, in the answer. struck: the rows of
    each that are not asked for any more, all that ever were. enlists: places of sessions that are to be a roster, under
    the number enlist_as, as far as they are renewed and their polls wait.
    """

    reply: ClassVar[type[Reply]] = HeartbeatAnswer
    owners: Annotated[list[str], Meta(max_length=MOST_BEATS)]
    sessions: Annotated[list[int], Meta(max_length=MOST_BEATS)]
    turns: Annotated[list[int], Meta(max_length=MOST_BEATS)] = []
    rosters: Annotated[list[int], Meta(max_length=MOST_BEATS)] = []
    firsts: Annotated[list[int], Meta(max_length=MOST_BEATS)] = []
    struck: Annotated[list[Annotated[list[int], Meta(max_length=MOST_BEATS)]], Meta(max_length=MOST_BEATS)] = []
    enlists: Annotated[list[int], Meta(max_length=MOST_BEATS)] = []
    enlist_as: int = 0


class Acknowledged(Reply, kw_only=True):
    """confirmed: highest acknowledgement turn that is durable with all before it."""

    confirmed: int


class Acknowledge(Request[Acknowledged], kw_only=True):
    """Acknowledge and grant permits without polling; also renews the lease. granted, by_index as in Poll.

    durable: answer only when this turn is confirmed.
    """

    reply: ClassVar[type[Reply]] = Acknowledged
    session: int
    ack_turn: int
    granted: int = 0
    acks: np.ndarray = msgspec.field(default_factory=no_positions)
    durable: bool = False
    by_index: bool = False


class StillOpen(Reply, kw_only=True):
    """positions: int64, ascending."""

    positions: np.ndarray = msgspec.field(default_factory=no_positions)


class FindOpen(Request[StillOpen], kw_only=True):
    """Which of these positions (int64, ascending) are not done? A gateway with a part of a client's batch asks this."""

    reply: ClassVar[type[Reply]] = StillOpen
    session: int
    positions: np.ndarray = msgspec.field(default_factory=no_positions)


class SentApart(Request[Done], kw_only=True):
    """From now on ids of this subscription may stand for parts of clients' batches. Answered when that is durable."""

    reply: ClassVar[type[Reply]] = Done
    session: int


class GivenBack(Reply, kw_only=True):
    """revocation: number of the session's last Revocation; once that was heard, so was what this hand-back revoked."""

    revocation: int = 0


class NegativeAcknowledge(Request[GivenBack], kw_only=True):
    """Give messages back for redelivery after `delay` ms.

    counted: the redelivery count rises (a hand-back at close does not count). number: rises with each hand-back of a
    session, so that a late copy does not take back what was delivered again since; 0 = not numbered. consumer_epoch: of
    the consumer when it gave them back; what is older than the last RedeliverUnacknowledged went back with that. seen:
    uint8, the redelivery count that it had with each position, empty = not told. again: it was said in an earlier
    session and never confirmed; nobody holds these now, unless they were sent again meanwhile. overtook: those of
    them that were revoked when the application had them already.

    Answered when delay and count are durable, so that the next owner keeps them.
    """

    reply: ClassVar[type[Reply]] = GivenBack
    session: int
    positions: np.ndarray = msgspec.field(default_factory=no_positions)
    delay: Annotated[int, Meta(ge=0, le=LAST_TIME)] = 0
    counted: bool = True
    number: int = 0
    consumer_epoch: int = 0
    seen: np.ndarray = msgspec.field(default_factory=no_counts)
    again: bool = False
    overtook: np.ndarray = msgspec.field(default_factory=no_positions)


class RedeliverUnacknowledged(Request[Done], kw_only=True):
    """Give back all messages that this session was sent and did not acknowledge, also those on their way.

    consumer_epoch: rises with each of these in a session (Pulsar's consumer epoch). A delivery of a lower one is void,
    and the consumer drops it. turn: the last delivery that it took. positions: what it had; the redelivery count rises
    for these alone, as it has not seen the rest. seen: uint8, the count that it had with each. done: what it
    acknowledged, perhaps not yet heard by this session.

    Answered when the counts are durable.
    """

    reply: ClassVar[type[Reply]] = Done
    session: int
    consumer_epoch: int
    turn: int
    positions: np.ndarray = msgspec.field(default_factory=no_positions)
    seen: np.ndarray = msgspec.field(default_factory=no_counts)
    done: np.ndarray = msgspec.field(default_factory=no_positions)


class Detach(Request[Done], kw_only=True):
    """The consumer leaves; the messages that it holds go to the others in order.

    keep_place: with `grace_ms`, its hashes wait for one of its name instead; False: it is gone for good.
    """

    reply: ClassVar[type[Reply]] = Done
    session: int
    keep_place: bool = True


class HandOver(Request[Done], kw_only=True):
    """With `grace_ms`: the consumer that attaches under the name `to` takes over all hashes of this one.

    From then on this one gets nothing new, and finishes what it holds; it is told by an event `handed_over`. Answered
    when the offer is durable. Raises Conflict if a consumer of that name has hashes already.
    """

    reply: ClassVar[type[Reply]] = Done
    session: int
    to: Annotated[str, Meta(min_length=1, max_length=512)]


class Explain(Request[Text], kw_only=True):
    """Why is this key, hash or message not being delivered? The request names one of the three."""

    reply: ClassVar[type[Reply]] = Text
    key: Annotated[bytes, Meta(max_length=MAX_KEY_BYTES)] | None = None
    hash: Annotated[int, Meta(ge=0, le=65535)] | None = None
    position: int | None = None
