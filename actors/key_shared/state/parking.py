"""Parks keys: a message that failed too often waits, with later ones of its key, until an operator decides.

Before each dispatch `collect` moves the messages behind a failed message of a closed hash from the window to
`parked_messages`. The dispatcher reads them and reports their keys (`Parking.examined`): messages of a parked key stay,
others go back with their place. Consumers are asked for later messages that they hold, as with every negative
acknowledgement under `nack_order=key`, without which no key can be parked (`nacks`).

A key goes on when an operator redrives it (`redrive`), or when its failed message is done for any reason. Its messages
then wait like returned ones: by position, and before anything newer of their hash. Their redelivery counts begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.actors.key_shared.state import nacks
from sluice.actors.key_shared.state.claims import claim_all
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.parked_messages import BLOCKED, PARKED, UNKNOWN, ParkedKey
from sluice.actors.key_shared.state.window import (
    DEAD,
    DELIVERED,
    EXAMINED,
    FRESH,
    OVERTOOK,
    REPLAY,
    UNORDERED,
    WAITING,
    Mask,
    Rows,
)
from sluice.actors.messages import NO_POSITIONS
from sluice.storage.errors import InvariantViolation
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.position import Positions
from sluice.storage.format.redeliveries import Redeliveries


def collect(core: DispatchState) -> None:
    """Move the messages behind a failed message of a closed hash to the parked ones; call this before a dispatch."""
    parked, window = core.parked, core.window
    if parked.stale:
        nacks.close_hashes(core)
    if not parked.closes_any:
        return
    if window.count[FRESH]:
        fresh = window.rows_fresh()
        _put_aside(core, np.arange(fresh.start, fresh.stop) if isinstance(fresh, slice) else fresh)
    if core.recheck and (window.count[REPLAY] or window.count[UNORDERED] or window.count[WAITING]):
        _put_aside(core, window.rows_in(REPLAY, UNORDERED, WAITING))
    if parked.asks_back:
        nacks.ask_back_closed(core)
    window.trim()


def _put_aside(core: DispatchState, rows: Rows) -> None:
    parked, window = core.parked, core.window
    rows = rows[parked.closed(window.masked_hash[rows], window.position[rows])]
    if not len(rows):
        return
    if parked.examined:
        rows = rows[_not_known(core, rows)]
    positions, hashes = window.position[rows].copy(), window.masked_hash[rows].copy()
    _remember_overtaking(core, rows)
    core.drop(rows)
    parked.add(positions, hashes)


def _not_known(core: DispatchState, rows: Rows) -> Mask:
    """Return which rows must be examined.

    A row that was examined and is of another key is left out, unless an earlier row of its hash is unknown: that one
    may be of its key.
    """
    window, table = core.window, core.parked.table
    unknown: Mask = (window.flags[rows] & EXAMINED) == 0
    there = table.rows_in(UNKNOWN)
    hashes = np.concatenate([table.masked_hash[there], window.masked_hash[rows[unknown]]])
    positions = np.concatenate([table.position[there], window.position[rows[unknown]]])
    order = np.lexsort((positions, hashes))
    hashes, positions = hashes[order], positions[order]
    wanted = window.masked_hash[rows]
    first = np.minimum(np.searchsorted(hashes, wanted), max(len(hashes) - 1, 0))
    if len(hashes):
        unknown |= (hashes[first] == wanted) & (positions[first] < window.position[rows])
    return unknown


def _remember_overtaking(core: DispatchState, rows: Rows) -> None:
    """Carry the marks of messages that applications saw too early, so that parking does not lose them."""
    seen = rows[(core.window.flags[rows] & OVERTOOK) != 0]
    if len(seen):
        count = len(seen)
        marks = Redeliveries(
            core.window.position[seen].copy(),
            np.zeros(count, np.uint8),
            np.zeros(count, np.int64),
            np.ones(count, np.bool_),
        )
        core.carried.add(marks)


def back(core: DispatchState, positions: Positions, hashes: Hashes, flags: int = 0) -> None:
    """Let messages (ascending) that are no longer parked wait again, with their place."""
    if not len(positions):
        return
    window = core.window
    reduced = core.reduce(hashes)
    window.put(positions, hashes, reduced, REPLAY, DELIVERED | flags, core.now)
    core.queue(window.find(positions))
    core.sentinel.wanted_again(reduced, positions)
    nacks.recall(core, positions)
    claim_all(core)
    nacks.revoke(core)
    core.parked.ask_back()
    core.look_again()


def bring_back(core: DispatchState, positions: Positions) -> None:
    """Move those of these messages that are parked into the window: a consumer turned out to hold them."""
    if core.parked.live:
        back(core, *core.parked.pop(positions))


def forget(core: DispatchState, positions: Positions) -> None:
    """Drop done messages (ascending) from the parked ones, and release the keys whose failed message is among them."""
    parked = core.parked
    if not (parked.live or parked.keys):
        return
    taken, _ = parked.pop(positions)
    if len(taken):
        core.note_done_unsent()
    redrive(core, parked.numbers_failed_at(positions))


def forget_up_to(core: DispatchState, position: int | None) -> None:
    """Do the same for everything up to a position; None: everything."""
    parked = core.parked
    rows = parked.table.rows_live()
    here = parked.table.position[rows]
    parked.pop(here if position is None else here[here <= position])
    redrive(core, [each.number for each in parked.keys.values() if position is None or each.failed <= position])


def redrive(core: DispatchState, numbers: Iterable[int]) -> int:
    """Let these keys go on; returns how many of their messages wait now."""
    parked, chosen = core.parked, list(numbers)
    if not chosen:
        return 0
    mine = parked.positions_of(chosen)
    for number in chosen:
        parked.close_key(number)
    back(core, *parked.pop(mine))
    parked.settle()
    return len(mine)


class Parking:
    """The owner's questions and decisions about parked keys. core: the present one."""

    def __init__(self, core: DispatchState) -> None:
        self._core, self._parked = core, core.parked

    # -- for the record ---------------------------------------------------------------------------------------------

    def record(self) -> list[list[Any]]:
        """Return the keys, as plain values."""
        return [[each.key, each.hash, each.since, each.failed] for each in self._parked.keys.values()]

    def load(self, rows: Iterable[Iterable[Any]]) -> None:
        """Take over the parked keys of the last owner; for a new object."""
        if self._parked.on:
            for key, masked, since, failed in rows:
                self._parked.open(key, masked, since, failed)
            self._parked.ask_back()
            self._core.look_again()

    # -- whose messages they are ------------------------------------------------------------------------------------

    def failed(self, most: int) -> Positions:
        """Return messages that failed too often, with unknown keys (ascending); none if no more keys fit."""
        window = self._core.window
        if not self._parked.on or self._parked.full:
            return NO_POSITIONS
        return window.position[window.rows_in(DEAD)[:most]]

    def unknown(self, most: int) -> Positions:
        """Return the first messages of closed hashes whose keys were not read (ascending).

        Not those behind a message of their hash that failed and whose key is not known either: it may be theirs.
        """
        table, window = self._parked.table, self._core.window
        rows = table.rows_in(UNKNOWN)
        if len(rows) and window.count[DEAD]:
            dead = window.rows_in(DEAD)
            order = np.lexsort((window.position[dead], window.masked_hash[dead]))
            hashes, failed = window.masked_hash[dead[order]], window.position[dead[order]]
            first = np.minimum(np.searchsorted(hashes, table.masked_hash[rows]), len(hashes) - 1)
            rows = rows[(hashes[first] != table.masked_hash[rows]) | (failed[first] > table.position[rows])]
        positions: Positions = table.position[rows[:most]]
        return positions

    @property
    def waits_for_reading(self) -> bool:
        """Whether there is anything in `failed` or `unknown`."""
        dead = self._parked.on and self._core.window.count[DEAD] > 0 and not self._parked.full
        return dead or (self._parked.table.count[UNKNOWN] > 0 and len(self.unknown(1)) > 0)

    def park(self, positions: Positions, keys: pa.Array, sizes: npt.NDArray[np.int64], now: int) -> None:
        """Park failed messages (ascending). keys: binary, null for a message without a key. sizes: bytes."""
        core, parked, window = self._core, self._parked, self._core.window
        here = np.isin(positions, window.position[window.rows_in(DEAD)])
        numbers: list[int] = []
        for position, key in zip(positions[here].tolist(), keys.filter(pa.array(here)).to_pylist(), strict=True):
            row = window.find(np.array([position], np.int64))
            opened = parked.open(key, int(window.masked_hash[row[0]]), now, position)
            if opened is None:
                break
            numbers.append(opened.number)
        positions, sizes = positions[here][: len(numbers)], sizes[here][: len(numbers)]
        rows = window.find(positions)
        hashes = window.masked_hash[rows].copy()
        core.drop(rows)
        parked.add(positions, hashes)
        parked.known(positions, np.array(numbers, np.uint16), sizes)
        parked.count_parked(len(numbers))
        window.trim()

    def examined(self, positions: Positions, keys: pa.Array, sizes: npt.NDArray[np.int64]) -> None:
        """Take the keys of messages that were `unknown`: those of parked keys stay, the others go back."""
        core, parked = self._core, self._parked
        here = np.isin(positions, self.unknown(parked.live))
        positions, keys, sizes = positions[here], keys.filter(pa.array(here)), sizes[here]
        named = [each for each in parked.keys.values() if each.key is not None]
        numbers = np.array([each.number for each in named] + [0], np.uint16)
        failed = np.array([each.failed for each in named] + [0], np.int64)
        found = pc.index_in(keys, pa.array([each.key for each in named], keys.type))
        which = found.fill_null(len(named)).to_numpy(zero_copy_only=False).astype(np.intp)
        mine = np.asarray(keys.is_valid()) & (which < len(named)) & (positions >= failed[which])
        number = numbers[which]
        for alone in (each for each in parked.keys.values() if each.key is None):
            number[positions == alone.failed] = alone.number
            mine |= positions == alone.failed
        parked.known(positions[mine], number[mine], sizes[mine])
        if not mine.all():
            parked.note_examined()
            back(core, *parked.pop(positions[~mine]), EXAMINED)

    # -- what operators see and do ----------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        """Whether keys are parked or blocked at all."""
        return self._parked.on

    def messages(self) -> tuple[Positions, Hashes]:
        """Return positions and masked hashes of the messages of parked and blocked keys, sent before or not."""
        table = self._parked.table
        rows = table.rows_live()
        return table.position[rows], table.masked_hash[rows]

    def held(self) -> list[ParkedKey]:
        """Return the keys that are parked or blocked, in the order in which they failed."""
        return list(self._parked.keys.values())

    def holds(self, keys: Iterable[ParkedKey]) -> bool:
        """Return whether all of these keys are still parked or blocked."""
        return all(self._parked.keys.get(each.number) is each for each in keys)

    def find(self, key: bytes) -> ParkedKey | None:
        """Return a parked or blocked key by its name, or None."""
        return self._parked.find(key)

    def key_of(self, position: int) -> ParkedKey | None:
        """Return the key of a parked message; None if the message is not here, or its key was not read."""
        table = self._parked.table
        rows = table.find(np.array([position], np.int64))
        if not len(rows) or table.state[rows[0]] == UNKNOWN:
            return None
        return self._parked.keys[int(table.key_number[rows[0]])]

    def contains(self, position: int) -> bool:
        """Return whether a message is among the parked ones."""
        return bool(self._parked.contains(np.array([position], np.int64))[0])

    def is_parked(self, number: int) -> bool:
        """Return whether a key and all its messages are parked; otherwise it is blocked."""
        table = self._parked.table
        rows = table.rows_in(BLOCKED)
        return self._parked.may_park(number) and not bool((table.key_number[rows] == number).any())

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return messages and bytes of each key, by its number; messages that were not read do not count."""
        table = self._parked.table
        rows = table.rows_in(PARKED, BLOCKED)
        numbers = table.key_number[rows]
        slots = max(self._parked.keys, default=0) + 1
        messages = np.bincount(numbers, minlength=slots)
        sizes = np.bincount(numbers, table.size[rows], minlength=slots)
        return {number: (int(messages[number]), int(sizes[number])) for number in self._parked.keys}

    def redrive(self, numbers: Iterable[int]) -> int:
        """Let these keys go on: their messages go out in order, before newer ones. Return how many wait now."""
        count = redrive(self._core, numbers)
        self._parked.count_redriven(count)
        return count

    def decide(self, keys: Iterable[ParkedKey]) -> None:
        """Note that an operator discards these keys: a failed message that is done no longer releases its key."""
        for each in keys:
            each.decide()

    def resume(self, keys: Iterable[ParkedKey]) -> None:
        """Let those of these keys go on that are still parked."""
        redrive(self._core, [each.number for each in keys if self.holds([each])])

    @property
    def limited(self) -> bool:
        """Whether a message or key that should be parked is blocked, because keys or bytes are at their limit."""
        parked = self._parked
        return parked.parks and (parked.table.count[BLOCKED] > 0 or (parked.full and self._core.window.count[DEAD] > 0))

    def stats(self) -> dict[str, Any]:
        """Return the counts; `parkingLimitReached` is the alarm."""
        parked = self._parked
        parks = sum(parked.may_park(number) for number in parked.keys)
        dead = self._core.window.count[DEAD] if parked.on else 0
        return {
            "parkedKeys": parks,
            "blockedKeys": len(parked.keys) - parks,
            "msgParked": parked.table.count[PARKED],
            "msgBlockedByKey": parked.counted + dead,
            "parkedBytes": parked.bytes,
            "parkingLimitReached": self.limited,
            "keysParkedTotal": self._parked.parked_total,
            "msgRedrivenTotal": self._parked.redriven_total,
        }

    def check(self) -> None:
        """Count again. Raises InvariantViolation on any difference."""
        core, parked, table = self._core, self._parked, self._parked.table
        rows = table.rows_live()
        if len(core.window.find(table.position[rows])):
            raise InvariantViolation("a message is in the window and among the parked ones")
        size = int(table.size[table.rows_in(PARKED)].sum())
        if size != parked.bytes:
            raise InvariantViolation(f"{size} bytes are parked, the count says {parked.bytes}")
        known = table.rows_in(PARKED, BLOCKED)
        if not np.isin(table.key_number[known], list(parked.keys)).all():
            raise InvariantViolation("a message is parked whose key is not")
