"""Measures from histories how long the broker needed after each fault, and how long keys were held back.

    redelivery  From SIGKILL of a consumer to the first delivery, to another one, of what was waiting at it. Waiting
                at it were the messages of the keys whose newest delivery before its death was its own, which lie before
                the newest position that anybody had received by then. Told for each kill (its first such message) and
                for each key of each kill.
    takeover    From SIGKILL of the process of a partition's dispatcher to the next delivery in that partition by an
                owner with a higher epoch than any before; of a partition's owner, to the next delivery out of a ledger
                newer than any before. Told for each partition that was in the process.
    alone       Both once more for those faults that were alone: where nothing else that the recovery needs was broken
                meanwhile, or still was. Of a partition that is its next owner and the controller, of a killed consumer
                the owners. Where a fault comes every few seconds, the times of the others are times of several faults.
    holds       When a key goes from one consumer to another, its next message is explained while the one before had
                messages of it, until it had acknowledged the last of them, or had left or died with what still waited
                in its queue. What is left, from then and from when the message was confirmed until it was on its way,
                is the unexplained wait. It was on its way when anything was received, by anybody, that the dispatcher
                had sent after it: so the time that it lay in its receiver's own queue does not count.
    stalls      The longest time in which a partition delivered nothing although it had something to deliver.
    pauses      The same of each fault and partition, until the next fault, by kind of fault.

Histories are cut by key over Spark's tasks, so everything here can be added up: smallest times by name, largest
positions, counts in time steps, the worst few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sluice.loadgen.base.history import DEATH, DETACH, Int64s
from sluice.loadgen.base.kinds import KILL
from sluice.loadgen.judge.column_operations import ints
from sluice.loadgen.judge.measures import Histogram, Span, record
from sluice.storage.format.position import ENTRY_BITS

HASH_BITS = 17
STEP_US = 100_000
WORST = 5
_NEVER = -1

Fault = dict[str, Any]


class Takeover(NamedTuple):
    """Fault `fault` of a run took the owner of a partition; role: dispatchers or topics; length in microseconds."""

    fault: int
    role: str
    partition: int
    length: int


ROLES = ("dispatchers", "topics")


@dataclass
class RecoveryTimes:
    """Sums over a run or a part of it; times in microseconds.

    redelivery: by killed incarnation, to its first. redelivered_keys: histogram of the first of each key. next: by
    "fault/role/partition" and then by epoch or ledger, the first delivery after the fault. before: the highest epoch
    or ledger until then. unexplained: histogram of waits. worst: the longest waits, with all that explains them.
    deliveries: partition -> counts in steps of STEP_US. waiting: partition -> in each step, how many messages became
    ready (confirmed, or due) less those that were delivered for the first time.
    """

    redelivery: dict[str, int] = field(default_factory=dict)
    next: dict[str, dict[str, int]] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    worst: list[dict[str, Any]] = field(default_factory=list)
    deliveries: dict[str, list[int]] = field(default_factory=dict)
    waiting: dict[str, list[int]] = field(default_factory=dict)
    redelivered_keys: Any = field(default_factory=Histogram)
    unexplained: Any = field(default_factory=Histogram)

    def merge(self, other: RecoveryTimes) -> None:
        """Add another part of the same run."""
        for name, at in other.redelivery.items():
            self.redelivery[name] = min(at, self.redelivery.get(name, at))
        for name, firsts in other.next.items():
            mine = self.next.setdefault(name, {})
            for number, at in firsts.items():
                mine[number] = min(at, mine.get(number, at))
        for name, highest in other.before.items():
            self.before[name] = max(highest, self.before.get(name, highest))
        for ours, theirs in ((self.deliveries, other.deliveries), (self.waiting, other.waiting)):
            for name, counts in theirs.items():
                ours[name] = [a + b for a, b in zip(ours.get(name, [0] * len(counts)), counts, strict=True)]
        self.worst = sorted(self.worst + other.worst, key=lambda wait: -int(wait["unexplained_us"]))[:WORST]
        self.redelivered_keys.add(other.redelivered_keys)
        self.unexplained.add(other.unexplained)

    def takeovers(self, faults: Sequence[Fault]) -> list[Takeover]:
        """How long each partition that a fault took was without an owner, by fault, role and partition.

        A partition that delivered nothing any more has no time; faults that came so late say nothing.
        """
        found = []
        for name, firsts in self.next.items():
            number, role, partition = name.split("/")
            newer = [at for owner, at in firsts.items() if int(owner) > self.before.get(name, _NEVER)]
            if newer:
                length = min(newer) - int(faults[int(number)]["at_us"])
                found.append(Takeover(int(number), role, int(partition), length))
        return sorted(found)

    def alone(self, faults: Sequence[Fault]) -> tuple[list[Takeover], list[int]]:
        """The takeovers, and the lengths of the redeliveries after killed consumers, that nothing else disturbed."""
        takeovers = self.takeovers(faults)
        over = [int(fault["at_us"]) + int(fault.get("lasts_s", 0) * 1e6) for fault in faults]
        for taken in takeovers:
            over[taken.fault] = max(over[taken.fault], int(faults[taken.fault]["at_us"]) + taken.length)

        def disturbed(number: int, length: int, partition: int | None = None) -> bool:
            at = int(faults[number]["at_us"])
            return any(
                number != other
                and (int(fault["at_us"]) <= at + length and over[other] >= at)
                and _needed(fault, partition)
                for other, fault in enumerate(faults)
            )

        undisturbed = [taken for taken in takeovers if not disturbed(taken.fault, taken.length, taken.partition)]
        killed = {fault.get("incarnation"): number for number, fault in enumerate(faults) if fault["kind"] == KILL}
        lengths = [(killed[name], length) for name, length in self.redelivery.items() if name in killed]
        return undisturbed, [length for number, length in lengths if not disturbed(number, length)]

    def stall(self, span: Span) -> dict[str, Any]:
        """The longest time in which a partition had something to deliver and did not, between two deliveries.

        {partition, at_us, length_us}; zeros if there is none. An act that waits for the next one is no stall.
        """
        longest = {"partition": -1, "at_us": 0, "length_us": 0}
        for partition, begins, steps in self._gaps():
            worst = int(np.argmax(steps))
            if steps[worst] * STEP_US > longest["length_us"]:
                at = span.start + int(begins[worst]) * STEP_US
                longest = {"partition": partition, "at_us": at, "length_us": int(steps[worst]) * STEP_US}
        return longest

    def pauses(self, faults: Sequence[Fault], span: Span) -> dict[str, list[int]]:
        """Return by kind of fault, for each fault and partition, the longest stall that began before the next fault.

        Zeros are among them: a partition that never paused. Stalls are as in `stall`.
        """
        found: dict[str, list[int]] = {}
        times = np.array([int(fault["at_us"]) for fault in faults], np.int64)
        for _, begins, steps in self._gaps() if faults else ():
            longest = np.zeros(len(times) + 1, np.int64)  # the first one: before any fault
            # A fault that comes within the step is the reason for what begins with it.
            np.maximum.at(longest, np.searchsorted(times, span.start + (begins + 1) * STEP_US), steps * STEP_US)
            for fault, length in zip(faults, longest[1:].tolist(), strict=True):
                found.setdefault(str(fault["kind"]), []).append(length)
        return found

    def _gaps(self) -> Iterator[tuple[int, Int64s, Int64s]]:
        """Yield for each partition the first steps of its stalls, and their lengths in steps; shapes (stalls,)."""
        for partition, counts in sorted(self.deliveries.items(), key=lambda one: int(one[0])):
            busy = np.flatnonzero(counts)
            if len(busy) < 2:
                continue
            ready = np.cumsum(self.waiting.get(partition, counts)) > 0
            # The first step after each busy one at whose beginning something was ready.
            begins = np.minimum.accumulate(np.where(ready, np.arange(len(ready)), len(ready))[::-1])[::-1] + 1
            begins = begins[busy[:-1]]
            yield int(partition), begins, np.maximum(busy[1:] - begins, 0)


def _needed(fault: Fault, partition: int | None) -> bool:
    """Whether a fault hit what a takeover of this partition needs; None: what a redelivery needs, any owner."""
    hit = [int(each) for role in ROLES for each in fault.get(role, ())]
    return bool(hit) if partition is None else partition in hit or str(fault["kind"]).endswith("-controller")


def recover(
    sent: pa.Table, delivered: pa.Table, events: pa.Table, faults: Sequence[Fault], span: Span
) -> RecoveryTimes:
    """Measure one part of a run that holds whole keys. Tables: SENT, DELIVERIES and EVENTS of loadgen.base.history.

    faults: what was injected, in order: at_us, kind, and incarnation (of a killed consumer), dispatchers, topics
    (partitions whose owners went with it).
    """
    result = RecoveryTimes()
    if delivered.num_rows:
        rows = _Deliveries(sent, delivered, events)
        rows.count_steps(result, span)
        rows.measure_holds(result)
        for at, incarnation in _deaths(events):
            rows.measure_redelivery(result, at, incarnation)
        for number, fault in enumerate(faults):
            if str(fault["kind"]).startswith("kill-"):
                rows.measure_takeover(result, number, fault)
    return result


def tell(recovery: RecoveryTimes, faults: Sequence[Fault], span: Span, start_us: int) -> dict[str, Any]:
    """The lines of the report: milliseconds, percentiles and sentences; start_us is when the run began."""
    takeovers = recovery.takeovers(faults)
    alone, redeliveries_alone = recovery.alone(faults)
    stall = recovery.stall(span)
    before = [fault for fault in faults if int(fault["at_us"]) <= stall["at_us"] + STEP_US]
    return {
        "redelivery_ms": _percentiles(list(recovery.redelivery.values())),
        "redelivery_alone_ms": _percentiles(redeliveries_alone),
        "redelivered_keys_ms": _percentiles_of(recovery.redelivered_keys),
        "next_delivery_ms": _by_role(takeovers),
        "next_delivery_alone_ms": _by_role(alone),
        "longest_stall": {
            "partition": stall["partition"],
            "at_s": round((stall["at_us"] - start_us) / 1e6, 3) if stall["at_us"] else 0.0,
            "ms": stall["length_us"] / 1000,
            "after": f"{before[-1]['kind']} {before[-1]['target']}" if before and stall["length_us"] else "",
        },
        "pauses_ms": {kind: _percentiles(times) for kind, times in sorted(recovery.pauses(faults, span).items())},
        "unexplained_hold_ms": _percentiles_of(recovery.unexplained),
        "longest_holds": [
            f"hash {wait['hash']} of partition {wait['partition']} went from {wait['from']} to {wait['to']} at "
            f"{(wait['at_us'] - start_us) / 1e6:.1f} s: {wait['explained_us'] / 1000:.0f} ms behind its own pending "
            f"messages, {wait['unexplained_us'] / 1000:.0f} ms at the broker, {wait['queued_us'] / 1000:.0f} ms in "
            f"the queue of {wait['to']}"
            for wait in recovery.worst
        ],
    }


def _by_role(takeovers: Sequence[Takeover]) -> dict[str, dict[str, float]]:
    return {role: _percentiles([taken.length for taken in takeovers if taken.role == role]) for role in ROLES}


def tell_faults(recovery: RecoveryTimes, faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """The injected faults, and after how many milliseconds each of their partitions was served again.

    Each row has at_s, kind and target, and next_delivery_ms (role -> partition -> ms) if the fault took owners.
    """
    rows = [{name: value for name, value in fault.items() if name not in ("at_us", *ROLES)} for fault in faults]
    for fault, role, partition, length in recovery.takeovers(faults):
        rows[fault].setdefault("next_delivery_ms", {}).setdefault(role, {})[str(partition)] = length / 1000
    return rows


def _percentiles(times: Sequence[int]) -> dict[str, float]:
    """count, p50, p99 and max of times in microseconds, as milliseconds."""
    if not times:
        return {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    p50, p99, most = np.percentile(np.array(times), (50, 99, 100), method="higher").tolist()
    return {"count": len(times), "p50": p50 / 1000, "p99": p99 / 1000, "max": most / 1000}


def _percentiles_of(histogram: Any) -> dict[str, float]:
    count = histogram.get_total_count()
    values = {name: histogram.get_value_at_percentile(percent) if count else 0 for name, percent in _SHOWN}
    return {"count": count} | {name: value / 1000 for name, value in values.items()}


_SHOWN = (("p50", 50.0), ("p99", 99.0), ("max", 100.0))


def _deaths(events: pa.Table) -> list[tuple[int, str]]:
    rows = events.filter(pa.compute.equal(events.column("event"), DEATH))
    return list(zip(rows.column("at").to_pylist(), rows.column("consumer").to_pylist(), strict=True))


class _Deliveries:
    """The deliveries of one part in the order of receiving, as columns of shape (n,)."""

    def __init__(self, sent: pa.Table, delivered: pa.Table, events: pa.Table) -> None:
        order = np.argsort(ints(delivered, "received_at"), kind="stable")
        self.received = ints(delivered, "received_at")[order]
        self.partition = ints(delivered, "partition")[order]
        self.position = ints(delivered, "position")[order]
        self.acked = ints(delivered, "acked_at")[order]
        self.epoch = ints(delivered, "epoch")[order]
        self.underway = self._when_underway(ints(delivered, "dispatch")[order])
        self.place = self.partition << HASH_BITS | ints(delivered, "hash")[order]
        """Which key, as far as the broker can tell keys apart: partition and hash."""
        who = delivered.column("consumer").combine_chunks().dictionary_encode()
        self.names: list[str] = who.dictionary.to_pylist()
        self.consumer = who.indices.to_numpy(zero_copy_only=False).astype(np.int64)[order]
        self._sent, self._ends = sent, self._when_over(events)

    def _when_underway(self, dispatch: Int64s) -> Int64s:
        """Return when each delivery had been sent at the latest: one that was sent after it was received then."""
        order = np.lexsort((dispatch, self.epoch, self.partition))[::-1]
        owner = self.partition[order] * (int(self.epoch.max()) + 1) + self.epoch[order]
        earliest = -_running_maximum(-self.received[order], owner)
        result = np.empty(len(order), np.int64)
        result[order] = earliest
        return result

    def count_steps(self, result: RecoveryTimes, span: Span) -> None:
        steps = span.width * span.count // STEP_US + 1

        def step(times: Int64s) -> Int64s:
            return ((times - span.start) // STEP_US).clip(0, steps - 1)

        _, first = np.unique((self.partition << 51) + self.position, return_index=True)
        # Only what is known to have become ready can have waited.
        known = self._confirmed_at(first)
        first, known = first[known > 0], known[known > 0]
        delivered = step(self.received)
        for partition in np.unique(self.partition).tolist():
            counts = np.bincount(delivered[self.partition == partition], minlength=steps)
            result.deliveries[str(partition)] = counts.tolist()
            mine = self.partition[first] == partition
            ready = np.bincount(step(known[mine]), minlength=steps)
            waiting = ready - np.bincount(delivered[first[mine]], minlength=steps)
            result.waiting[str(partition)] = waiting.tolist()

    def measure_redelivery(self, result: RecoveryTimes, at: int, incarnation: str) -> None:
        """How many messages waited at a killed consumer, and when the first of them came to another one."""
        if incarnation not in self.names:
            return
        dead = self.names.index(incarnation)
        split = int(np.searchsorted(self.received, at, side="right"))
        # The newest delivery of each key before the death, and who got it.
        keys, newest = np.unique(self.place[:split][::-1], return_index=True)
        held = keys[self.consumer[:split][::-1][newest] == dead]
        frontier = np.zeros(int(self.partition.max()) + 1, np.int64)
        np.maximum.at(frontier, self.partition[:split], self.position[:split])
        later = np.arange(split, len(self.received))
        waiting = (self.consumer[later] != dead) & (self.position[later] <= frontier[self.partition[later]])
        later = later[waiting & np.isin(self.place[later], held)]
        if len(later):
            _, first = np.unique(self.place[later], return_index=True)
            times = self.received[later[first]] - at
            result.redelivery[incarnation] = int(times.min())
            record(result.redelivered_keys, times)

    def measure_takeover(self, result: RecoveryTimes, number: int, fault: Fault) -> None:
        """The first deliveries after a fault, by epoch or ledger, and what there was before it."""
        split = int(np.searchsorted(self.received, int(fault["at_us"]), side="right"))
        for role, owner in zip(ROLES, (self.epoch, self.position >> ENTRY_BITS), strict=True):
            for partition in fault.get(role, ()):
                name = f"{number}/{role}/{partition}"
                mine = self.partition == partition
                if mine[:split].any():
                    result.before[name] = int(owner[:split][mine[:split]].max())
                rows = split + np.flatnonzero(mine[split:])
                owners, first = np.unique(owner[rows], return_index=True)
                firsts = zip(owners.tolist(), self.received[rows[first]].tolist(), strict=True)
                result.next[name] = {str(which): int(at) for which, at in firsts}

    def measure_holds(self, result: RecoveryTimes) -> None:
        """How long a key that changed its consumer waited for nobody."""
        order = np.lexsort((self.received, self.place))
        place, consumer, received = self.place[order], self.consumer[order], self.received[order]
        released_at = self._released_at()[order]
        moved = np.flatnonzero((place[1:] == place[:-1]) & (consumer[1:] != consumer[:-1])) + 1
        if not len(moved):
            return
        free = _running_maximum(released_at, place)[moved - 1]
        end = self._ends[consumer[moved - 1]]
        free = np.where(end <= received[moved], np.maximum(free, end), free)
        known = self._confirmed_at(order[moved])
        since = np.maximum(free, known)
        underway = self.underway[order[moved]]
        waits = (underway - since).clip(0)
        record(result.unexplained, waits)
        for spot in np.argsort(waits, kind="stable")[::-1][:WORST].tolist():
            row = int(moved[spot])
            result.worst.append(
                {
                    "unexplained_us": int(waits[spot]),
                    "explained_us": int(max(free[spot] - known[spot], 0)),
                    "queued_us": int(received[row] - underway[spot]),
                    "at_us": int(received[row]),
                    "partition": int(place[row] >> HASH_BITS),
                    "hash": int(place[row] & ((1 << HASH_BITS) - 1)),
                    "from": self.names[int(consumer[row - 1])],
                    "to": self.names[int(consumer[row])],
                }
            )

    def _released_at(self) -> Int64s:
        """Return when each delivery was over: acknowledged, or its consumer left or died; else at once."""
        return np.where(self.acked > 0, self.acked, np.maximum(self._ends[self.consumer], self.received))

    def _when_over(self, events: pa.Table) -> Int64s:
        """Return when each consumer had left or died, 0 if it did not; shape (consumers,)."""
        ends = np.zeros(len(self.names), np.int64)
        columns = (events.column(name).to_pylist() for name in ("consumer", "event", "at"))
        for name, event, at in zip(*columns, strict=True):
            if event in (DEATH, DETACH) and name in self.names:
                ends[self.names.index(name)] = at
        return ends

    def _confirmed_at(self, rows: Int64s) -> Int64s:
        """Return when the message of each of these deliveries was confirmed, or due; 0 where that is unknown."""
        position, partition = ints(self._sent, "position"), ints(self._sent, "partition")
        ready = np.maximum(ints(self._sent, "confirmed_at"), ints(self._sent, "deliver_at") * 1000)
        known_at = np.flatnonzero(position >= 0)
        order = known_at[np.lexsort((position[known_at], partition[known_at]))]
        if not len(order):
            return np.zeros(len(rows), np.int64)
        # Two columns compared as one: (partition, position) in their common order.
        places = (partition[order] << 51) + position[order]
        wanted = (self.partition[rows] << 51) + self.position[rows]
        spot = np.searchsorted(places, wanted).clip(max=len(order) - 1)
        return np.where(places[spot] == wanted, ready[order[spot]], 0)


def _running_maximum(values: Int64s, groups: Int64s) -> Int64s:
    """The largest value so far within each group; groups lie together. Shape (n,)."""
    # Each group is lifted above the one before it, so that one running maximum serves them all.
    lift = np.cumsum(np.r_[0, np.diff(groups) != 0])
    low, high = int(values.min()), int(values.max())
    width = high - low + 1
    lifted = (values - low) + lift * width
    return np.asarray(np.maximum.accumulate(lifted) - lift * width + low, np.int64)
