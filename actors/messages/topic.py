"""Requests of producers, readers and subscriptions to the owner of a partition."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
import numpy as np

from actors.messages.common import Done, Text, no_rows
from actors.wire import Blob, Reply, Request
from storage.position import entry_of, ledger_of

AccessMode = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
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

    home: who can be asked whether it is still there (`ProducersHere`); empty for nobody. access: Pulsar's access mode,
    of a producer with a home. topic_epoch: what it was told when it had the partition to itself. again: the name was
    made up for its client, which comes back on another connection: who has it is an earlier self. Of two others with a
    home the one that is there stays. resumes: this very producer was open before, and may have something on its way;
    also where the topic was terminated meanwhile it learns what became of that.
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
    """A producer with a home has left, or does not wait for its turn any more."""

    reply: ClassVar[type[Reply]] = Done
    producer: str
    incarnation: str


class ProducersPresent(Reply, kw_only=True):
    """The incarnations that are still there."""

    incarnations: list[str]


class ProducersHere(Request[ProducersPresent], kw_only=True):
    """Which of these producers on a partition does a home still serve?

    news: what they are told by it. taken: somebody else has the partition to itself now, and they are to give way.
    over: it takes no more messages; they leave when what they sent has its outcome, and their clients come again and
    learn it.
    """

    reply: ClassVar[type[Reply]] = ProducersPresent
    topic: str
    partition: int
    incarnations: list[str]
    news: ProducerNews = "none"


class ClientsHere(Request[Text], kw_only=True):
    """Which clients of Pulsar's protocol a gateway serves on a partition: its producers and consumers, as JSON."""

    reply: ClassVar[type[Reply]] = Text
    topic: str
    partition: int


class RatesHere(Request[Text], kw_only=True):
    """What a gateway lets pass of rates that hold for all of them, as JSON: see actors.pulsar.conversation.rates."""

    reply: ClassVar[type[Reply]] = Text


class SendAway(Request[Done], kw_only=True):
    """Clients on a topic, or on one partition, must connect again with their producers and consumers."""

    reply: ClassVar[type[Reply]] = Done
    topic: str
    partition: int | None = None


class Published(Reply, kw_only=True):
    """The run is stored: entries first_entry .. first_entry+count-1 of the ledger, durable on ack_quorum bookies.

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


class RunIndex(msgspec.Struct, kw_only=True):
    """The index columns of one confirmed run, as the dispatcher sees it; the payload only by handle.

    columns: the frame's columns section. blob: the payload (columns and body): by handle, or here if it is small.
    bytes: length of the whole payload. cut: of a compacted log, the rows of the run that are left (uint32, ascending);
    columns and blob hold these alone. Empty: it is whole.
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
    cut: np.ndarray = msgspec.field(default_factory=no_rows)

    @property
    def rows(self) -> int:
        """How many messages of it there are."""
        return len(self.cut) or self.count


class IndexRead(Reply, kw_only=True):
    """Confirmed runs in order. resume: where the next read starts. ended: (ledger, last entry) of closed ledgers
    that lie wholly before `resume`, so that a cursor can step over their ends. last_confirmed: end of the topic.
    lost: (ledger, first entry, count) of runs in between that were given up because nobody can read them. ends: the
    topic was terminated, and there is nothing from `resume` on, for good. table: this is of a compacted log, and what
    is not here between `start` and `resume` does not count any more; -1: it is of the log itself. table, since: to be
    repeated with the next question.
    """

    runs: list[RunIndex]
    resume: int
    ended: list[tuple[int, int]] = []
    last_confirmed: int = -1
    lost: list[tuple[int, int, int]] = []
    ends: bool = False
    table: int = -1
    since: int = -1


class ReadIndex(Request[IndexRead], kw_only=True):
    """Runs from position `start` (inclusive; the first may begin before it) up to about `limit` messages.

    With nothing there yet, waits up to `wait` ms for a publish, or for the topic to be terminated. Nothing above the
    last confirmed entry is shown.
    compacted: of each key the last message alone, as far as the log was compacted. table, since: as in the last answer,
    from whose `resume` on this goes on; who begins, or was elsewhere, says nothing.
    """

    reply: ClassVar[type[Reply]] = IndexRead
    start: int
    limit: int
    wait: int = 0
    max_bytes: int = 5 * 1024 * 1024
    compacted: bool = False
    table: int = -1
    since: int = -1


class PayloadRead(Reply, kw_only=True):
    """The payload of one run. ahead: other runs that came along, by first entry; they have no `ahead` themselves.

    cut: the rows that the payload holds (uint32, ascending), whose checksum crc is then; empty: it is the whole run.
    """

    count: int
    delayed: bool
    shape: int
    crc: int
    first_entry: int
    payload: Blob
    ahead: list[PayloadRead] = []
    cut: np.ndarray = msgspec.field(default_factory=no_rows)


class ReadPayload(Request[PayloadRead], kw_only=True):
    """The run that contains an entry, from the tail cache or a bookie. NotFound if trimmed.

    again: an earlier answer could not be used (its handle is gone, its checksum wrong), so read a verified copy anew.
    ahead: entries of the ledger (uint32, ascending) that are wanted next. Small runs of them come along, as many as
    one answer may carry; what cannot be read now is left out.
    wanted: of the ledger's entries (uint32, ascending), those for which the run is read. rows_from: of runs of at least
    so many bytes these rows, and those in `ahead`, are enough (PayloadRead.cut); 0: whole runs are wanted.
    """

    reply: ClassVar[type[Reply]] = PayloadRead
    ledger: int
    entry: int
    again: bool = False
    ahead: np.ndarray = msgspec.field(default_factory=no_rows)
    wanted: np.ndarray = msgspec.field(default_factory=no_rows)
    rows_from: int = 0


class RowIndex(Reply, kw_only=True):
    """positions (int64, ascending) that exist, with their masked hashes (uint32)."""

    positions: np.ndarray
    hashes: np.ndarray


class ReadRowIndex(Request[RowIndex], kw_only=True):
    """Index columns of single messages anywhere in the topic; positions that were trimmed are left out."""

    reply: ClassVar[type[Reply]] = RowIndex
    positions: np.ndarray


class Ends(Reply, kw_only=True):
    """first: position of the oldest kept entry. last: of the last confirmed one; -1 if there is none.

    ledgers: (id, last entry) of every kept ledger in order; the last entry is None while the ledger is open. compacted:
    `last` is of the compacted log.
    """

    first: int
    last: int
    next: int
    ledgers: list[tuple[int, int | None]] = []
    compacted: bool = False

    def last_entries(self) -> dict[int, int]:
        """The last confirmed entry of each kept ledger, by its id, in order; -1 for one that is empty."""
        # An open ledger reaches as far as what is confirmed, which may lie in the one before it.
        confirmed = {ledger_of(self.last): entry_of(self.last)} if self.last >= 0 else {}
        return {
            ledger: confirmed.get(ledger, -1) if closed_at is None else closed_at for ledger, closed_at in self.ledgers
        }


class Terminate(Request[Ends]):
    """Take no more messages, for good. Answered with the end when that is durable; repetitions get the same answer."""

    reply: ClassVar[type[Reply]] = Ends


class ReadEnds(Request[Ends], kw_only=True):
    """Where the topic begins and ends, for initial positions and seeks. compacted: `last` is that of who reads the
    compacted log.
    """

    reply: ClassVar[type[Reply]] = Ends
    compacted: bool = False


class BacklogSize(Reply, kw_only=True):
    """bytes: about how much lies behind the slowest durable subscription; 0 without one. old: whether some of it was
    published before the time that was asked about.
    """

    bytes: int
    old: bool = False


class MeasureBacklog(Request[BacklogSize]):
    """How much waits on the partition, and was some of it published before a time (ms; 0: do not ask)?"""

    reply: ClassVar[type[Reply]] = BacklogSize
    before: int = 0


class Excess(Reply):
    """position: where to go on so that few enough bytes wait; None if no more wait than may."""

    position: int | None


class FindExcess(Request[Excess], kw_only=True):
    """If `limit` bytes or more wait behind a mark-delete position, from which position on are there at most `keep`?

    The mark comes with the question: those that the topic was told (Progress) may be older.
    """

    reply: ClassVar[type[Reply]] = Excess
    mark_delete: int
    limit: int
    keep: int


class PositionFound(Reply, kw_only=True):
    """position of the first message published at or after the asked time; the end if there is none."""

    position: int


class FindTime(Request[PositionFound], kw_only=True):
    """Find the position of a publish time."""

    reply: ClassVar[type[Reply]] = PositionFound
    time: int


class Progress(Request[Done], kw_only=True):
    """A durable subscription reports its position; the topic trims below the slowest one. gone: it was deleted.

    number grows with every new statement of a subscription, so that a late one is recognised; 0: not numbered.
    rejects_keyed_delay: messages with a key and a delay are to be refused at publish (delay_key_policy=reject).
    firm: the subscription goes back to this mark; answered when it is durable and nothing above it is being trimmed.
    """

    reply: ClassVar[type[Reply]] = Done
    subscription: str
    mark_delete: int
    gone: bool = False
    number: int = 0
    rejects_keyed_delay: bool = False
    firm: bool = False


class Replicated(Reply, kw_only=True):
    """remaining: fragments that still name a lost bookie, and closed ledgers whose copies were not counted yet; 0 when
    every run of a closed ledger has its copies again.
    """

    remaining: int


class Replicate(Request[Replicated], kw_only=True):
    """These bookies, and no others, will never come back: copy what they held. Answered at once; ask again to see it
    finish.

    leaving: bookies that still answer, and that nothing is to need any more.
    """

    reply: ClassVar[type[Reply]] = Replicated
    lost: list[str]
    leaving: list[str] = []


class OffloadStatus(Reply, kw_only=True):
    """How the offloading of a partition stands.

    ledger: what is being written, 0 for none; runs_done of its runs_all runs are. asked: an operator's request is not
    done. error: why the last try failed. offloaded_bytes, bookie_bytes: payload of ledgers in the object store, and of
    those on bookies; a ledger may be in both. first_left: the first position that is not in the store, -1 for none.
    undecoded: of the messages that have left since this owner began, so many payloads were not what the topic's schema
    says, and have no values in the columns of its fields.
    """

    ledger: int = 0
    runs_done: int = 0
    runs_all: int = 0
    asked: bool = False
    error: str = ""
    offloaded_ledgers: int = 0
    offloaded_bytes: int = 0
    bookie_bytes: int = 0
    first_left: int = -1
    undecoded: int = 0


class Offload(Request[OffloadStatus], kw_only=True):
    """Let closed ledgers leave for the object store: until at most keep_bytes of them are on bookies alone, or those
    before a ledger id; with neither, only tell. Answered at once; ask again to see it finish.
    """

    reply: ClassVar[type[Reply]] = OffloadStatus
    keep_bytes: int = -1
    before: int = -1


class EraseStatus(Reply, kw_only=True):
    """How the erasing of keys stands.

    keys: how many are being erased; 0: all is done that was asked. ledgers_left: may hold some of their messages, and
    messages were erased so far. error: what it waits for. done_at: when the last one was done (ms), 0 if none was, and
    done_messages how many messages it had.
    """

    keys: int = 0
    ledgers_left: int = 0
    messages: int = 0
    error: str = ""
    done_at: int = 0
    done_messages: int = 0


class Erase(Request[EraseStatus], kw_only=True):
    """Forget the messages of a key that are there now, wherever they lie; without a key, only tell.

    Answered when it is durable that this is to be done; ask again to see it finish. Refused with Invalid for a key that
    no message can have, Overloaded while very many keys are being erased.
    """

    reply: ClassVar[type[Reply]] = EraseStatus
    key: bytes | None = None


class CompactionStatus(Reply, kw_only=True):
    """How the compaction of a partition stands.

    running: it is being done; read_bytes of all_bytes are read, most of them twice. asked: an operator's request is not
    done. done: it was done, at some time. error: why the last try failed. horizon: up to here the log is compacted, -1
    if nothing is; at: since when (ms). messages, bytes: of the table. left_bytes: payload in the log behind it.
    """

    running: bool = False
    read_bytes: int = 0
    all_bytes: int = 0
    asked: bool = False
    done: bool = False
    error: str = ""
    horizon: int = -1
    at: int = 0
    messages: int = 0
    bytes: int = 0
    left_bytes: int = 0


class Compact(Request[CompactionStatus], kw_only=True):
    """Find the last message of each key, up to what is confirmed now, and keep these as a table; ask: else only tell.

    Answered at once; ask again to see it finish.
    """

    reply: ClassVar[type[Reply]] = CompactionStatus
    ask: bool = False


class AcceptLoss(Request[Text], kw_only=True):
    """Durably give up the run that holds an entry, because no copy of it can be read; nothing else changes.

    Refused with Invalid if it can be read, NotFound if the partition has no such entry, Unavailable if that cannot be
    known now. Answered with the run as JSON, even if it was given up before. dry_run: only answer.
    """

    reply: ClassVar[type[Reply]] = Text
    ledger: int
    entry: int
    dry_run: bool = False


class DeleteTopic(Request[Done], kw_only=True):
    """Delete the partition with all its ledgers; refuses while subscriptions remain unless force."""

    reply: ClassVar[type[Reply]] = Done
    force: bool = False
