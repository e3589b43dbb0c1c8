"""A checked reader of SQLite's write-ahead log: distinguishes damage from the torn end that a crash leaves.

**Theory.** SQLite reads its log up to the first frame whose checksum fails, and takes that for the end: what a crash
left half-written was never confirmed. But a flipped byte in the middle looks the same to it, and everything behind it,
confirmed and synced, is lost silently; the next write overwrites it.

Yet the two can be told apart. Checksums are cumulative, and every frame carries the two salts of the log that it was
written to, which change whenever the log restarts. With synchronous=FULL a transaction is synced before the next one
begins. So at most one transaction at the end of a log may be torn. If the checksum fails, and behind that place a frame
of the same salts ends a transaction, and another frame of the same salts follows that, then the transaction was synced
once: its bytes were damaged. A crash cannot leave this, and such a log must not be opened.

A log whose last transaction alone is damaged, or whose end was cut off, looks just as a crash leaves it. Only the
witness knows how far the log went (`storage.stores.metadata_sqlite`).

    header, 32 bytes, big-endian           frame, 24 bytes and a page
    0   magic 0x377f0682, or 3: the        0   page number
        checksums are big-endian           4   pages of the file, if it ends a transaction; else 0
    4   version 3007000                    8   salt 1, salt 2
    8   page size                          16  checksums 1, 2 of all before: header, then of each frame
    12  checkpoint number                      its first 8 bytes and its page
    16  salt 1, salt 2
    24  checksums 1, 2 of these 24 bytes
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sluice.storage.errors import Corrupt, Unavailable

_HEADER = struct.Struct(">8I")
_FRAME_HEADER = 24
_SUMMED = 8
"""Bytes of a frame's header that its checksum covers."""
_MAGIC = 0x377F0682
_VERSION = 3_007_000
_FRAMES_AT_ONCE = 256
_TRIES = 20

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class _LogHeader:
    page_size: int
    salts: tuple[int, int]
    sums: tuple[int, int]
    order: str
    """The byte order of the words that are summed, as numpy names it."""


def check_log(path: Path, shown: Path | None = None) -> None:
    """Look through a log, which others may be writing to. shown: the name for the message, if not `path`.

    Raises Corrupt, in one line that says what to do, for a log that SQLite would cut off at damage; Unavailable if it
    restarts again and again while it is read. A log that is not there, or ends as a crash leaves it, is fine.
    """
    found = b"", ""
    for _ in range(_TRIES):
        try:
            with path.open("rb") as file:
                head = file.read(_HEADER.size)
                problem = _problem(file, head)
        except FileNotFoundError:
            return
        if not problem:
            return
        if found == (head, problem):
            raise Corrupt(
                f"{shown or path} is damaged ({problem}), and opening it would silently drop confirmed changes of the"
                " metadata; put back a whole copy of the metadata file and this log beside it, or remove the log to go"
                " on without what only it holds"
            )
        # A write or a restart in progress has ended by the next try; damage is still there.
        found = head, problem
    raise Unavailable(f"{shown or path} changes faster than it can be checked; try again")


def _problem(file: BinaryIO, head: bytes) -> str:
    """The damage in one line, or nothing. file: read up to behind the header."""
    if len(head) < _HEADER.size:
        return ""
    header = _decode(head)
    if header is None:
        return "its header cannot be read" if any(head) or any(file.read(_FRAME_HEADER)) else ""
    broken = ended = -1
    sums, number = header.sums, 0
    stride = _FRAME_HEADER + header.page_size
    while frames := len(data := file.read(_FRAMES_AT_ONCE * stride)) // stride:
        rows = np.frombuffer(data, np.uint8, frames * stride).reshape(frames, stride)
        fields = np.ascontiguousarray(rows[:, :_FRAME_HEADER]).view(">u4")
        ours = (fields[:, 2] == header.salts[0]) & (fields[:, 3] == header.salts[1])
        if broken < 0:
            sums, good = _follow(sums, rows, fields, ours, header)
            broken = number + good if good < frames else -1
        if broken >= 0:
            for at in np.flatnonzero(ours).tolist():
                if number + at < broken:
                    continue
                if ended >= 0:
                    return f"frame {broken + 1} fails its checksum, and frames behind it were synced once"
                ended = number + at if fields[at, 1] else -1
        number += frames
    return ""


def _decode(head: bytes) -> _LogHeader | None:
    """A header, None if it is none."""
    magic, version, page_size, _, *rest = _HEADER.unpack(head)
    order = ">u4" if magic & 1 else "<u4"
    if magic | 1 != _MAGIC | 1 or version != _VERSION or not 512 <= page_size <= 65_536 or page_size & (page_size - 1):
        return None
    words = np.frombuffer(head, order, 6).astype(np.uint32).reshape(1, 6)
    sums = _added((0, 0), _sums(words)[0], 3)
    return _LogHeader(page_size, (rest[0], rest[1]), sums, order) if sums == (rest[2], rest[3]) else None


def _follow(
    sums: tuple[int, int], rows: NDArray[np.uint8], fields: Words, ours: NDArray[np.bool_], header: _LogHeader
) -> tuple[tuple[int, int], int]:
    """The checksums behind the frames that are good, and how many these are."""
    summed = np.concatenate((rows[:, :_SUMMED], rows[:, _FRAME_HEADER:]), axis=1)
    parts = _sums(summed.view(header.order).astype(np.uint32))
    pairs = summed.shape[1] // 8
    for at in range(len(rows)):
        wanted = _added(sums, parts[at], pairs)
        if not ours[at] or wanted != (int(fields[at, 4]), int(fields[at, 5])):
            return sums, at
        sums = wanted
    return sums, len(rows)


# The checksum goes over pairs of words (a, b): s1 += a + s2; s2 += b + s1, modulo 2**32. That is linear: the sums
# behind n pairs are M**n times the sums before, plus what each pair adds, where M = [[1, 1], [1, 2]]. So all frames are
# summed at once, and only their ends are joined one by one.


@lru_cache(maxsize=4)
def _powers(pairs: int) -> NDArray[np.uint32]:
    """M**0 to M**pairs, in uint32."""
    powers = np.empty((pairs + 1, 2, 2), np.uint32)
    powers[0] = np.eye(2, dtype=np.uint32)
    step = np.array([[1, 1], [1, 2]], np.uint32)
    for at in range(pairs):
        powers[at + 1] = powers[at] @ step
    return powers


def _sums(words: Words) -> Words:
    """The amounts that each row of words adds to the sums: two columns."""
    powers = _powers(words.shape[1] // 2)[-2::-1]
    first, second = powers[:, :, 0] + powers[:, :, 1], powers[:, :, 1]
    added: Words = words[:, 0::2] @ first + words[:, 1::2] @ second
    return added


def _added(sums: tuple[int, int], part: Words, pairs: int) -> tuple[int, int]:
    """The sums behind so many pairs of words."""
    power = _powers(pairs)[pairs]
    first = int(power[0, 0]) * sums[0] + int(power[0, 1]) * sums[1] + int(part[0])
    second = int(power[1, 0]) * sums[0] + int(power[1, 1]) * sums[1] + int(part[1])
    return first & 0xFFFFFFFF, second & 0xFFFFFFFF
