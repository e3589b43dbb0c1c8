"""The rolling restart: every consumer leaves and comes back in turn, round after round, under load.

This is what other brokers stumble over, and what every deployment does. Two things are asked of it beyond what is
asked of any run: no key may wait longer than its own pending messages explain (`loadgen.judge.recovery`), and no more
hashes may move than must. What must move is all that a leaver had, and an even share to each who joins.

The moves are counted from what the dispatchers tell of their assignments, which they remember for a while only: so
they are asked again and again while the restarts go on.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from sluice.loadgen.base.broker import BrokerClient
from sluice.loadgen.faults.faults import RESTART, Fault
from sluice.storage.errors import SluiceError

HASHES = 65_535
MOST_MOVES = 1.3
"""Hashes that may move, times the minimum."""
HOLD_LIMIT_MS = 3_000
"""How long a key may wait for nobody: as long as a change of its owner may take."""


def plan_rolling(consumers: int, rounds: int, every_s: float) -> list[Fault]:
    """Each consumer in turn, `rounds` times, `every_s` seconds apart or as soon as the one before has joined again."""
    return [
        Fault(RESTART, at_s=(turn + 1) * every_s, target=f"consumer-{turn % consumers + 1}")
        for turn in range(consumers * rounds)
    ]


@dataclass
class Moves:
    """Hashes that moved between consumers, and the fewest that must: all of a leaver's, and an even share for a joiner.

    by_cause: those that moved because a consumer `joined`, or `left` in whatever way.
    """

    moved: int = 0
    minimum: float = 0.0
    changes: int = 0
    by_cause: dict[str, int] = field(default_factory=dict)
    _seen: dict[tuple[int, int], int] = field(default_factory=dict)

    def poll(self, client: BrokerClient, topic: str, subscription: str) -> None:
        """Count what is new. An owner that is just being replaced is asked the next time."""
        with contextlib.suppress(SluiceError):
            epochs = [int(row["epoch"]) for row in client.stats(topic, subscription)]
            for partition, changes in enumerate(client.admin(topic, subscription, "assignments")):
                self.count(partition, epochs[partition], changes)

    def count(self, partition: int, owner: int, changes: list[dict[str, Any]]) -> None:
        """Count the new ones among the changes of one partition, which one owner (by epoch) numbered.

        The first look at an owner only says where to begin: what it did before was no restart of ours.
        """
        known = self._seen.get((partition, owner))
        for change in changes:
            if known is not None and int(change["epoch"]) > known:
                self._add(change)
        newest = max((int(change["epoch"]) for change in changes), default=0)
        self._seen[(partition, owner)] = max(newest, known or 0)

    def _add(self, change: dict[str, Any]) -> None:
        rows = [
            (str(move["from"]), move["range"][1] - move["range"][0] + 1)
            for move in change["moved"]
            if move["from"] and move["to"]
        ]
        name, _, what = str(change["cause"]).rpartition(" ")
        moved = sum(length for _, length in rows)
        self.moved += moved
        self.by_cause[what] = self.by_cause.get(what, 0) + moved
        if what == "left":
            self.minimum += sum(length for giver, length in rows if giver.rpartition("#")[0] == name)
        else:
            self.minimum += HASHES / max(int(change["consumers"]), 1)
        self.changes += 1

    @property
    def ratio(self) -> float:
        """Moved by minimum; 0 if nothing moved."""
        return self.moved / self.minimum if self.minimum else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "moved": self.moved,
            "minimum": round(self.minimum),
            "ratio": round(self.ratio, 3),
            "changes": self.changes,
            "by_cause": dict(sorted(self.by_cause.items())),
        }
