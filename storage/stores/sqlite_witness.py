"""The witness of a metadata file: a small file beside it with the number of the last confirmed change.

**Theory.** SQLite's log cannot say that its end was cut off: that looks as after a crash. So a process that has
committed a change writes its number here, after the sync and before it reports the change to anybody. The witness
itself is not synced. The witness outlives the end of the process. A loss of power may leave it a few seconds behind,
and it is never ahead of the durable changes. So a file that knows less than its witness has gone back in time for
certain, and must not be used as if nothing had happened.

Each process writes a slot of its own, chosen by its id, and the highest of the slots counts: two processes that commit
in turn and write in another turn take nothing back. A slot that is torn or damaged says nothing. There is room for
everything from the beginning, so a full disk stops no slot from being written.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import google_crc32c

SLOTS = 64
_SLOT = struct.Struct("<QI4x")
_EMPTY = bytes(_SLOT.size * SLOTS)


def witness_of(path: Path) -> Path:
    """Return the path of the witness of a metadata file."""
    return path.with_name(path.name + "-witness")


def highest_seen(witness: Path) -> int:
    """The highest change that a witness names; 0 if it is not there or names none."""
    try:
        data = witness.read_bytes()
    except OSError:
        return 0
    whole = len(data) - len(data) % _SLOT.size
    slots = [_SLOT.unpack_from(data, at) for at in range(0, min(whole, len(_EMPTY)), _SLOT.size)]
    return max((number for number, crc in slots if number and _crc(number) == crc), default=0)


class Witness:
    """Writes one process's slot. Not safe for threads."""

    def __init__(self, witness: Path) -> None:
        """Open or make the file. Raises OSError."""
        self._file = os.open(witness, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size < len(_EMPTY):
            size = os.fstat(self._file).st_size
            os.pwrite(self._file, _EMPTY[size:], size)
        self._at = os.getpid() % SLOTS * _SLOT.size
        self._number = 0

    def saw(self, number: int) -> None:
        """A change is durable. A write that fails is left out: the witness says less then, and nothing false."""
        if number > self._number:
            self._number = number
            with contextlib.suppress(OSError):
                os.pwrite(self._file, _SLOT.pack(number, _crc(number)), self._at)

    def close(self) -> None:
        """Sync the witness to disk and close it. Idempotent."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1


def _crc(number: int) -> int:
    return int(google_crc32c.value(number.to_bytes(8, "little")))
