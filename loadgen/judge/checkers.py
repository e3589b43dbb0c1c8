"""The judge: pure functions that find broken promises in a history's columns. No Spark, no clock, no files.

The rules are those of Jepsen's queue and Kafka checkers, cut to what Sluice promises. `Unknown` is taken seriously:
a send with status `info` may appear once, late or never; an acknowledgement that was invoked and not confirmed may
have happened or not. Nothing is called broken that could be explained by an outcome that nobody was told.

    lost                   a confirmed send that no consumer received and acknowledged
    stored_twice           one message at two places (S4)
    unexpected             a delivery of what nobody sent, or of a send that was refused (S2), or one place that
                           holds two messages (S3)
    order                  a first delivery that comes behind a newer first delivery of its key (S8). The broker's
                           stamp (epoch, dispatch) says what came first. Delayed messages stand apart: between them
                           and others no order is promised
    overlap                a delivery to one consumer while another still holds a message of the same key (S9): from
                           received until let go, or until the session ended
    unexplained_redelivery a second delivery although the first holder neither gave the message back nor lost its
                           session, and the owner did not change (S5)
    acked_redelivered      a delivery after a confirmed acknowledgement (S6); such a row is not counted as
                           unexplained as well
    early                  a delayed message before its time (S10), by more than a clock that leapt explains
                           (`loadgen.judge.wrong_clocks`); what one explains is told as information
    redelivery_order       with `nack_order=key`: a repeated delivery that a later message of its key has overtaken, or
                           that comes while one is held (`loadgen.judge.repeats`). Without: told as information

Each check works on whole columns: a message gets a number that rises with (key, key_seq), rows are sorted once, and
a running maximum shows what came behind. Python loops run only over keys that are already known to be broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.loadgen.base.history import (
    ACKS,
    DEATH,
    DETACH,
    EVENTS,
    EXPIRED,
    FAIL,
    OK,
    OWNER_CHANGE,
    RECEIVES,
    SENDS,
    Int64s,
)
from sluice.loadgen.judge.column_operations import (
    Mask,
    distinct,
    ints,
    last_before,
    mask,
    one_to_one,
    running_end,
    sorted_pairs,
)
from sluice.loadgen.judge.repeats import Deliveries, out_of_order
from sluice.loadgen.judge.wrong_clocks import WrongClock, permitted
from sluice.storage.format.hashing import hash_column, reduce_hash
from sluice.storage.format.position import ENTRY_BITS, show

VIOLATIONS = (
    "lost",
    "stored_twice",
    "unexpected",
    "order",
    "overlap",
    "unexplained_redelivery",
    "acked_redelivered",
    "early",
    "redelivery_order",
)
INFORMATION = {
    "redelivery_order": "{:,} redeliveries overtaken by later messages of their key",
    "early": "{:,} delayed messages early by a clock that leapt",
}
"""The findings that are no broken promises, in words."""
CHECKED = ("messages", "keys", "keys_in_flight_together", "hashes_moved", "delayed", "ordered")
MAX_EXAMPLES = 5
_FOREVER = np.iinfo(np.int64).max


@dataclass
class Findings:
    """The findings of a judge in one history or in one part of it; parts add up with `merge`.

    violations: how many of each kind. information: what is no broken promise as the subscription is set. checked: how
    much there was to check. messages: counts by outcome. examples: a few sentences for each kind that was found.
    """

    violations: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VIOLATIONS, 0))
    checked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHECKED, 0))
    messages: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("published", "confirmed", "unknown", "delivered", "redelivered", "acked"), 0
        )
    )
    information: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """No promise was seen broken; says nothing about whether anything was looked at."""
        return not any(self.violations.values())

    def merge(self, other: Findings) -> None:
        """Add the findings of another part of the same history (parts are cut by key)."""
        for mine, theirs in (
            (self.violations, other.violations),
            (self.checked, other.checked),
            (self.messages, other.messages),
            (self.information, other.information),
        ):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        for name, lines in other.examples.items():
            kept = self.examples.setdefault(name, [])
            kept.extend(lines[: MAX_EXAMPLES - len(kept)])

    def leave_out(self, kinds: Iterable[str]) -> None:
        """Drop the counts of promises that could not be judged."""
        for kind in kinds:
            self.violations.pop(kind, None)
            self.examples.pop(kind, None)

    def found(self, kind: str, count: int, examples: Iterable[str] = ()) -> None:
        """Note `count` violations of a kind."""
        if count:
            self.violations[kind] += int(count)
            kept = self.examples.setdefault(kind, [])
            for line in examples:
                if len(kept) < MAX_EXAMPLES:
                    kept.append(line)


def judge(
    sends: pa.Table,
    receives: pa.Table,
    acks: pa.Table,
    events: pa.Table,
    *,
    acked_rows: Int64s | None = None,
    nack_order: str = "none",
    clocks: Sequence[WrongClock] = (),
) -> Findings:
    """Judge one history, or one part of it that holds whole keys. Tables as in loadgen.base.history, rows in any order.

    acked_rows: the row of receives that each acknowledgement is of, shape (acks.num_rows,), where that is known;
    without it it is found. nack_order: as the subscription is set. clocks: those that leapt. Raises ValueError if a
    table lacks a column of its schema.
    """
    for table, schema in ((sends, SENDS), (receives, RECEIVES), (acks, ACKS), (events, EVENTS)):
        missing = [name for name in schema.names if name not in table.schema.names]
        if missing:
            raise ValueError(f"the history lacks the column {missing[0]!r}")
    case = _Case(sends, receives, acks, events, acked_rows)
    findings = Findings()
    case.check_sends(findings)
    case.check_order(findings)
    case.check_overlap(findings)
    case.check_redeliveries(findings)
    case.check_early(findings, clocks)
    case.check_repeats(findings, promised=nack_order == "key")
    return findings


def nothing_checked(findings: Findings, *, moves_expected: bool = False, delays_expected: bool = False) -> list[str]:
    """Why this judgement is worth nothing, one sentence a reason; empty when every check had something to look at."""
    checked = findings.checked
    reasons = []
    if checked["messages"] == 0:
        reasons.append("no message was delivered, so nothing was checked")
    elif checked["keys"] == 0:
        reasons.append("no message had a key, so no order was checked")
    elif checked["keys_in_flight_together"] == 0:
        reasons.append("no key had two messages in flight at once, so no order was at stake")
    if moves_expected and checked["hashes_moved"] == 0:
        reasons.append("no hash moved between consumers, so the restarts tested nothing")
    if delays_expected and checked["delayed"] == 0:
        reasons.append("no delayed message was delivered, so no delay was checked")
    return reasons


class _Case:
    """The columns of a history, joined: the message of each delivery, and when the delivery ended.

    A message's number rises with (key code, key_seq). `kept` numbers rows of `receives`; every per-row array below
    has the shape (receives.num_rows,).
    """

    def __init__(
        self, sends: pa.Table, receives: pa.Table, acks: pa.Table, events: pa.Table, acked_rows: Int64s | None
    ) -> None:
        self.sends = sends
        self.receives = receives
        self._number_messages()
        self._name_holders(acks, events)
        self._match_sends()
        self._releases(acks, events, acked_rows)

    def _number_messages(self) -> None:
        """Give every message of sends and receives a number, dense, ascending by (key, key_seq)."""
        keys = pa.chunked_array(
            [*self.sends.column("key").chunks, *self.receives.column("key").chunks], pa.binary()
        ).combine_chunks()
        encoded = keys.dictionary_encode()
        self.keys: pa.Array = encoded.dictionary
        codes = encoded.indices.fill_null(len(self.keys)).to_numpy(zero_copy_only=False).astype(np.int64)
        sequences = np.concatenate([ints(self.sends, "key_seq"), ints(self.receives, "key_seq")])
        order = sorted_pairs(codes, sequences)
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(codes[order]) != 0) | (np.diff(sequences[order]) != 0)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(new) - 1
        self.count = int(new.sum())
        first = order[new]
        self.message_key: Int64s = codes[first]
        self.message_seq: Int64s = sequences[first]
        split = self.sends.num_rows
        self.sent, self.got = numbers[:split], numbers[split:]
        self.keyed: Mask = self.message_key[self.got] < len(self.keys)

    def _name_holders(self, acks: pa.Table, events: pa.Table) -> None:
        """Number the consumers, one number over all three tables."""
        tables = (self.receives, acks, events)
        names = pa.chunked_array([c for table in tables for c in table.column("consumer").chunks], pa.string())
        encoded = names.combine_chunks().dictionary_encode()
        self.consumers: list[str] = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        first, second = self.receives.num_rows, self.receives.num_rows + acks.num_rows
        self.holder, self.ack_holder, self.event_holder = codes[:first], codes[first:second], codes[second:]

    def _match_sends(self) -> None:
        """The best that is known of each message's send: its status, place and due time, by message number."""
        status = self.sends.column("status")
        ok = mask(pc.equal(status, OK))
        fail = mask(pc.equal(status, FAIL))
        self.is_sent = np.zeros(self.count, np.bool_)
        self.is_sent[self.sent[~fail]] = True
        self.is_ok = np.zeros(self.count, np.bool_)
        self.is_ok[self.sent[ok]] = True
        self.was_tried = np.zeros(self.count, np.bool_)
        self.was_tried[self.sent] = True
        # A retried send may ask for a later time, but the first one that was stored counts: the earliest is sure.
        self.deliver_at = np.full(self.count, _FOREVER)
        np.minimum.at(self.deliver_at, self.sent, ints(self.sends, "deliver_at"))
        self.deliver_at[self.deliver_at == _FOREVER] = 0
        self.partition = ints(self.receives, "partition")
        self.position = ints(self.receives, "position")
        self.received_at = ints(self.receives, "received_at")
        # The broker's stamp as one rank: deliveries of one partition in the order in which they were decided.
        stamp = np.lexsort((ints(self.receives, "dispatch"), ints(self.receives, "epoch"), self.partition))
        self.rank = np.empty(len(stamp), np.int64)
        self.rank[stamp] = np.arange(len(stamp))

    def _releases(self, acks: pa.Table, events: pa.Table, acked_rows: Int64s | None) -> None:
        """Find when each delivery ended: acknowledged or given back by its holder, or the holder's session ended."""
        rows = self.receives.num_rows
        self.acked_at = np.full(rows, _FOREVER)
        self.confirmed_at = np.full(rows, _FOREVER)
        self.nacked_at = np.full(rows, _FOREVER)
        acked, confirmed = ints(acks, "acked_at"), ints(acks, "confirmed_at")
        negative = mask(acks.column("negative"))
        # Each acknowledgement belongs to the last delivery of that place to that consumer that came before it.
        deliveries = (self.holder, self.partition, self.position)
        owners = (self.ack_holder, ints(acks, "partition"), ints(acks, "position"))
        target = last_before(deliveries, self.received_at, owners, acked) if acked_rows is None else acked_rows
        known = target >= 0
        for of_kind, column, value in (
            (~negative, self.acked_at, acked),
            (negative, self.nacked_at, acked),
            (~negative & (confirmed > 0), self.confirmed_at, confirmed),
        ):
            chosen = of_kind & known
            np.minimum.at(column, target[chosen], value[chosen])
        self._share_release(deliveries)
        self.ended_at = self._session_ends(events)
        self.released_at = np.minimum(np.minimum(self.acked_at, self.nacked_at), self.ended_at)

    def _share_release(self, deliveries: tuple[Int64s, Int64s, Int64s]) -> None:
        """Release both deliveries of a message at once that a consumer got twice and acknowledges."""
        order = np.lexsort((self.received_at, *deliveries[::-1]))
        same = np.ones(max(len(order) - 1, 0), np.bool_)
        for column in deliveries:
            same &= np.diff(column[order]) == 0
        earlier, later = order[:-1][same], order[1:][same]
        while True:
            sooner = self.acked_at[later] < self.acked_at[earlier]
            if not sooner.any():
                return
            self.acked_at[earlier[sooner]] = self.acked_at[later[sooner]]

    def _session_ends(self, events: pa.Table) -> Int64s:
        """Return when the session of each delivery ended; the loop runs once an event, not once a message."""
        ends = np.full(self.receives.num_rows, _FOREVER)
        sessions = ints(self.receives, "session")
        over = pc.is_in(events.column("event"), pa.array([DETACH, DEATH, EXPIRED]))
        for row in np.flatnonzero(mask(over)):
            session, partition = events.column("session")[row].as_py(), events.column("partition")[row].as_py()
            mine = self.holder == self.event_holder[row]
            if session >= 0:
                mine &= sessions == session
            if partition >= 0:
                mine &= self.partition == partition
            np.minimum(ends, events.column("at")[row].as_py(), out=ends, where=mine)
        changed = mask(pc.equal(events.column("event"), OWNER_CHANGE))
        self.owner_changes: list[tuple[int, int]] = sorted(
            zip(ints(events, "partition")[changed].tolist(), ints(events, "at")[changed].tolist(), strict=True)
        )
        return ends

    def check_sends(self, findings: Findings) -> None:
        """lost, stored_twice, unexpected, and the counts of messages."""
        received = np.zeros(self.count, np.bool_)
        received[self.got] = True
        finished = np.zeros(self.count, np.bool_)
        finished[self.got[self.acked_at < _FOREVER]] = True
        lost = np.flatnonzero(self.is_ok & ~finished)
        findings.found("lost", len(lost), (f"{self.name(m)} was confirmed and never finished" for m in lost))
        stray = np.flatnonzero(received & ~self.is_sent)
        findings.found("unexpected", len(stray), (f"{self.name(m)} was delivered, nobody sent it" for m in stray))
        self._check_places(findings)
        messages = findings.messages
        messages["published"] = int(self.was_tried.sum())
        messages["confirmed"] = int(self.is_ok.sum())
        messages["unknown"] = int((self.was_tried & self.is_sent & ~self.is_ok).sum())
        messages["delivered"] = int(received.sum())
        messages["redelivered"] = len(self.got) - int(received.sum())
        messages["acked"] = int(finished.sum())
        findings.checked["messages"] = int((received & self.is_sent).sum())
        findings.checked["keys"] = len(np.unique(self.message_key[self.got[self.keyed]]))

    def _check_places(self, findings: Findings) -> None:
        """One message, one place; one place, one message."""
        known = mask(pc.equal(self.sends.column("status"), OK)) & (ints(self.sends, "position") >= 1 << ENTRY_BITS)
        message = np.concatenate([self.sent[known], self.got])
        partition = np.concatenate([ints(self.sends, "partition")[known], self.partition])
        position = np.concatenate([ints(self.sends, "position")[known], self.position])
        if one_to_one(message, partition, position, self.count):
            return
        pairs = distinct(message, partition, position)
        again = np.zeros(len(pairs), np.bool_)
        again[1:] = message[pairs][1:] == message[pairs][:-1]
        twice = np.unique(message[pairs][again])
        findings.found("stored_twice", len(twice), (f"{self.name(m)} has two places" for m in twice))
        pairs = distinct(partition, position, message)
        shared = np.zeros(len(pairs), np.bool_)
        shared[1:] = (np.diff(partition[pairs]) == 0) & (np.diff(position[pairs]) == 0)
        places = [(int(partition[row]), int(position[row])) for row in pairs[shared][:MAX_EXAMPLES]]
        findings.found(
            "unexpected", int(shared.sum()), (f"{show(at)} of partition {p} holds two messages" for p, at in places)
        )

    def check_order(self, findings: Findings) -> None:
        """First deliveries of a key rise with its numbers, in the order of the broker's stamp."""
        by_stamp = np.lexsort((self.rank, self.got))
        first = np.ones(len(by_stamp), np.bool_)
        first[1:] = np.diff(self.got[by_stamp]) != 0
        rows = by_stamp[first]
        self.first_rows = rows
        findings.checked["delayed"] = int((self.deliver_at[self.got[rows]] > 0).sum())
        rows = rows[self.keyed[rows] & (self.deliver_at[self.got[rows]] == 0)]
        rows = rows[np.lexsort((self.rank[rows], self.message_key[self.got[rows]]))]
        findings.checked["ordered"] = len(rows)
        numbers = self.got[rows]
        # Numbers rise with the key as well, so one running maximum serves all keys.
        newest = np.maximum.accumulate(numbers) if len(numbers) else numbers
        behind = np.flatnonzero(numbers < newest)
        findings.found(
            "order",
            len(behind),
            (f"{self.name(numbers[at])} was first delivered behind {self.name(newest[at])}" for at in behind),
        )

    def check_overlap(self, findings: Findings) -> None:
        """No consumer receives a message of a key while another holds one. Also counts keys that were at stake."""
        rows = np.flatnonzero(self.keyed & (self.released_at > self.received_at))
        key = self.message_key[self.got[rows]]
        rows = rows[np.lexsort((self.rank[rows], self.received_at[rows], key))]
        key = self.message_key[self.got[rows]]
        findings.checked["hashes_moved"] = self._moved_hashes(rows)
        if len(rows) == 0:
            return
        start, holder = self.received_at[rows], self.holder[rows]
        new_key = np.ones(len(rows), np.bool_)
        new_key[1:] = np.diff(key) != 0
        new_run = new_key.copy()
        new_run[1:] |= np.diff(holder) != 0
        # The latest end among all rows of the key before this one, and before this one's run of equal holders.
        before = running_end(self.released_at[rows], new_key)
        findings.checked["keys_in_flight_together"] = len(np.unique(key[before > start]))
        run_start = np.maximum.accumulate(np.where(new_run, np.arange(len(rows)), 0))
        suspects = np.unique(key[before[run_start] > start])
        for suspect in suspects:
            lo, hi = np.searchsorted(key, [suspect, suspect + 1])
            self._overlaps_of_key(rows[lo:hi], findings)

    def _overlaps_of_key(self, rows: Int64s, findings: Findings) -> None:
        """Count exactly in one key that is known to be broken; rows ascend by the time they were received."""
        ends: dict[int, int] = {}
        for row in rows.tolist():
            start, holder = int(self.received_at[row]), int(self.holder[row])
            others = [other for other, end in ends.items() if other != holder and end > start]
            if others:
                line = f"{self.name(self.got[row])} went to {self.consumers[holder]} while {self.consumers[others[0]]}"
                findings.found("overlap", 1, [f"{line} still held its key"])
            ends[holder] = max(ends.get(holder, 0), int(self.released_at[row]))

    def _moved_hashes(self, rows: Int64s) -> int:
        """How many sticky hashes were held by more than one consumer over time."""
        if len(rows) == 0:
            return 0
        key = self.message_key[self.got[rows]]
        pairs = distinct(key, self.holder[rows])
        hashes = reduce_hash(hash_column(self.keys.take(pa.array(key[pairs])))).astype(np.int64)
        held = np.unique(hashes * len(self.consumers) + self.holder[rows][pairs])
        return int((np.unique(held // len(self.consumers), return_counts=True)[1] > 1).sum())

    def check_redeliveries(self, findings: Findings) -> None:
        """Every delivery after the first needs a reason, and none may follow a confirmed acknowledgement."""
        rows = np.lexsort((self.rank, self.position, self.partition))
        again = np.zeros(len(rows), np.bool_)
        again[1:] = (np.diff(self.partition[rows]) == 0) & (np.diff(self.position[rows]) == 0)
        at = np.flatnonzero(again)
        later, earlier = rows[at], rows[at - 1]
        confirmed = self._first_confirmed(rows, again)[at]
        when = self.received_at[later]
        acked = confirmed < when
        findings.found(
            "acked_redelivered",
            int(acked.sum()),
            (f"{self.name(self.got[row])} came again after its acknowledgement was confirmed" for row in later[acked]),
        )
        sessions, epochs = ints(self.receives, "session"), ints(self.receives, "epoch")
        lost_session = (self.holder[earlier] == self.holder[later]) & (sessions[earlier] != sessions[later])
        explained = (self.nacked_at[earlier] <= when) | (self.ended_at[earlier] <= when) | lost_session
        explained |= epochs[earlier] != epochs[later]
        for partition, moment in self.owner_changes:
            between = (self.received_at[earlier] <= moment) & (moment <= when)
            explained |= between & ((partition < 0) | (self.partition[later] == partition))
        odd = later[~explained & ~acked]
        findings.found(
            "unexplained_redelivery",
            len(odd),
            (f"{self.name(self.got[row])} came to {self.consumers[self.holder[row]]} again" for row in odd),
        )

    def _first_confirmed(self, rows: Int64s, again: Mask) -> Int64s:
        """Return for each row in place order the earliest confirmation of the rows before it, at the same place."""
        before = np.full(len(rows), _FOREVER)
        confirmed = self.confirmed_at[rows]
        group = np.cumsum(~again)
        finite = np.flatnonzero(confirmed < _FOREVER)
        for row in finite[np.isin(group[finite], group[again])]:
            stop = np.searchsorted(group, group[row], side="right")
            np.minimum(before[row + 1 : stop], confirmed[row], out=before[row + 1 : stop])
        return before

    def check_early(self, findings: Findings, clocks: Sequence[WrongClock]) -> None:
        """A delayed message is not delivered before its time; whole milliseconds, as the producer asked."""
        due = self.deliver_at[self.got]
        early = np.flatnonzero((due > 0) & (self.received_at // 1000 < due))
        excused = permitted(clocks, self.received_at[early], due[early] - self.received_at[early] // 1000)
        findings.information["early"] = int(excused.sum())
        early = early[~excused]
        findings.found(
            "early",
            len(early),
            (f"{self.name(self.got[r])} came {due[r] - self.received_at[r] // 1000} ms early" for r in early),
        )

    def check_repeats(self, findings: Findings, *, promised: bool) -> None:
        """Repeated deliveries of a key keep their place among the others, if that is promised."""
        rows = np.flatnonzero(self.keyed & (self.deliver_at[self.got] == 0))
        message = self.got[rows]
        columns = (self.rank, self.received_at, self.nacked_at, self.released_at)
        wrong = list(
            out_of_order(Deliveries(rows, self.message_key[message], message, *(column[rows] for column in columns)))
        )
        if not promised:
            findings.information["redelivery_order"] = len(wrong)
            return
        findings.found(
            "redelivery_order",
            len(wrong),
            (f"{self.name(self.got[row])} came again behind {self.name(self.got[by])}" for row, by in wrong),
        )

    def name(self, message: int | np.int64) -> str:
        """Name a message so that a reader finds it: its key and its number within the key."""
        code = int(self.message_key[message])
        if code >= len(self.keys):
            return f"message {int(self.message_seq[message])} without key"
        return f"message {int(self.message_seq[message])} of key {self.keys[code].as_py()!r}"
