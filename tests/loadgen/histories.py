"""Hand-made histories for the judge's own tests: a small clean run that a test bends in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sluice.loadgen.base.history import ACKS, DETACH, EVENTS, RECEIVES, SENDS
from sluice.loadgen.judge.checkers import Findings, judge
from sluice.loadgen.judge.wrong_clocks import WrongClock
from sluice.storage.format.position import position


@dataclass
class Story:
    """Rows as dictionaries, by table; times are microseconds from a round start."""

    sends: list[dict[str, Any]] = field(default_factory=list)
    receives: list[dict[str, Any]] = field(default_factory=list)
    acks: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def send(self, key: bytes | None, seq: int, entry: int, **changes: Any) -> None:
        """A confirmed send to partition 0 at ledger 1, `entry`."""
        row: dict[str, Any] = {
            "producer": "p",
            "partition": 0,
            "key": key,
            "key_seq": seq,
            "sequence": len(self.sends),
            "position": position(1, entry),
            "status": "ok",
            "sent_at": 1000,
            "confirmed_at": 2000,
            "deliver_at": 0,
        }
        self.sends.append(row | changes)

    def receive(self, consumer: str, key: bytes | None, seq: int, entry: int, at: int, **changes: Any) -> None:
        """A delivery; its dispatch number is the number of deliveries so far."""
        row: dict[str, Any] = {
            "consumer": consumer,
            "session": 1,
            "partition": 0,
            "position": position(1, entry),
            "key": key,
            "key_seq": seq,
            "redelivery": 0,
            "epoch": 1,
            "dispatch": len(self.receives),
            "received_at": at,
        }
        self.receives.append(row | changes)

    def ack(self, consumer: str, entry: int, at: int, confirmed_at: int = 0, **changes: Any) -> None:
        """An acknowledgement of ledger 1, `entry`, or a negative one."""
        row: dict[str, Any] = {
            "consumer": consumer,
            "session": 1,
            "partition": 0,
            "position": position(1, entry),
            "acked_at": at,
            "confirmed_at": confirmed_at,
            "negative": False,
        }
        self.acks.append(row | changes)

    def event(self, consumer: str, event: str, at: int, **changes: Any) -> None:
        """Add an event of a whole consumer."""
        row: dict[str, Any] = {
            "consumer": consumer,
            "session": -1,
            "partition": -1,
            "event": event,
            "at": at,
            "upto": 0,
        }
        self.events.append(row | changes)

    def tables(self) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        """The four tables in their schemas."""
        return (
            pa.Table.from_pylist(self.sends, SENDS),
            pa.Table.from_pylist(self.receives, RECEIVES),
            pa.Table.from_pylist(self.acks, ACKS),
            pa.Table.from_pylist(self.events, EVENTS),
        )

    def judge(self, clocks: Sequence[WrongClock] = ()) -> Findings:
        """Return the findings of the judge. clocks: those that leapt."""
        return judge(*self.tables(), clocks=clocks)


def clean_story() -> Story:
    """Two keys, three messages each: a goes from c1 to c2 after c1 left, b stays with c1's successor."""
    story = Story()
    for seq in range(3):
        story.send(b"a", seq, entry=seq * 2)
        story.send(b"b", seq, entry=seq * 2 + 1)
    for seq in range(2):
        story.receive("c1", b"a", seq, seq * 2, at=10_000)
        story.receive("c1", b"b", seq, seq * 2 + 1, at=10_000)
        for entry in (seq * 2, seq * 2 + 1):
            story.ack("c1", entry, at=20_000, confirmed_at=21_000)
    story.event("c1", DETACH, 22_000)
    story.receive("c2", b"a", 2, 4, at=23_000)
    story.receive("c3", b"b", 2, 5, at=23_000)
    story.ack("c2", 4, at=24_000, confirmed_at=25_000)
    story.ack("c3", 5, at=24_000, confirmed_at=25_000)
    return story
