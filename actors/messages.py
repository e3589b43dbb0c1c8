"""Every request that one actor may send another, with its reply: the whole conversation in one file.

All requests are safe to repeat. Those that change something carry an epoch (of the owner that speaks) or a session
(of the consumer or producer that speaks), and a number that makes a repetition recognisable. Positions are packed
int64 (storage.position); times are milliseconds; counts are messages.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from actors.wire import Blob, Reply, Request

NO_POSITIONS: np.ndarray = np.empty(0, np.int64)
NO_ROWS: np.ndarray = np.empty(0, np.uint32)


def _positions() -> np.ndarray:
    return NO_POSITIONS


def _rows() -> np.ndarray:
    return NO_ROWS


class Done(Reply):
    """Nothing to say but: it happened, or had happened before."""


class Ping(Request[Done]):
    """Is anybody there? Every actor answers."""

    reply: ClassVar[type[Reply]] = Done


class Text(Reply):
    """A JSON document (stats, explanations); not on any hot path."""

    json: str


class Stats(Request[Text]):
    """The actor's statistics, with Pulsar's names where it has them."""

    reply: ClassVar[type[Reply]] = Text


# -- bookie ---------------------------------------------------------------------------------------------------------


class AddRun(Request[Done], kw_only=True):
    """Store one frame: head (storage.frame.encode_head) and payload. Answered when durable.

    Refused with Fenced if `epoch` is below the ledger's; with Overloaded or Unavailable if the bookie is read-only.
    A repetition of a stored run is Done; a different run under the same number is Conflict.
    """

    reply: ClassVar[type[Reply]] = Done
    ledger: int
    epoch: int
    head: bytes
    payload: Blob
    recovery: bool = False


class FenceState(Reply, kw_only=True):
    """last_confirmed: highest entry that this bookie knows confirmed, -1 for none. last_run: highest run held."""

    last_confirmed: int
    last_run: int


class FenceLedger(Request[FenceState], kw_only=True):
    """Raise the ledger's epoch, durably, so that every older writer is refused. Fenced if a newer one was here.

    A bookie that may have lost runs of this ledger raises Unavailable instead of answering.
    """

    reply: ClassVar[type[Reply]] = FenceState
    ledger: int
    epoch: int


class RunRead(Reply, kw_only=True):
    """One stored run. head None is the explicit "no such run"; damage raises Corrupt or Unavailable instead."""

    head: bytes | None = None
    payload: Blob | None = None


class ReadRun(Request[RunRead], kw_only=True):
    """Read one run by its ordinal. A recovery read carries the new epoch and fences with it (BK1).

    part: "columns" or "head" when the asker needs no more than that of the payload; a bookie may send all of it.
    """

    reply: ClassVar[type[Reply]] = RunRead
    ledger: int
    run: int
    fence_epoch: int | None = None
    part: str = "all"


class LedgerIndex(Reply, kw_only=True):
    """What a bookie holds of a ledger, by run ascending: uint32 columns of equal length.

    damaged: runs that are known to have been here and cannot be read.
    """

    runs: np.ndarray
    first_entries: np.ndarray
    counts: np.ndarray
    last_confirmed: int = -1
    damaged: np.ndarray = msgspec.field(default_factory=_rows)


class DescribeLedger(Request[LedgerIndex], kw_only=True):
    """The runs that this bookie holds of a ledger."""

    reply: ClassVar[type[Reply]] = LedgerIndex
    ledger: int


class DeleteLedgers(Request[Done], kw_only=True):
    """Forget these ledgers; their space is reclaimed later."""

    reply: ClassVar[type[Reply]] = Done
    ledgers: list[int]


class LedgerList(Reply, kw_only=True):
    """ledgers ascending."""

    ledgers: list[int]


class ListLedgers(Request[LedgerList]):
    """Every ledger of which this bookie holds something."""

    reply: ClassVar[type[Reply]] = LedgerList


# -- topic: producers -----------------------------------------------------------------------------------------------


class ProducerOpened(Reply, kw_only=True):
    """last_sequence: highest sequence of this producer that is stored, -1 for none. session fences older twins."""

    session: int
    last_sequence: int
    epoch: int


class OpenProducer(Request[ProducerOpened], kw_only=True):
    """Register a producer name. A newer session of the same name fences the older one."""

    reply: ClassVar[type[Reply]] = ProducerOpened
    producer: str
    incarnation: str


class Published(Reply, kw_only=True):
    """Where the run stands: entries first_entry .. first_entry+count-1 of the ledger, durable on ack_quorum bookies.

    duplicate: it (or part of it) had been stored before. ledger is 0 if it was stored so long ago that its place is
    no longer remembered.
    """

    ledger: int
    first_entry: int
    count: int
    duplicate: bool = False


class Publish(Request[Published], kw_only=True):
    """Append one run (storage.frame.Run) with consecutive sequences first_sequence, first_sequence+1, ...

    Sequences at or below the producer's last stored one are not stored again. Answered when confirmed. A gap behind
    the last run waits for its predecessor and is Conflict in the end, unless `follows` says that there is none:
    everything between `follows` and first_sequence was answered with a refusal and will not come again.
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


# -- topic: readers -------------------------------------------------------------------------------------------------


class RunIndex(msgspec.Struct, kw_only=True):
    """The index columns of one confirmed run, as the dispatcher sees it; the payload only by handle.

    columns: the frame's columns section. blob: the shared payload (columns and body) if it is in the tail cache.
    bytes: length of the whole payload.
    """

    ledger: int
    first_entry: int
    count: int
    delayed: bool
    shape: int
    crc: int
    bytes: int
    columns: Blob
    blob: Blob | None = None


class IndexRead(Reply, kw_only=True):
    """Confirmed runs in order. resume: where the next read starts. ended: (ledger, last entry) of closed ledgers
    that lie wholly before `resume`, so that a cursor can step over their ends. last_confirmed: end of the topic.
    """

    runs: list[RunIndex]
    resume: int
    ended: list[tuple[int, int]] = []
    last_confirmed: int = -1


class ReadIndex(Request[IndexRead], kw_only=True):
    """Runs from position `start` (inclusive; the first may begin before it) up to about `limit` messages.

    With nothing there yet, waits up to `wait` ms for a publish. Nothing above the last confirmed entry is shown.
    """

    reply: ClassVar[type[Reply]] = IndexRead
    start: int
    limit: int
    wait: int = 0
    max_bytes: int = 5 * 1024 * 1024


class PayloadRead(Reply, kw_only=True):
    """The payload of one run."""

    count: int
    delayed: bool
    shape: int
    crc: int
    first_entry: int
    payload: Blob


class ReadPayload(Request[PayloadRead], kw_only=True):
    """The run that contains an entry, from the tail cache or a bookie. NotFound if trimmed."""

    reply: ClassVar[type[Reply]] = PayloadRead
    ledger: int
    entry: int


class RowIndex(Reply, kw_only=True):
    """positions (int64, ascending) that exist, with their masked hashes (uint32)."""

    positions: np.ndarray
    hashes: np.ndarray


class ReadRowIndex(Request[RowIndex], kw_only=True):
    """Index columns of single messages anywhere in the topic; positions that were trimmed are left out."""

    reply: ClassVar[type[Reply]] = RowIndex
    positions: np.ndarray


class Ends(Reply, kw_only=True):
    """first: position of the oldest kept entry. last: of the last confirmed one; -1 if there is none."""

    first: int
    last: int
    next: int


class ReadEnds(Request[Ends]):
    """Where the topic begins and ends, for initial positions and seeks."""

    reply: ClassVar[type[Reply]] = Ends


class Found(Reply, kw_only=True):
    """position of the first message published at or after the asked time; the end if there is none."""

    position: int


class FindTime(Request[Found], kw_only=True):
    """Look a publish time up."""

    reply: ClassVar[type[Reply]] = Found
    time: int


class Progress(Request[Done], kw_only=True):
    """A durable subscription tells how far it has come; the topic trims below the slowest. gone: it was deleted.

    number grows with every new statement of a subscription, so that a late one is recognised; 0: not numbered.
    """

    reply: ClassVar[type[Reply]] = Done
    subscription: str
    mark_delete: int
    gone: bool = False
    number: int = 0


class Replicated(Reply, kw_only=True):
    """remaining: fragments that still name a lost bookie; 0 when every run has its copies again."""

    remaining: int


class Replicate(Request[Replicated], kw_only=True):
    """These bookies will never come back: copy what they held. Answered at once; ask again to see it finish."""

    reply: ClassVar[type[Reply]] = Replicated
    lost: list[str]


class DeleteTopic(Request[Done], kw_only=True):
    """Delete the partition with all its ledgers; refuses while subscriptions remain unless force."""

    reply: ClassVar[type[Reply]] = Done
    force: bool = False


# -- dispatcher -----------------------------------------------------------------------------------------------------


class Attached(Reply, kw_only=True):
    """session stands for this consumer from now on; it ends after `lease` ms without a Poll or Acknowledge."""

    session: int
    epoch: int
    lease: int


class Attach(Request[Attached], kw_only=True):
    """A consumer joins, or comes back to a new owner with what it still holds.

    incarnation is unique per consumer object and never reused; a repetition returns the same session. holding:
    unacknowledged positions from before the owner changed, which stay with this consumer.
    """

    reply: ClassVar[type[Reply]] = Attached
    consumer: str
    incarnation: str
    ranges: list[tuple[int, int]] = []
    priority: int = 0
    holding: np.ndarray = msgspec.field(default_factory=_positions)


class Part(msgspec.Struct, kw_only=True):
    """Messages of one run for one consumer.

    rows: uint32 offsets from first_entry, ascending. redeliveries: uint8 counts of redelivery, empty = all zero.
    dispatch: the dispatcher's number of the first row, the others follow. blob None: ask the topic (ReadPayload).
    """

    ledger: int
    first_entry: int
    count: int
    delayed: bool
    shape: int
    crc: int
    dispatch: int
    rows: np.ndarray
    redeliveries: np.ndarray = msgspec.field(default_factory=lambda: np.empty(0, np.uint8))
    blob: Blob | None = None


class Event(msgspec.Struct, kw_only=True):
    """Something a consumer is told: assigned, revoked or drained hash ranges (inclusive pairs)."""

    kind: str
    ranges: list[tuple[int, int]] = []
    epoch: int = 0


class Delivery(Reply, kw_only=True):
    """Answer to a Poll. confirmed: highest acknowledgement turn that is durable with all before it."""

    turn: int
    parts: list[Part] = []
    confirmed: int = 0
    events: list[Event] = []


class Poll(Request[Delivery], kw_only=True):
    """Wait up to `wait` ms for messages. A repetition of a turn brings the same delivery again, never a second one.

    granted: messages that this consumer was ever ready to take, cumulative over the session (permits are the
    difference to what was ever sent). acks: positions done; ack_turn numbers this group of acknowledgements.
    """

    reply: ClassVar[type[Reply]] = Delivery
    session: int
    turn: int
    granted: int
    wait: int = 1000
    ack_turn: int = 0
    acks: np.ndarray = msgspec.field(default_factory=_positions)


class Acknowledged(Reply, kw_only=True):
    """confirmed: highest acknowledgement turn that is durable with all before it."""

    confirmed: int


class Acknowledge(Request[Acknowledged], kw_only=True):
    """Acknowledge and grant permits without polling; also renews the lease. granted as in Poll.

    durable: answer only when this turn is confirmed.
    """

    reply: ClassVar[type[Reply]] = Acknowledged
    session: int
    ack_turn: int
    granted: int = 0
    acks: np.ndarray = msgspec.field(default_factory=_positions)
    durable: bool = False


class NegativeAcknowledge(Request[Done], kw_only=True):
    """Give messages back for redelivery after `delay` ms. everything: all that this consumer holds.

    counted: the redelivery count rises (a hand-back at close does not count).
    """

    reply: ClassVar[type[Reply]] = Done
    session: int
    positions: np.ndarray = msgspec.field(default_factory=_positions)
    delay: int = 0
    everything: bool = False
    counted: bool = True


class Detach(Request[Done], kw_only=True):
    """The consumer leaves; what it holds goes to the others in order."""

    reply: ClassVar[type[Reply]] = Done
    session: int


class Explain(Request[Text], kw_only=True):
    """Why is this key, hash or message not being delivered? Give one of the three."""

    reply: ClassVar[type[Reply]] = Text
    key: bytes | None = None
    hash: int | None = None
    position: int | None = None


class Admin(Request[Text], kw_only=True):
    """An administrative verb of a subscription: seek, skip, clear_backlog, expire, delete, pending, blocked_keys,
    what_if, owner, assignments, delayed, pause, resume; arguments as JSON.
    """

    reply: ClassVar[type[Reply]] = Text
    verb: str
    arguments: str = "{}"


# -- controller -----------------------------------------------------------------------------------------------------


class TopicSettings(msgspec.Struct, kw_only=True):
    """Per-topic settings, kept in its metadata record."""

    partitions: int = 1
    ensemble: int = 2
    write_quorum: int = 2
    ack_quorum: int = 2
    roll_entries: int = 5_000_000
    roll_bytes: int = 1024 * 1024 * 1024
    roll_ms: int = 4 * 3600 * 1000
    retention_ms: int = 0
    retention_bytes: int = 0
    ttl_ms: int = 0
    max_delay_ms: int = 0


class SubscriptionSettings(msgspec.Struct, kw_only=True):
    """Per-subscription settings, kept in its metadata record. Names after Pulsar's, in snake_case."""

    type: str = "key_shared"
    policy: str = "draining_hashes"
    remember_unacked_keys: bool = False
    allow_out_of_order_delivery: bool = False
    selector: str = "consistent_hashing"
    replica_points: int = 100
    initial_position: str = "latest"
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    look_ahead_per_consumer: int = 4_000
    look_ahead_per_subscription: int = 40_000
    unblocking_interval_ms: int = 10
    lease_ms: int = 10_000
    delay_key_policy: str = "pass"
    max_redeliver_count: int = 0
    dead_letter_topic: str = ""
    delayed_delivery_enabled: bool = True
    delayed_tracker: str = "bucket"
    delayed_delivery_tick_time_millis: int = 0
    delayed_delivery_min_index_count_per_bucket: int = 50_000
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: int = 300
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = 5_000
    delayed_delivery_max_num_buckets: int = -1


class Located(Reply, kw_only=True):
    """Address of each partition's owner, by partition."""

    addresses: list[str]
    settings: str = "{}"


class CreateTopic(Request[Done], kw_only=True):
    """Create a topic; Conflict if it exists with other settings."""

    reply: ClassVar[type[Reply]] = Done
    topic: str
    settings: TopicSettings


class LocateTopic(Request[Located], kw_only=True):
    """Addresses of the owners of all partitions; starts those that are not running. NotFound."""

    reply: ClassVar[type[Reply]] = Located
    topic: str


class LocateSubscription(Request[Located], kw_only=True):
    """Addresses of the dispatchers of all partitions. With settings, the subscription is created if it is new."""

    reply: ClassVar[type[Reply]] = Located
    topic: str
    subscription: str
    settings: SubscriptionSettings | None = None


class Suspect(Request[Done], kw_only=True):
    """An address did not answer; the controller looks, and replaces it if it is dead."""

    reply: ClassVar[type[Reply]] = Done
    address: str


class BookieList(Reply, kw_only=True):
    """Bookies that answer: stable id and present address, in order of id. read_only: ids that take no new runs."""

    ids: list[str]
    addresses: list[str]
    read_only: list[str] = []


class ListBookies(Request[BookieList]):
    """The bookies that a topic may choose from."""

    reply: ClassVar[type[Reply]] = BookieList


class Manage(Request[Text], kw_only=True):
    """An administrative verb of the cluster: topics, subscriptions, delete_topic, status; arguments as JSON."""

    reply: ClassVar[type[Reply]] = Text
    verb: str
    arguments: str = "{}"
