"""The spool of a streaming read: received messages as numbered files, until they are acknowledged for good.

A file holds one batch. It is written whole, under its number, before anybody hears of the number; a file that is
there is final. `floor` is the number below which everything is done and deleted.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.storage.errors import Invalid

_FLOOR = "floor"
Int64s = npt.NDArray[np.int64]


class Spool:
    """A folder of numbered Arrow files. One process writes; any may read."""

    def __init__(self, folder: Path) -> None:
        """Open or make the spool. Raises Invalid if the folder cannot be used."""
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._floor = int((folder / _FLOOR).read_text()) if (folder / _FLOOR).exists() else 0
        except (OSError, ValueError) as error:
            raise Invalid(f"the spool {folder} cannot be used: {error}") from error
        self._places: dict[int, dict[int, Int64s]] = {}
        """The positions in each file, by partition."""
        self._next = self._floor
        for number in sorted(int(path.stem) for path in folder.glob("*.arrow")):
            self._places[number] = _places(self.read(self.path(number)))
            self._next = max(self._next, number + 1)

    def path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.arrow"

    def floor(self) -> int:
        """Return the number of the first file that is not done."""
        return self._floor

    def end(self) -> int:
        """The number that the next file will have."""
        return self._next

    def numbers(self) -> set[int]:
        """The numbers of the existing files."""
        return set(self._places)

    def append(self, rows: pa.Table) -> int:
        """Keep a batch durably; its number."""
        number = self._next
        partial = self._folder / f".{number}.partial"
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        _sync(partial)
        partial.replace(self.path(number))
        _sync(self._folder)
        self._places[number] = _places(rows)
        self._next += 1
        return number

    def owners(self, rows: pa.Table) -> Int64s:
        """The number of the file that holds each message already, -1 for a new one; int64, shape (rows,)."""
        partition, position = _columns(rows)
        result = np.full(len(position), -1, np.int64)
        for number, held in self._places.items():
            for each, positions in held.items():
                result[(partition == each) & np.isin(position, positions)] = number
        return result

    def delete_below(self, below: int, keep: set[int]) -> None:
        """Delete the files below a number, except those in `keep`."""
        done = [number for number in self._places if number < below and number not in keep]
        if not done and below <= self._floor:
            return
        if below > self._floor:
            partial = self._folder / f".{_FLOOR}.partial"
            partial.write_text(str(below))
            _sync(partial)
            partial.replace(self._folder / _FLOOR)
            self._floor = below
        for number in done:
            self.path(number).unlink(missing_ok=True)
            del self._places[number]

    @staticmethod
    def read(path: Path) -> pa.Table:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()


def _places(rows: pa.Table) -> dict[int, Int64s]:
    """The positions of messages, by partition."""
    partition, position = _columns(rows)
    return {each: position[partition == each] for each in np.unique(partition).tolist()}


def _columns(rows: pa.Table) -> tuple[Int64s, Int64s]:
    """Partition and position of each message."""
    return rows.column("partition").to_numpy(), rows.column("position").to_numpy()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
