"""Reads a bookie's disk from outside, without starting the bookie and without changing a byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sluice.actors.bookie.checkpoint import Checkpoint, load_checkpoints
from sluice.actors.bookie.cookie import read_cookie
from sluice.actors.bookie.journal import segment_of
from sluice.actors.bookie.replay import read_segments
from sluice.actors.ports import Disk
from sluice.storage.format.journal import Finding


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One stretch of a journal segment.

    verdict: ok, damaged (it is known what stood here and it cannot be read), unknown (it is not known), torn (written
    but never synced, hence never acknowledged), or missing (the segment is shorter than what was synced, or gone).
    kind: run, fence, delete or begin, with the record's numbers; empty where there is no record. epoch of a begin
    record is the final length of the segment before, `run` its number. bytes: length of the stretch.
    """

    segment: int
    offset: int
    bytes: int
    verdict: str
    kind: str = ""
    ledger: int = 0
    run: int = 0
    first_entry: int = 0
    count: int = 0
    epoch: int = 0
    last_confirmed: int = -1
    reason: str = ""


async def inspect_journal(disk: Disk) -> AsyncIterator[JournalRow]:
    """Every record of the journal in order, with its verdict; all checksums are verified.

    Raises Corrupt if the disk has no readable cookie: without its salt no record can be told from a user's bytes.
    """
    cookie = await read_cookie(disk)
    found = await load_checkpoints(disk, cookie.salt)
    checkpoint = found[0] if found else Checkpoint(segment=await _first_segment(disk))
    async for scanned in read_segments(disk, cookie.salt, checkpoint, everything=True):
        for finding in scanned.findings:
            yield _row(scanned.segment, finding, finding.verdict)
        if scanned.lost and all(finding.verdict != "unknown" for finding in scanned.findings):
            yield JournalRow(scanned.segment, scanned.size, 0, "missing", reason="bytes that were synced are gone")
        for finding in scanned.torn:
            yield _row(scanned.segment, finding, "torn")


async def _first_segment(disk: Disk) -> int:
    return min((number for name in await disk.names() if (number := segment_of(name)) is not None), default=0)


def _row(segment: int, finding: Finding, verdict: str) -> JournalRow:
    size = finding.end - finding.start
    record = finding.envelope
    if record is None:
        return JournalRow(segment, finding.start, size, verdict, reason=finding.reason)
    return JournalRow(
        segment,
        finding.start,
        size,
        verdict,
        record.kind.name.lower(),
        record.ledger,
        record.run,
        record.first_entry,
        record.count,
        record.epoch,
        record.last_confirmed,
        finding.reason,
    )
