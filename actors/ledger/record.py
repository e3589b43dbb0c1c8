"""The metadata record of one partition: its owner, and the chain of ledgers that is its log.

The record lives under `partition/<topic>/<partition>` as numbered versions. The process that creates version n+1 with a
higher epoch owns the partition; the previous owner loses its next write, whatever it wants to write, and stops. So the
record is the only place where something becomes true for good: a new ledger, a new fragment of an ensemble, the end of
a ledger, what was trimmed, which subscriptions must be waited for. Runs themselves never pass through it.

A ledger is OPEN while its writer lives, IN_RECOVERY from the moment a new owner appears, CLOSED when its last entry
is settled. A fragment names the bookies from `first_run` on, until the next fragment begins. All structs are
immutable: a change makes a new record, and it is ours only once its version was created.

**Quorums.** A ledger's ensemble has E bookies; every run is written to Qw of them and confirmed by Qa. The unit that is
striped is the *run* (one append): run i goes to the Qw slots that start at i mod E. Three numbers follow:

* a run is confirmed when Qa members of its write set have it on disk;
* a writer is shut out when (E - Qa) + 1 bookies of the ensemble refuse it, because then fewer than Qa are left to
  it, whichever write set it tries;
* a run was certainly never confirmed when (Qw - Qa) + 1 members of its write set say explicitly that they do not
  have it *and never will from that writer* (the question fences, BK1): then fewer than Qa can have it.

Silence, damage and time-outs count for nothing in any of the three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import msgpack
import msgspec

from sluice.actors.messages import TopicSettings
from sluice.storage.errors import Corrupt, Invalid, InvariantViolation
from sluice.storage.format.position import EARLIEST, position


@dataclass(frozen=True, slots=True)
class Quorum:
    """Sizes of ensemble, write quorum and ack quorum. Raises Invalid unless E >= Qw >= Qa >= 1."""

    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise Invalid(
                f"ensemble {self.ensemble} >= write quorum {self.write} >= ack quorum {self.ack} >= 1 does not hold"
            )

    @property
    def fence_answers(self) -> int:
        """How many bookies of an ensemble must be fenced before the old writer is certainly shut out."""
        return self.ensemble - self.ack + 1

    @property
    def missing_answers(self) -> int:
        """How many explicit "no such run" prove that a run was never confirmed."""
        return self.write - self.ack + 1

    def write_set(self, run: int, bookies: Sequence[str]) -> tuple[str, ...]:
        """The bookies of an ensemble that store a run, in order of their slots."""
        first = run % self.ensemble
        ring = tuple(bookies)
        return (ring + ring)[first : first + self.write]

    def stored_in(self, slot: int, run: int) -> bool:
        """Whether a slot of the ensemble belongs to the write set of a run."""
        return (slot - run) % self.ensemble < self.write


FORMAT = 1
WITH_HISTORY = 2
"""The format of records that name objects, which code that knows only FORMAT must not take for lost, or forget."""


class LedgerState(StrEnum):
    """The stage of a ledger's life."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """A part of a ledger that one set of bookies holds: from this run on, whose first entry is first_entry."""

    first_run: int
    first_entry: int
    bookies: tuple[str, ...]


class HistoryPart(msgspec.Struct, frozen=True, array_like=True):
    """An object with runs from first_run on, whose first entry is first_entry (storage.history.part).

    footer_crc: CRC32C of the last footer_bytes of its size bytes.
    """

    name: str
    size: int
    footer_bytes: int
    footer_crc: int
    first_run: int
    first_entry: int


class Offloaded(msgspec.Struct, frozen=True, array_like=True):
    """The copy of a whole ledger in the object store, complete since `at` (ms)."""

    at: int
    parts: tuple[HistoryPart, ...]

    def part_of(self, run: int) -> HistoryPart:
        """The object that holds a run."""
        return next(part for part in reversed(self.parts) if part.first_run <= run)


class CompactedPart(msgspec.Struct, frozen=True, array_like=True):
    """An object with last messages of keys, which lie at positions first .. last (storage.history.compacted).

    footer_crc: CRC32C of the last footer_bytes of its size bytes.
    """

    name: str
    size: int
    footer_bytes: int
    footer_crc: int
    first: int
    last: int
    messages: int


class Compacted(msgspec.Struct, frozen=True, array_like=True):
    """The last message of each key up to `horizon`, in the object store since `at` (ms).

    base: where the log began when it was compacted for the first time. last: of the last message with a payload, -1 for
    none.
    """

    base: int
    horizon: int
    at: int
    last: int
    parts: tuple[CompactedPart, ...]

    @property
    def messages(self) -> int:
        """How many it has."""
        return sum(part.messages for part in self.parts)

    @property
    def bytes(self) -> int:
        """Return the size of the objects in the store, in bytes."""
        return sum(part.size for part in self.parts)


class Erasure(msgspec.Struct, frozen=True, array_like=True):
    """The messages of a key in ledgers up to the id `until` are being forgotten, since `at` (ms).

    ledgers: those that held some and hold none any more, and those trimmed since; messages: how many. Bookies may still
    have to be told.
    """

    key: bytes
    until: int
    at: int
    ledgers: tuple[int, ...] = ()
    messages: int = 0

    def noting(self, ledgers: Sequence[int], messages: int = 0) -> Erasure:
        """The same, where so many more messages were erased in these ledgers, as far as it is for them."""
        known = {*self.ledgers, *(ledger for ledger in ledgers if ledger <= self.until)}
        return msgspec.structs.replace(self, ledgers=tuple(sorted(known)), messages=self.messages + messages)


class Erased(msgspec.Struct, frozen=True, array_like=True):
    """An erasure that is complete. asked_at: ms. at: ms, when the messages were forgotten everywhere. messages: how
    many. The record does not keep the key.
    """

    asked_at: int
    at: int
    messages: int


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """The requests of operators that are not done yet. keep_bytes, before: see messages.Offload, -1 for nothing;
    compact: see messages.Compact.
    """

    keep_bytes: int = -1
    before: int = -1
    compact: bool = False

    @property
    def offload(self) -> bool:
        """Whether ledgers are to leave."""
        return max(self.keep_bytes, self.before) >= 0


class LedgerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One ledger. last_run and last_entry are settled when CLOSED (-1: empty); bytes is payload bytes, so far.

    opened_at and closed_at are milliseconds since 1970 by the owner's clock. One that was offloaded has no fragments
    from the moment on when its bookies may forget it.
    """

    id: int
    state: LedgerState
    ensemble: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    last_run: int = -1
    last_entry: int = -1
    bytes: int = 0
    opened_at: int = 0
    closed_at: int = 0
    offloaded: Offloaded | None = None

    @property
    def quorum(self) -> Quorum:
        """The sizes as an object."""
        return Quorum(self.ensemble, self.write_quorum, self.ack_quorum)

    def fragment_of(self, run: int) -> Fragment:
        """The fragment that holds a run."""
        for fragment in reversed(self.fragments):
            if fragment.first_run <= run:
                return fragment
        raise InvariantViolation(f"ledger {self.id} has no fragment for run {run}")

    def write_set(self, run: int) -> tuple[str, ...]:
        """The bookies that hold a run."""
        return self.quorum.write_set(run, self.fragment_of(run).bookies)

    def with_fragment(self, fragment: Fragment) -> LedgerRecord:
        """This ledger with a new last fragment; one that begins at the same run replaces the last.

        A fragment can never begin before the last one (BK2): that would hand confirmed runs to bookies that do not
        have them.
        """
        last = self.fragments[-1]
        if fragment.first_run < last.first_run:
            raise InvariantViolation(f"ledger {self.id}: fragment at run {fragment.first_run} < {last.first_run}")
        kept = self.fragments[:-1] if fragment.first_run == last.first_run else self.fragments
        return msgspec.structs.replace(self, fragments=(*kept, fragment))

    def bookies(self) -> list[str]:
        """Every bookie that holds some of it, sorted."""
        return sorted({name for fragment in self.fragments for name in fragment.bookies})


class StoredRun(msgspec.Struct, frozen=True, array_like=True):
    """A run that a producer stored: sequences first .. first+count-1 are entries from first_entry on."""

    first: int
    count: int
    ledger: int
    first_entry: int


_SOURCE = "="
"""The mark before the name of a source where a producer's name stands; no producer's name has it."""


def producer_of(source: str) -> str:
    """Return the name that stands for a source in place of a producer's."""
    return _SOURCE + source


def is_source(producer: str) -> bool:
    """Whether a run of this producer holds results."""
    return producer.startswith(_SOURCE)


def source_of(producer: str) -> str:
    """The name of the source that stands there."""
    return producer.removeprefix(_SOURCE)


class ProducerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The state of a producer: its highest stored sequence, its last runs, and when it was last heard of (ms)."""

    highest: int
    recent: tuple[StoredRun, ...]
    seen: int


class ResultsRecord(msgspec.Struct, frozen=True, array_like=True):
    """The results that are stored of one source. finished: for messages up to this position no results are remembered
    any more. cursor: encoded (storage.format.cursor), the messages above it whose results are stored. seen: when the
    source was last heard of (ms).
    """

    finished: int
    cursor: bytes
    seen: int


class GivenUp(msgspec.Struct, frozen=True, array_like=True):
    """A run that nobody can read and that an operator gave up at a time (ms). Its entries are gone."""

    ledger: int
    run: int
    first_entry: int
    count: int
    at: int

    @property
    def end(self) -> int:
        """The entry behind its last one."""
        return self.first_entry + self.count


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """The producer that has exclusive access to a partition, and the gateway or process to ask about it."""

    name: str
    incarnation: str
    home: str


class Exclusivity(msgspec.Struct, frozen=True, array_like=True):
    """The durable part of exclusive access. epoch: -1 before any producer had it."""

    epoch: int = -1
    holder: Holder | None = None


class PartitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything durable about a partition except its runs.

    released names ledgers that left the chain, until the garbage collection has written them down
    (actors.ledger.garbage_collection). producers holds what was confirmed up to (covered_ledger, covered_run), both
    inclusive; what came later is found in the frames. subscriptions maps a durable subscription to a mark-delete
    position that it has surely reached. last_trimmed: the last message that was trimmed, which stays the last one
    for as long as nothing follows it. ever_given_up: runs were given up in ledgers that are gone. terminated: nothing
    is stored any more. highest_ledger: the highest id that a ledger of it ever had, 0 before the first; None in a
    record of a version that did not keep it. erasures: keys whose messages are being forgotten; erased: the last that
    were. asked: what else operators have asked for and is not done. first_epoch: what owners of an earlier epoch wrote
    is of a topic of this name that was deleted.
    """

    format: int = FORMAT
    topic: str
    partition: int
    epoch: int = 0
    owner: str = ""
    settings: TopicSettings
    ledgers: tuple[LedgerRecord, ...] = ()
    """Invariant: ids ascend, and only the last ledger may be open or in recovery. A deleted partition has none."""
    trimmed_before: int = 0
    last_trimmed: int = EARLIEST
    subscriptions: dict[str, int] = {}
    ever_subscribed: bool = False
    producers: dict[str, ProducerRecord] = {}
    results: dict[str, ResultsRecord] = {}
    covered_ledger: int = 0
    covered_run: int = -1
    deleted: bool = False
    released: tuple[int, ...] = ()
    given_up: tuple[GivenUp, ...] = ()
    ever_given_up: bool = False
    exclusivity: Exclusivity = Exclusivity()
    terminated: bool = False
    highest_ledger: int | None = None
    compacted: Compacted | None = None
    erasures: tuple[Erasure, ...] = ()
    erased: tuple[Erased, ...] = ()
    asked: Asked = Asked()
    first_epoch: int = 0

    def __post_init__(self) -> None:
        stored = self.compacted or self.erasures or any(one.offloaded is not None for one in self.ledgers)
        if self.format == FORMAT and stored:
            msgspec.structs.force_setattr(self, "format", WITH_HISTORY)

    def lost_run(self, ledger_id: int, run: int) -> GivenUp | None:
        """The note that this run was given up, if it was."""
        return next((lost for lost in self.given_up if (lost.ledger, lost.run) == (ledger_id, run)), None)

    def with_given_up(self, lost: GivenUp) -> PartitionRecord:
        """This record with a run given up; unchanged if it is so already, or its ledger is gone."""
        if self.ledger(lost.ledger) is None or self.lost_run(lost.ledger, lost.run) is not None:
            return self
        return msgspec.structs.replace(self, given_up=(*self.given_up, lost))

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        """The ledger of this id, if it is still in the chain."""
        return next((ledger for ledger in self.ledgers if ledger.id == ledger_id), None)

    def closed_for(self, ledger: LedgerRecord, now: int) -> int:
        """Return for how many milliseconds a ledger of the chain has been closed.

        One that is closed in the future was closed by a clock that was ahead, and for as long as it says everything
        behind it would be kept as well. It was closed before the ledgers behind it, and the first of their times that
        lies in the past counts.
        """
        if ledger.closed_at <= now:
            return now - ledger.closed_at
        following = (other for other in self.ledgers if other.id > ledger.id)
        times = (at for other in following for at in (other.opened_at, other.closed_at) if 0 < at <= now)
        return now - next(times, ledger.closed_at)

    def check(self) -> None:
        """Raise InvariantViolation for a chain that no reader could follow."""
        for old, new in pairwise(self.ledgers):
            if old.id >= new.id or old.state is not LedgerState.CLOSED:
                raise InvariantViolation(f"ledger {new.id} cannot follow {old.id} ({old.state.value})")
        if self.deleted and self.ledgers:
            raise InvariantViolation(f"{self.topic}-{self.partition} is deleted and has ledgers")

    def with_ledger(self, ledger: LedgerRecord) -> PartitionRecord:
        """This record with one ledger of the chain replaced. Raises InvariantViolation if it is not there."""
        if self.ledger(ledger.id) is None:
            raise InvariantViolation(f"ledger {ledger.id} is not in the chain of {self.topic}-{self.partition}")
        replaced = tuple(ledger if old.id == ledger.id else old for old in self.ledgers)
        return msgspec.structs.replace(self, ledgers=replaced)

    def with_new_ledger(self, ledger: LedgerRecord) -> PartitionRecord:
        """This record with a ledger at the end of the chain, where only one may be open and ids ascend."""
        longer = msgspec.structs.replace(self, ledgers=(*self.ledgers, ledger), highest_ledger=ledger.id)
        longer.check()
        return longer

    def without_ledgers(self, ids: Sequence[int]) -> PartitionRecord:
        """This record without some ledgers at the head of the chain."""
        kept = tuple(ledger for ledger in self.ledgers if ledger.id not in ids)
        before = max([self.trimmed_before, *(position(gone + 1, 0) for gone in ids)])
        stored = (position(old.id, old.last_entry) for old in self.ledgers if old.id in ids and old.last_entry >= 0)
        given_up = tuple(lost for lost in self.given_up if lost.ledger not in ids)
        trimmed = msgspec.structs.replace(
            self,
            ledgers=kept,
            trimmed_before=before,
            last_trimmed=max([self.last_trimmed, *stored]),
            given_up=given_up,
            ever_given_up=self.ever_given_up or given_up != self.given_up,
            erasures=tuple(one.noting(ids) for one in self.erasures),
        )
        return trimmed.with_released(ids)

    def with_released(self, ids: Sequence[int]) -> PartitionRecord:
        """This record with more released ledgers, which bookies that hold runs of them may delete."""
        return msgspec.structs.replace(self, released=tuple(sorted({*self.released, *ids})))


def record_key(topic: str, partition: int) -> str:
    """Return the key of a partition's record in the metadata store."""
    return f"partition/{topic}/{partition}"


def unpack_record(value: bytes) -> PartitionRecord:
    """The record from a version's bytes, for readers. Raises Corrupt."""
    try:
        plain = msgpack.unpackb(value)
    except (ValueError, msgpack.UnpackException) as error:
        raise Corrupt(f"a partition's record cannot be read: {error}") from error
    return decode_record(plain)


def encode_record(record: PartitionRecord) -> dict[str, Any]:
    """The record as plain maps, lists and numbers, for `actors.ownership.fenced_record`."""
    plain: dict[str, Any] = msgspec.to_builtins(record)
    return plain


def decode_record(value: dict[str, Any]) -> PartitionRecord:
    """The record back. Raises Corrupt if this is none, or of a format this code does not know."""
    try:
        record = msgspec.convert(value, PartitionRecord)
    except msgspec.ValidationError as error:
        raise Corrupt(f"a partition's record cannot be read: {error}") from error
    if record.format not in (FORMAT, WITH_HISTORY):
        raise Corrupt(f"a partition's record has format {record.format}, known are {FORMAT} and {WITH_HISTORY}")
    return record
