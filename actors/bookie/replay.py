"""Start: read the journal back."""

from __future__ import annotations

from dataclasses import dataclass

from actors.bookie.commit import marks_name, segment_name
from actors.ports import Disk
from storage.errors import NotFound
from storage.journal import Finding, highest_mark, scan

_PIECE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Replayed:
    """One segment. findings: below `size`, in order. size: where its readable or doubted part ends."""

    segment: int
    findings: list[Finding]
    size: int
    lost: bool


async def read_segment(
    disk: Disk, salt: bytes, segment: int, *, start: int = 0, final_size: int | None = None
) -> Replayed:
    """Scan one segment and drop its torn tail.

    final_size: the length that the next segment states, None for the last segment.
    """
    data = await read_file(disk, segment_name(segment), start)
    findings = list(scan(data, salt, segment, start, start))
    witness = final_size if final_size is not None else await _witness(disk, salt, segment, findings)
    kept: list[Finding] = []
    for finding in findings:
        if finding.verdict != "ok" and finding.start >= witness:
            break
        kept.append(finding)
    size = max(kept[-1].end if kept else start, start)
    lost = size < witness or any(finding.verdict == "unknown" for finding in kept)
    return Replayed(segment, kept, size, lost)


async def read_file(disk: Disk, name: str, start: int = 0) -> bytes:
    """A whole file from `start`; empty if it is missing."""
    parts = []
    try:
        while piece := await disk.read(name, start, _PIECE):
            parts.append(piece)
            start += len(piece)
    except NotFound:
        return b""
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _witness(disk: Disk, salt: bytes, segment: int, findings: list[Finding]) -> int:
    marked = highest_mark(await read_file(disk, marks_name(segment)), segment, salt)
    return max([marked, *(f.envelope.durable for f in findings if f.envelope is not None)])
