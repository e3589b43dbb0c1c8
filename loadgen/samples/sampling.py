"""Samples statistics of the dispatchers in a thread while a flood runs."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from sluice.loadgen.base.broker import BrokerClient
from sluice.loadgen.base.history import STATS, HistoryClock
from sluice.loadgen.samples.hot_keys import SHOWN
from sluice.storage.errors import SluiceError

_STOP_S = 20.0
"""How long the sample that is just being taken is waited for."""
REST = {"pending_acks": "unacked", "replay": "replay", "draining": "draining", "backlog": "backlog"}
"""The counters that must be zero at rest: name in the report, column in STATS."""
_ALWAYS = {
    "backlog": "msgBacklog",
    "unacked": "unackedMessages",
    "replay": "msgInReplay",
    "draining": "drainingHashesCount",
    "cleared": "drainingHashesClearedTotal",
    "draining_peak": "drainingHashesPeak",
    "begun": "drainingHashesBegunTotal",
    "blocked": "drainingHashesBlockedTotal",
    "held_back": "heldBackByPolicyTotal",
}
COUNTERS = ("cleared", "begun", "blocked", "held_back", "order_checked", "order_violations")
"""The counters of an owner since its start, columns in STATS."""
_SENTINEL = {
    "order_checked": ("checkedOrder", "checkedHolder"),
    "order_violations": ("violationsOrder", "violationsHolder"),
}
"""Counters of the order sentinel, added up: of first deliveries in order, and of one holder per key."""


class Sampling:
    """Calls `sample` every `every_s` seconds in a thread, which adds to `rows`, one dict a row of `schema`."""

    name: ClassVar[str]
    schema: ClassVar[pa.Schema]
    every_s: ClassVar[float]
    rows: list[dict[str, Any]]

    def __post_init__(self) -> None:
        self._quiet = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> pa.Table:
        """Stop, and give all samples. Safe to repeat."""
        self._quiet.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        return pa.Table.from_pylist(self.rows, self.schema)

    def sample(self) -> object:
        """Ask now. May raise SluiceError: then there is nothing to be had just now."""
        raise NotImplementedError

    def _run(self) -> None:
        while True:
            # A dispatcher that is just being replaced has nothing to say; the next sample finds its successor.
            with contextlib.suppress(SluiceError):
                self.sample()
            if self._quiet.wait(self.every_s):
                return


@dataclass
class Sampler(Sampling):
    """Asks `client.stats` again and again; `latest` is the newest sum over partitions, empty before the first.

    Counters go on in it when an owner is replaced, which begins at zero.
    """

    name, schema, every_s = "sampler", STATS, 0.2

    client: BrokerClient
    topic: str
    subscription: str
    clock: HistoryClock
    rows: list[dict[str, int]] = field(default_factory=list)
    latest: dict[str, int] = field(default_factory=dict)
    taken_at: int = 0
    draining: list[int] = field(default_factory=list)
    drains: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """The last report of each owner, by (partition, epoch), on finished drains, by consumer."""
    counted: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    """The last row of each owner of each partition."""
    waits: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """Of each sample: its time (us), and the message-milliseconds until then that messages waited, by reason."""
    waited: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    """The last sums of each owner of each partition."""
    hot_keys: list[dict[str, Any]] = field(default_factory=list)
    """The heaviest keys that each partition reported in the end."""

    def stop(self) -> pa.Table:
        """See Sampling; asks for the heaviest keys, which nobody knows any more when the brokers have ended."""
        with contextlib.suppress(SluiceError):
            self.hot_keys = self.hot_keys or self.client.admin(self.topic, self.subscription, "hot_keys", top=SHOWN)
        return super().stop()

    def sample(self) -> dict[str, int]:
        """Ask now. Raises SluiceError, and KeyError if a counter that must be zero at rest is not told at all."""
        at = self.clock.now()
        answers = self.client.stats(self.topic, self.subscription)
        rows = [row_of(stats, at) for stats in answers]
        for stats in answers:
            owner = int(stats["partition"]), int(stats.get("epoch", 0))
            self.drains[owner] = stats["drainingHashesByConsumer"]
            self.waited[owner] = {reason: of["sum"] for reason, of in stats.get("waits", {}).items()}
        whole: Counter[str] = Counter()
        for of_owner in list(self.waited.values()):  # at rest another thread samples, too
            whole.update(of_owner)
        self.waits.append((at, dict(whole)))
        sums = {name: sum(row[name] for row in rows) for name in (*_ALWAYS, *_SENTINEL)}
        for row in rows:
            self.counted[row["partition"], row["epoch"]] = row
        sums |= {name: sum(row[name] for row in list(self.counted.values())) for name in COUNTERS}
        self.rows.extend(rows)
        self.draining.append(sums["draining"])
        # In this order: a reader that sees the new time also sees the new sums.
        self.latest = sums
        self.taken_at = at
        return sums


def row_of(stats: dict[str, Any], at: int) -> dict[str, int]:
    """One row of STATS from the statistics of one partition."""
    row = {"at": at, "partition": int(stats["partition"]), "epoch": int(stats.get("epoch", 0))}
    row |= {name: int(stats[source]) for name, source in _ALWAYS.items()}
    sentinel = stats["sentinel"]
    return row | {name: sum(int(sentinel[one]) for one in sources) for name, sources in _SENTINEL.items()}


def at_rest(sums: dict[str, int]) -> dict[str, int]:
    """The counters that must be zero at rest, by their names in the report."""
    return {name: sums[column] for name, column in REST.items()}
