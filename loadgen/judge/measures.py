"""Measures a run from its histories: rates, latencies, and deliveries over time.

Everything is kept as counts, so that the parts of a judgement that Spark spreads can be added up. Latency is the time
from when a message was sent (or should have been, at a fixed rate; or was due, if it was delayed) until its first
delivery. It goes into an HDR histogram of microseconds with three significant digits, and coarsely into one
histogram a time step, from which the percentiles over time are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from hdrh.histogram import HdrHistogram

from sluice.loadgen.base.history import OK, Int64s
from sluice.loadgen.judge.column_operations import ints

MAX_LATENCY_US = 3_600_000_000
_NEVER = np.iinfo(np.int64).max
_PER_DOUBLING = 6
_COARSE_FLOOR = 6.0
COARSE = 26 * _PER_DOUBLING
"""Buckets of the coarse latency histograms: six to each doubling, from 64 microseconds to an hour."""

Counts = npt.NDArray[np.int64]


class Histogram(HdrHistogram):  # type: ignore[misc]
    """A histogram of microseconds with three significant digits, which can be pickled."""

    def __init__(self) -> None:
        super().__init__(1, MAX_LATENCY_US, 3)

    def __reduce__(self) -> tuple[Any, ...]:
        return _decoded, (self.encode(),)


def _decoded(encoded: bytes) -> Histogram:
    made = Histogram()
    made.decode_and_add(encoded)
    return made


@dataclass(frozen=True, slots=True)
class Span:
    """The time of a run in equal steps: from `start` (us), `count` steps of `width` us.

    cuts: times (us) at which another act begins; what is sent from then on belongs to it.
    """

    start: int
    width: int
    count: int
    cuts: tuple[int, ...] = ()

    @classmethod
    def over(cls, start: int, end: int, steps: int = 160, cuts: Sequence[int] = ()) -> Span:
        """Steps of a round length, about `steps` of them, that cover start to end."""
        rough = max(end - start, 1) / steps
        width = next((w for w in _WIDTHS if w >= rough), _WIDTHS[-1])
        return cls(start, width, (end - start) // width + 1, tuple(cuts))

    def act(self, times: Int64s) -> Int64s:
        """The act, from 0, of messages sent at these times; same shape."""
        return np.asarray(np.searchsorted(np.array(self.cuts, np.int64), times, side="right"), np.int64)

    def steps(self, times: Int64s) -> Int64s:
        """The step of each time, shape kept; what lies outside falls into the first or last."""
        return ((times - self.start) // self.width).clip(0, self.count - 1)


_WIDTHS = [m * 10**e for e in range(4, 9) for m in (1, 2, 5)]


@dataclass
class ActMeasures:
    """Sums over the messages that were sent in one act. histogram, publish: as in Measures. Times in microseconds."""

    confirmed: int = 0
    acked: int = 0
    first_sent: int = 0
    last_confirmed: int = 0
    last_acked: int = 0
    histogram: Any = field(default_factory=Histogram)
    publish: Any = field(default_factory=Histogram)

    def merge(self, other: ActMeasures) -> None:
        """Add another part of the same run."""
        self.confirmed += other.confirmed
        self.acked += other.acked
        self.first_sent = min((at for at in (self.first_sent, other.first_sent) if at), default=0)
        self.last_confirmed = max(self.last_confirmed, other.last_confirmed)
        self.last_acked = max(self.last_acked, other.last_acked)
        self.histogram.add(other.histogram)
        self.publish.add(other.publish)

    def rates(self) -> dict[str, float]:
        """Messages per second from the first send to the last confirmation, and to the last acknowledgement."""
        published = self.confirmed / max(self.last_confirmed - self.first_sent, 1) * 1e6
        whole = self.acked / max(self.last_acked - self.first_sent, 1) * 1e6
        return {"publish_msgs_per_s": round(published, 1), "end_to_end_msgs_per_s": round(whole, 1)}


@dataclass
class Measures:
    """Sums over a run or a part of it.

    confirmed, delivered, acked: messages by time step, int64, shape (span.count,). latency: counts by time step and
    coarse bucket, shape (span.count, COARSE). shares: deliveries by consumer and time step. lateness: like
    histogram, for delayed messages only: how long after their due time they came.
    """

    span: Span
    confirmed: Counts = field(init=False)
    delivered: Counts = field(init=False)
    acked: Counts = field(init=False)
    latency: Counts = field(init=False)
    shares: dict[str, Counts] = field(default_factory=dict)
    histogram: Any = field(init=False)
    lateness: Any = field(init=False)
    publish: Any = field(init=False)
    bytes: int = 0
    first_sent: int = 0
    last_confirmed: int = 0
    last_acked: int = 0
    acts: list[ActMeasures] = field(init=False)

    def __post_init__(self) -> None:
        self.acts = [ActMeasures() for _ in range(len(self.span.cuts) + 1)]
        self.confirmed, self.delivered, self.acked = (np.zeros(self.span.count, np.int64) for _ in range(3))
        self.latency = np.zeros((self.span.count, COARSE), np.int64)
        self.histogram, self.lateness, self.publish = (Histogram() for _ in range(3))

    def merge(self, other: Measures) -> None:
        """Add another part of the same run."""
        self.confirmed += other.confirmed
        self.delivered += other.delivered
        self.acked += other.acked
        self.latency += other.latency
        for name, counts in other.shares.items():
            self.shares[name] = self.shares.get(name, 0) + counts
        self.histogram.add(other.histogram)
        self.lateness.add(other.lateness)
        self.publish.add(other.publish)
        self.bytes += other.bytes
        for mine, theirs in zip(self.acts, other.acts, strict=True):
            mine.merge(theirs)
        starts = [at for at in (self.first_sent, other.first_sent) if at]
        self.first_sent = min(starts, default=0)
        self.last_confirmed = max(self.last_confirmed, other.last_confirmed)
        self.last_acked = max(self.last_acked, other.last_acked)

    def percentile_over_time(self, percent: float) -> npt.NDArray[np.float64]:
        """Latency in ms of each time step at a percentile, shape (span.count,); NaN where nothing came."""
        sums = np.cumsum(self.latency, axis=1)
        total = sums[:, -1]
        bucket = (sums < np.ceil(total * percent / 100)[:, None]).sum(axis=1)
        values = 2.0 ** ((bucket + 0.5) / _PER_DOUBLING + _COARSE_FLOOR) / 1000
        return np.where(total > 0, values, np.nan)


def measure(sent: pa.Table, delivered: pa.Table, span: Span) -> Measures:
    """Measure one part of a run that holds whole keys. Tables: SENT and DELIVERIES of loadgen.base.history."""
    result = Measures(span)
    confirmed = sent.filter(pc.equal(sent.column("status"), OK))
    if confirmed.num_rows:
        at, since = ints(confirmed, "confirmed_at"), ints(confirmed, "sent_at")
        result.confirmed = np.bincount(span.steps(at), minlength=span.count)
        result.first_sent, result.last_confirmed = int(since.min()), int(at.max())
        act = span.act(since)
        for number in np.unique(act).tolist():
            mine, of_act = act == number, result.acts[number]
            of_act.confirmed = int(mine.sum())
            of_act.first_sent, of_act.last_confirmed = int(since[mine].min()), int(at[mine].max())
            record(of_act.publish, (at - since)[mine])
            result.publish.add(of_act.publish)
    if delivered.num_rows == 0:
        return result
    received, acked = ints(delivered, "received_at"), _acked(delivered)
    result.delivered = np.bincount(span.steps(received), minlength=span.count)
    result.acked = np.bincount(span.steps(acked[acked > 0]), minlength=span.count)
    result.last_acked = int(acked.max())
    who = delivered.column("consumer").combine_chunks().dictionary_encode()
    flat = who.indices.to_numpy(zero_copy_only=False) * np.int64(span.count) + span.steps(received)
    grid = np.bincount(flat, minlength=span.count * len(who.dictionary)).reshape(-1, span.count)
    result.shares = dict(zip(who.dictionary.to_pylist(), grid, strict=True))
    _measure_latency(result, sent, delivered)
    return result


def record(histogram: Any, latencies: Int64s) -> None:
    """Put many latencies (us) into an HDR histogram: equal ones, to one part in 1,024, in one call."""
    values = np.maximum(latencies, 1).clip(max=MAX_LATENCY_US)
    coarse = np.maximum(np.floor(np.log2(values)).astype(np.int64) - 10, 0)
    distinct, counts = np.unique(values >> coarse << coarse, return_counts=True)
    for value, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        histogram.record_value(value, count)


def _measure_latency(result: Measures, sent: pa.Table, delivered: pa.Table) -> None:
    """Join the first delivery of each place with its send."""
    since = ints(sent, "sent_at")
    due = ints(sent, "deliver_at") * 1000
    sends = _places(sent)
    known = np.flatnonzero(ints(sent, "position") >= 0)
    order = known[np.argsort(sends[known], kind="stable")]
    places, received = _places(delivered), ints(delivered, "received_at")
    firsts = np.lexsort((received, places))
    new = np.ones(len(firsts), np.bool_)
    new[1:] = np.diff(places[firsts]) != 0
    # A message that was given back, or whose consumer died, is acknowledged at a later delivery.
    acked_at = np.full(int(new.sum()), _NEVER)
    done = _acked(delivered)[firsts]
    np.minimum.at(acked_at, np.cumsum(new) - 1, np.where(done > 0, done, _NEVER))
    firsts = firsts[new]
    spot = np.searchsorted(sends[order], places[firsts]).clip(max=max(len(order) - 1, 0))
    if len(order) == 0:
        return
    match = sends[order[spot]] == places[firsts]
    rows, mates = firsts[match], order[spot[match]]
    latency = received[rows] - np.maximum(since[mates], due[mates])
    record(result.lateness, latency[due[mates] > 0])
    _measure_acts(result, since[mates], latency, np.where(acked_at < _NEVER, acked_at, 0)[match])
    steps = result.span.steps(received[rows])
    doublings = np.log2(np.maximum(latency, 1)) - _COARSE_FLOOR
    bucket = np.floor(doublings * _PER_DOUBLING).astype(np.int64).clip(0, COARSE - 1)
    counts = np.bincount(steps * COARSE + bucket, minlength=result.span.count * COARSE)
    result.latency = counts.reshape(result.span.count, COARSE)
    # Bytes of messages, each counted once however often it came.
    result.bytes = int(np.asarray(delivered.column("bytes").to_numpy())[firsts].sum())


def _measure_acts(result: Measures, since: Int64s, latency: Int64s, acked: Int64s) -> None:
    """Measure each act. Per message, in µs: when it was sent, the latency of its first delivery, its ack (0: never)."""
    act = result.span.act(since)
    for number in np.unique(act).tolist():
        mine, of_act = act == number, result.acts[number]
        record(of_act.histogram, latency[mine])
        result.histogram.add(of_act.histogram)
        of_act.acked = int((acked[mine] > 0).sum())
        of_act.last_acked = int(acked[mine].max())


def _acked(delivered: pa.Table) -> Int64s:
    """Return when each delivery was acknowledged; 0 if it was not, or was given back."""
    given_back = np.asarray(delivered.column("negative").to_numpy(), np.bool_)
    return np.where(given_back, 0, ints(delivered, "acked_at"))


def _places(table: pa.Table) -> Int64s:
    """One number for (partition, position), unique while ledgers stay below 2**19 and partitions below 2**12."""
    return ints(table, "position") + (ints(table, "partition") << 51)
