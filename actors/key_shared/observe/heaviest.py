"""Finds the key with most of the unfinished messages, and the keys that consumers hold, in columns.

A key that has more than half of the rows is the median of them, so no rows are sorted to find it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.window import FRESH, NO_SLOT, PENDING, REPLAY, UNORDERED, WAITING, Window
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions


@dataclass(frozen=True, slots=True)
class Heaviest:
    """The key that has more than half of the unfinished messages.

    key: its masked hash. position: of its first unfinished message. unfinished, of: its messages, and all. waiting:
    those of its messages that are not sent. holder: number of a consumer that has some, 0 for none. held_since: when
    the first of these was sent, ms.
    """

    key: int
    position: int
    unfinished: int
    of: int
    waiting: int
    holder: int
    held_since: int


def heaviest(window: Window, members: list[AttachedConsumer], fewest: int) -> Heaviest | None:
    """Return the heaviest key now; None: no key has more than half, and enough of them.
    Delayed and dead messages do not count.
    """
    if window.live < fewest:
        return None
    rows = window.rows_in(FRESH, REPLAY, UNORDERED, WAITING, PENDING)
    if not len(rows):
        return None
    keys = window.masked_hash[rows]
    key = int(np.partition(keys, len(keys) // 2)[len(keys) // 2])
    mine = rows[keys == key]
    if 2 * len(mine) <= len(rows) or len(mine) < fewest:
        return None
    held = mine[window.state[mine] == PENDING]
    slot = int(window.consumer[held[0]]) if len(held) else NO_SLOT
    return Heaviest(
        key=key,
        position=int(window.position[mine[0]]),
        unfinished=len(mine),
        of=len(rows),
        waiting=len(mine) - len(held),
        holder=next((member.number for member in members if member.slot == slot), 0),
        held_since=int(window.since[held].min()) if len(held) else 0,
    )


def held_keys(window: Window) -> tuple[Hashes, Positions]:
    """Return masked hashes and positions of held messages, uint32 and int64 (n,), positions ascending."""
    rows = window.rows_in(PENDING)
    return window.masked_hash[rows], window.position[rows]
