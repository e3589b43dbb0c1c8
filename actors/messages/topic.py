"""Requests that concern a partition's log as a whole: its ends, its backlog, its copies, its history, its deletion."""

from __future__ import annotations

from typing import ClassVar

from sluice.actors.messages.common import Done, Text
from sluice.actors.ports.wire import Reply, Request
from sluice.storage.format.position import entry_of, ledger_of


class Ends(Reply, kw_only=True):
    """first: position of the oldest kept entry. last: of the last confirmed one; -1 if there is none.

    ledgers: (id, last entry) of every kept ledger in order; the last entry is None while the ledger is open. compacted:
    `last` is of the compacted log. heard: the highest number of a statement (Progress) of the subscription that was
    named, 0 if this owner has heard none.
    """

    first: int
    last: int
    next: int
    ledgers: list[tuple[int, int | None]] = []
    compacted: bool = False
    heard: int = 0

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
    """A request for the ends of a topic, for initial positions and seeks. compacted: `last` is that of the compacted
    log. subscription: whose statements the answer tells of (Ends.heard).
    """

    reply: ClassVar[type[Reply]] = Ends
    compacted: bool = False
    subscription: str = ""


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
    """A request to copy all that lost bookies held. lost: the bookies, and no others, that never come back. Answered at
    once; ask again to see it finish.

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
    before a ledger id; with neither, only tell. Answered when it is durable that this is to be done; ask again to see
    it finish.
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

    Answered when it is durable that this is to be done; ask again to see it finish.
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
