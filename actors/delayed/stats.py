"""Counters of operations on bucket objects, with the names and latency steps of PIP-195."""

from __future__ import annotations

from collections import Counter
from typing import Any

CREATE, LOAD, DELETE, MERGE = "create", "load", "delete", "merge"
_KINDS = (CREATE, LOAD, DELETE, MERGE)
_STATES = ("succeed", "failed")
_STEPS_MS = (50, 100, 500, 1000, 5000, 30_000, 60_000)


class Operations:
    """How many operations there were, how many succeeded and failed, and how long they took."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._latency: Counter[tuple[str, int]] = Counter()
        self._sum_ms: Counter[str] = Counter()

    def record(self, kind: str, ok: bool, milliseconds: int) -> None:
        self._counts[kind, "succeed" if ok else "failed"] += 1
        step = next((i for i, limit in enumerate(_STEPS_MS) if milliseconds <= limit), len(_STEPS_MS))
        self._latency[kind, step] += 1
        self._sum_ms[kind] += milliseconds

    def count(self, kind: str, state: str = "all") -> int:
        """Operations of a kind in a state: succeed, failed or all."""
        return sum(self._counts[kind, one] for one in (_STATES if state == "all" else (state,)))

    def op_counts(self) -> dict[str, dict[str, int]]:
        """`pulsar_delayed_message_index_bucket_op_count` by type and state."""
        return {kind: {state: self.count(kind, state) for state in (*_STATES, "all")} for kind in _KINDS}

    def op_latency(self) -> dict[str, dict[str, Any]]:
        """`pulsar_delayed_message_index_bucket_op_latency_ms` by type: counts by step, with count and sum."""
        names = [*map(str, _STEPS_MS), "overflow"]
        return {
            kind: {
                "quantile": {name: self._latency[kind, step] for step, name in enumerate(names)},
                "count": self.count(kind),
                "sum": self._sum_ms[kind],
            }
            for kind in _KINDS
        }
