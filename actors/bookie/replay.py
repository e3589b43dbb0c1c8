"""A start restores the state in which the bookie ended, from the newest checkpoint and the journal behind it.

Each segment is scanned (storage.format.journal). What lies above the highest witness of what was synced and cannot be
read is a torn tail; it was never acknowledged and is cut off. Below, a record that cannot be read but has a name
becomes a damaged run, unless a readable copy of it stands elsewhere. A stretch without name, a segment that is shorter
than its witness or missing, or checkpoints that cannot be read mean that something unknown is lost: `lost` is set, and
every ledger that could have been here goes into limbo.

If an index table is damaged or missing, all segments are replayed instead; the rest of the checkpoint stays valid.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from sluice.actors.bookie.checkpoint import Checkpoint
from sluice.actors.bookie.journal import marks_name, segment_name, segment_of
from sluice.actors.ports import Disk
from sluice.storage.errors import NotFound
from sluice.storage.format.journal import OVERHEAD, Envelope, Finding, Kind, highest_mark, scan

_PIECE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scanned:
    """One segment. findings: the valid ones, in order. size: where they end. torn: the bytes that were left out.

    witness: up to here it was surely synced; what lies above may be in the page cache alone. lost: something is missing
    that has no name.
    """

    segment: int
    findings: list[Finding]
    size: int
    torn: list[Finding] = field(default_factory=list)
    lost: bool = False
    witness: int = 0


async def read_segments(disk: Disk, salt: bytes, checkpoint: Checkpoint, *, everything: bool) -> AsyncIterator[Scanned]:
    """Scan the segments that a start must replay, in order; everything: also those before the checkpoint."""
    names = await disk.names()
    present = [number for name in names if (number := segment_of(name)) is not None]
    marked = [number for name in names if (number := segment_of(name, "marks-")) is not None]
    first = max(checkpoint.segment, 1)
    last = max([first - 1, *present, *marked])
    if everything:
        for number, ledgers in sorted(checkpoint.segments.live.items()):
            if number < first and ledgers and number not in present:
                yield Scanned(number, [], 0, lost=True)
        for number in present:
            if number < first:
                yield await scan_segment(disk, salt, number, final_size=checkpoint.segments.sizes.get(number))
    for number in range(first, last + 1):
        start = checkpoint.offset if number == checkpoint.segment and not everything else 0
        final_size = await _final_size(disk, salt, number) if number < last else None
        scanned = await scan_segment(disk, salt, number, start=start, final_size=final_size)
        missing = number not in present or scanned.size < start
        yield replace(scanned, lost=scanned.lost or missing)


async def scan_segment(
    disk: Disk, salt: bytes, segment: int, *, start: int = 0, final_size: int | None = None
) -> Scanned:
    """Scan one segment from offset `start`. final_size: its length as its successor states it, if that is known."""
    data = await read_file(disk, segment_name(segment), start)
    findings = list(scan(data, salt, segment, start, start))
    witness = final_size
    if witness is None:
        marked = highest_mark(await read_file(disk, marks_name(segment)), segment, salt)
        witness = max([marked, *(f.envelope.durable for f in findings if f.envelope is not None)])
    cut = next((n for n, f in enumerate(findings) if f.verdict != "ok" and f.start >= witness), len(findings))
    kept, torn = findings[:cut], findings[cut:]
    size = kept[-1].end if kept else min(start, await disk.size(segment_name(segment)))
    lost = size < witness or any(finding.verdict == "unknown" for finding in kept)
    return Scanned(segment, kept, size, torn, lost, max(start, witness))


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


@dataclass(slots=True)
class Replay:
    """Collects the records of the segments.

    apply: called with each record that counts, in order, and whether it can be read. damaged: those that cannot. last,
    size, witness: of the last segment, see Scanned.
    """

    apply: Callable[[Envelope, bool], None]
    last: int = 0
    size: int = 0
    witness: int = 0
    records: int = 0
    torn: int = 0
    lost: bool = False
    damaged: dict[tuple[int, int], Envelope] = field(default_factory=dict)

    def apply_scan(self, scanned: Scanned) -> None:
        for finding in scanned.findings:
            envelope = finding.envelope
            if envelope is None or envelope.kind is Kind.BEGIN:
                continue
            readable = finding.verdict == "ok"
            if not readable and envelope.kind is Kind.RUN:
                self.damaged[envelope.ledger, envelope.run] = envelope
            self.apply(envelope, readable)
            self.records += 1
        self.last, self.size, self.witness = scanned.segment, scanned.size, scanned.witness
        self.torn += sum(finding.end - finding.start for finding in scanned.torn)
        self.lost = self.lost or scanned.lost


async def _final_size(disk: Disk, salt: bytes, segment: int) -> int | None:
    """The length of a segment, as its successor states it."""
    try:
        data = await disk.read(segment_name(segment + 1), 0, OVERHEAD)
    except NotFound:
        return None
    for finding in scan(data, salt, segment + 1):
        begin = finding.envelope
        if begin is not None and begin.kind is Kind.BEGIN and begin.run == segment:
            return begin.epoch
    return None
