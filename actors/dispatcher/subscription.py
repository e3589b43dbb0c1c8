"""Which subscription on which partition: what all parts of a dispatcher have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionSubscription:
    """One subscription on one partition of a topic."""

    topic: str
    partition: int
    subscription: str

    @property
    def key(self) -> str:
        """The key of its metadata record."""
        return f"subscription/{self.topic}/{self.partition}/{self.subscription}"
