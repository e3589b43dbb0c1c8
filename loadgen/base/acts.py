"""The acts of a flood: first at full speed, then at half of it with every fault, then at rest.

One figure cannot say both how much a broker carries and how soon it delivers: flooded beyond what it can deliver, its
latency is the length of the queue, and a fault drowns in the backlog. So the first part of the messages goes out as
fast as it goes, undisturbed and none of it delayed, and is delivered to the end; that gives the throughput. The rest is
sent at half of it, each message at its intended time; that gives the latency, and under this load faults come, one at a
time.

The faults need their time. If half of the throughput would be over before they can have shown their effect, the
second act is slower, so that it lasts LEAST_S.

The length of that time is not known beforehand on a busy machine, and a fault under no load shows nothing. So when most
of the second act is sent and faults are still to come, the last part of it goes out so slowly that it lasts until they
have had their turn (Reserve), and at the old rate again as soon as they have.

The publishing tasks are one job through both acts, so that each key's messages are numbered on: a task waits at the
border until a file gives the pace of the second act.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAST, LOADED, REST = "as fast as it goes", "at a fixed rate, with faults", "at rest"
FIRST_PART = 1 / 3
"""Part of the messages that the first act sends."""
LOAD = 0.5
"""Rate of the second act, as a part of the throughput of the first."""
LEAST_S = 30.0
"""The least duration of the second act."""
RESERVE = 0.25
"""Part of the second act that is kept for faults which are late."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate of all tasks together in messages per second, from a time on (microseconds)."""

    rate: float
    at: int

    def write(self, path: Path) -> None:
        """Write the pace; a reader sees the whole or nothing."""
        partial = path.with_name(f".{path.name}")
        partial.write_text(json.dumps({"rate": self.rate, "at": self.at}))
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Pace | None:
        """The pace that was written, None if there is none."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None


@dataclass
class Act:
    """One act as it was played. rate: intended messages per second, 0 = full speed. Times in microseconds."""

    name: str
    start: int
    end: int = 0
    rate: float = 0.0

    def to_dict(self, origin: int) -> dict[str, Any]:
        """Return the act for the report, in seconds since `origin` (us)."""
        return {
            "name": self.name,
            "from_s": round(max(self.start - origin, 0) / 1e6, 3),
            "to_s": round(max(self.end - origin, 0) / 1e6, 3),
            "intended_msgs_per_s": round(self.rate, 1),
        }


def second_rate(throughput: float, messages: int) -> float:
    """The rate of the second act, which sends this number of messages."""
    return max(min(throughput * LOAD, messages / LEAST_S), 1.0)


class Reserve:
    """Makes the last part of the second act last until the faults have had their turn."""

    def __init__(self, path: Path, rate: float, messages: int) -> None:
        """path: the file of the pace. rate, messages: of the whole act, of all tasks together."""
        self._path, self._rate, self._messages = path, rate, messages
        self._announced = rate

    def adjust(self, left: int, needed_s: float, now: int) -> None:
        """Change the pace if necessary. left: messages not sent yet; needed_s: seconds, 0 when none is needed.

        It is slowed again when only half of the time that is needed is left, so it never runs out before.
        """
        rate = self._announced
        if not needed_s:
            rate = self._rate
        elif 0 < left <= self._messages * RESERVE and left < self._announced * needed_s / 2:
            rate = max(left / needed_s, 1.0)
        if rate != self._announced:
            self._announced = rate
            Pace(rate, now).write(self._path)
