"""The history that the clients of the simulated worlds write.

It has the columns of loadgen.base.history, so the same judge looks at it that looks at a flood. Its clock is the
world's own time in microseconds, with a counter below the millisecond: two events never have the same stamp, and a
stamp tells the true order in which things happened.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa

from sluice.loadgen.base import history
from tests.sim.clock import EPOCH_MS
from tests.sim.world import World

SOMEBODY = ""
"""A consumer that is known by its session alone."""
ON_ITS_WAY_US = 1_000_000
"""So long may a message be under way to a client, with what the client says in the other direction."""


class History:
    """A record of what happened, row by row, in the shape that the judge reads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last = 0
        self.sends: list[list[Any]] = []
        self.receives: list[list[Any]] = []
        self.acks: list[list[Any]] = []
        self.events: list[list[Any]] = []
        self.hand_backs: list[list[int]] = []
        """Partition, position, moment, delay (ms), redelivery count seen, moment of the confirmation or -1."""
        self.batches: dict[tuple[bytes, int], int] = {}
        """Of messages that were sent in one batch, the row of its first one in `sends`."""
        self._finished: set[tuple[bytes, int]] = set()
        self._open: set[tuple[bytes, int]] = set()
        self.finishes: list[tuple[bytes, int]] = []
        """Messages as they were acknowledged, one after the other."""
        self._finished_for_all: list[tuple[str, int, int, int]] = []
        """Consumer, partition, position, moment; see `finish_for_all`."""

    def confirmed(self, key: bytes, number: int) -> None:
        """A message is stored: somebody must acknowledge it."""
        if (key, number) not in self._finished:
            self._open.add((key, number))

    def finish(self, messages: list[tuple[bytes, int]]) -> None:
        """Some consumer acknowledged these."""
        self._finished.update(messages)
        self._open.difference_update(messages)
        self.finishes += messages

    def finish_for_all(self, consumer: str, partition: int, positions: list[int]) -> None:
        """A consumer acknowledges, over a later connection, what others may hold by now: then it is done, and they hold
        nothing any more (KS-57), whatever they still do with it.
        """
        moment = self.stamp()
        self._finished_for_all += [(consumer, partition, position, moment) for position in positions]

    def reopen(self, messages: set[tuple[bytes, int]]) -> int:
        """Ask that each of these is acknowledged again, even if it was finished. Returns how many they are."""
        self._finished -= messages
        self._open |= messages
        return len(messages)

    def open_messages(self) -> set[tuple[bytes, int]]:
        """The confirmed messages that nobody has acknowledged yet."""
        return set(self._open)

    def unfinished(self) -> int:
        """How many confirmed messages nobody has acknowledged yet."""
        return len(self._open)

    def is_open(self, key: bytes, number: int) -> bool:
        """A confirmed message that nobody has acknowledged yet."""
        return (key, number) in self._open

    def stamp(self) -> int:
        """A moment: microseconds, ever rising."""
        self._last = max(self._last + 1, self.base())
        return self._last

    def base(self) -> int:
        """The present millisecond, in microseconds."""
        return (EPOCH_MS + self._world.loop.now) * 1000

    def event(
        self, consumer: str, event: str, session: int = -1, partition: int = -1, upto: int = 0, ago: int = 0
    ) -> None:
        """Add an event that is no message; `ago` milliseconds before now, when it comes to be known only later."""
        self.events.append([consumer, session, partition, event, self.stamp() - ago * 1000, upto])

    def tables(self) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        """Sends, receives, acks and events."""
        who = {(receive[2], receive[1]): receive[0] for receive in self.receives}
        for event in self.events:
            event[0] = event[0] or who.get((event[2], event[1]), SOMEBODY)
        sends, receives, acks, events = (
            _table(rows, schema)
            for rows, schema in (
                (self.sends, history.SENDS),
                (self.receives, history.RECEIVES),
                (self.acks + self._ended_by_others(), history.ACKS),
                (self.events, history.EVENTS),
            )
        )
        return sends, receives, acks, events

    def _ended_by_others(self) -> list[list[Any]]:
        """Rows of acknowledgements that end what others held, or were just being sent."""
        finished = defaultdict[tuple[int, int], list[tuple[str, int]]](list)
        for consumer, partition, position, moment in self._finished_for_all:
            finished[partition, position].append((consumer, moment))
        return [
            [who, session, partition, position, max(moment, came), 0, False]
            for who, session, partition, position, *_, came in self.receives
            for consumer, moment in finished.get((partition, position), ())
            if who != consumer and came <= moment + ON_ITS_WAY_US
        ]


def _table(rows: list[list[Any]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)], schema=schema)
