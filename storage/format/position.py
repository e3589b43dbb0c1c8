"""Positions: the address of one message, as one int64.

A position packs `(ledger_id, entry_id)` as `ledger_id << 32 | entry_id`, so that positions of one partition sort
in order of publication, a numpy int64 column holds them, and the entries of one ledger are a 32-bit roaring
bitmap. An entry is one message. `EARLIEST` sorts below every position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sluice.storage.errors import Invalid

Positions = npt.NDArray[np.int64]
"""Positions of messages, shape (n,), dtype int64."""

ENTRY_BITS = 32
MAX_ENTRY = (1 << ENTRY_BITS) - 1
MAX_LEDGER = (1 << 31) - 1
EARLIEST = -1


def position(ledger_id: int, entry_id: int) -> int:
    """Pack a ledger (1 .. 2^31-1) and an entry (0 .. 2^32-1) into one int. Raises Invalid outside these."""
    if not (0 <= ledger_id <= MAX_LEDGER and 0 <= entry_id <= MAX_ENTRY):
        raise Invalid(f"position {ledger_id}:{entry_id} is out of range")
    return ledger_id << ENTRY_BITS | entry_id


def positions_of(ledger_id: int, entries: npt.NDArray[np.integer]) -> Positions:
    """The positions of these entries of a ledger, in their order."""
    packed: Positions = entries.astype(np.int64) + (ledger_id << ENTRY_BITS)
    return packed


def ledgers_of(positions: Positions) -> npt.NDArray[np.int64]:
    """The ledger id of each position."""
    return positions >> ENTRY_BITS


def entries_of(positions: Positions) -> npt.NDArray[np.uint32]:
    """The entry id of each position."""
    return (positions & MAX_ENTRY).astype(np.uint32)


def ledger_of(at: int) -> int:
    """The ledger id of a packed position."""
    return at >> ENTRY_BITS


def entry_of(at: int) -> int:
    """The entry id of a packed position."""
    return at & MAX_ENTRY


def run_positions(ledger_id: int, first_entry: int, count: int) -> Positions:
    """The positions of `count` consecutive entries, shape (count,), ascending."""
    start = position(ledger_id, first_entry)
    return np.arange(start, start + count, dtype=np.int64)


def split_by_ledger(positions: Positions) -> list[tuple[int, npt.NDArray[np.uint32]]]:
    """Cut ascending positions into `(ledger_id, entry ids uint32)` groups, ledgers ascending.

    The loop runs once a ledger, not once a message.
    """
    if positions.size == 0:
        return []
    if ledger_of(int(positions[0])) == ledger_of(int(positions[-1])):
        return [(ledger_of(int(positions[0])), entries_of(positions))]
    ledgers = ledgers_of(positions)
    starts = np.flatnonzero(np.diff(ledgers)) + 1
    entries = entries_of(positions)
    firsts = np.concatenate(([0], starts))
    return [(int(ledgers[f]), part) for f, part in zip(firsts, np.split(entries, starts), strict=True)]


def show(at: int) -> str:
    """Human form `ledger:entry`; `earliest` for the position before everything, and `7:-1`, as Pulsar has it, for the
    one before ledger 7.
    """
    if at < 0:
        return "earliest"
    ledger, entry = ledger_of(at), entry_of(at)
    return f"{ledger + 1}:-1" if entry == MAX_ENTRY else f"{ledger}:{entry}"


def parse(text: str) -> int:
    """Read `ledger:entry` back. Raises Invalid with the expected form."""
    if text == "earliest":
        return EARLIEST
    ledger, colon, entry = text.partition(":")
    if ledger.isdecimal() and int(ledger) > 0 and entry == "-1":
        return position(int(ledger) - 1, MAX_ENTRY)
    if not colon or not ledger.isdecimal() or not entry.isdecimal():
        raise Invalid(f"a message id is LEDGER:ENTRY, for example 3:17, not {text!r}")
    return position(int(ledger), int(entry))


def ascending(positions: Positions) -> Positions:
    """The same positions (int64) ascending, each once."""
    if len(positions) > 1 and not bool((positions[1:] > positions[:-1]).all()):
        return np.unique(positions)
    return positions
