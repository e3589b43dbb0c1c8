"""Journal records: what a bookie writes, and how it distinguishes damage from a torn tail.

A journal is a series of numbered segment files. A segment is a series of records, each framed twice:

    head   64 bytes   envelope with magic "SLJh"
    body   n bytes    one frame (storage.format.frame) for a run, nothing for the other kinds
    foot   64 bytes   the same envelope with magic "SLJf"

    envelope, little-endian:
    0   4  magic          16  4  ledger         32  4  checksum of the payload   56  4  offset of the head
    4   4  CRC32C         20  4  run            36  8  epoch                     60  4  durable
    8   1  kind, 3 zero   24  4  first entry    44  8  last confirmed
    12  4  body bytes     28  4  count          52  4  segment

Why twice. If the only description of a record stood in front of it, one flipped bit there would make the record
anonymous: the bookie would know that *something* is lost but not what, and would have to doubt every ledger. With
the foot, any single damaged spot leaves at least one description, so the loss has a name and is answered with
Corrupt for that run alone. Only damage that takes both leaves an *unknown* stretch.

Why the salt. After damage the reader searches for the next magic. A payload is the user's bytes and may hold
anything, even a copy of a journal. The envelope's CRC32C therefore starts with a salt that was drawn when the disk
was formatted, and covers segment and offset: bytes which were not written by this bookie to this very place do not
pass for a record.

Torn or damaged? A crash may lose or tear what was written but not yet synced, and nothing of that was ever
acknowledged, so it may be forgotten. Damage to what had been synced must never be forgotten. The bytes look the
same, so the journal keeps witnesses of how far it was durable: every envelope carries in `durable` the length of
the segment that was known synced when it was written, every segment begins with a BEGIN record that states the
final length of its predecessor, and when nothing follows at once a mark (16 bytes, in a file of its own, not synced
itself) is written after the sync and before its acknowledgements. What lies below the highest witness and cannot be
read is damage. What lies above and cannot be read is a torn tail. A mark survives the end of the process. So the last
group has no witness only after a power failure, where a torn tail is to be expected, or if the process ended before it
wrote the group that was to be the witness.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import google_crc32c

from sluice.storage.errors import Corrupt
from sluice.storage.format.batch import MAX_RUN_BYTES, MAX_RUN_MESSAGES
from sluice.storage.format.frame import MAX_HEADER_BYTES, PREFIX_BYTES, Buffer, Frame, decode_frame

_ENVELOPE = struct.Struct("<4sIBxxxIIIIIIqqIII")
ENVELOPE_BYTES = _ENVELOPE.size
_CHECKED = 8
"""Magic and checksum take so many bytes; the checksum covers the magic and what is behind both."""
OVERHEAD = 2 * ENVELOPE_BYTES
"""What a record needs beside its body."""
MAX_BODY_BYTES = PREFIX_BYTES + MAX_HEADER_BYTES + 12 * MAX_RUN_MESSAGES + MAX_RUN_BYTES
SALT_BYTES = 8

HEAD = b"SLJh"
FOOT = b"SLJf"
_ANY = b"SLJ"
_MARK = struct.Struct("<4sIII")
MARK = b"SLJm"
MARK_BYTES = _MARK.size


class Kind(IntEnum):
    """The kind of a record.

    RUN: a frame. FENCE: the ledger's epoch is now at least `epoch`. DELETE: the ledger is forgotten. BEGIN: first
    record of a segment; `run` is the number of the segment before (0 for none) and `epoch` its final length.
    """

    RUN = 1
    FENCE = 2
    DELETE = 3
    BEGIN = 4


@dataclass(frozen=True, slots=True)
class Envelope:
    """The description of one record. offset is where its head starts in the segment, size the length of its body."""

    kind: Kind
    segment: int
    offset: int
    size: int = 0
    ledger: int = 0
    run: int = 0
    first_entry: int = 0
    count: int = 0
    crc: int = 0
    epoch: int = 0
    last_confirmed: int = -1
    durable: int = 0

    def placed(self, segment: int, offset: int, durable: int) -> Envelope:
        """The same record in this place (dataclasses.replace costs three times as much, and each append needs one)."""
        e = self
        return Envelope(
            e.kind, segment, offset, e.size, e.ledger, e.run, e.first_entry, e.count, e.crc, e.epoch, e.last_confirmed,
            durable,
        )  # fmt: skip

    @property
    def body(self) -> int:
        return self.offset + ENVELOPE_BYTES

    @property
    def end(self) -> int:
        """Offset behind the record."""
        return self.offset + OVERHEAD + self.size


Verdict = Literal["ok", "damaged", "unknown"]
"""ok: the body can be served. damaged: it is known what stood here, and it cannot be read. unknown: it is not known."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One stretch start .. end-1 of a segment. envelope is None exactly when the verdict is unknown."""

    start: int
    end: int
    verdict: Verdict
    envelope: Envelope | None
    reason: str = ""


def encode_envelope(envelope: Envelope, salt: bytes) -> tuple[bytes, bytes]:
    """Head and foot of a record; the body goes between them as it is."""
    e = envelope
    values = (e.kind, e.size, e.ledger, e.run, e.first_entry, e.count, e.crc, e.epoch, e.last_confirmed)
    behind = _ENVELOPE.pack(HEAD, 0, *values, e.segment, e.offset, e.durable)[_CHECKED:]
    head, foot = _checksum(HEAD, behind, salt), _checksum(FOOT, behind, salt)
    return HEAD + head.to_bytes(4, "little") + behind, FOOT + foot.to_bytes(4, "little") + behind


def decode_envelope(data: Buffer, at: int, salt: bytes, segment: int, *, foot: bool = False) -> Envelope | None:
    """The envelope at offset `at` of a buffer, or None if none was written there."""
    if at < 0 or len(data) < at + ENVELOPE_BYTES:
        return None
    magic, crc, kind, size, ledger, run, first, count, body_crc, epoch, confirmed, number, offset, durable = (
        _ENVELOPE.unpack_from(data, at)
    )
    if magic != (FOOT if foot else HEAD) or number != segment or size > MAX_BODY_BYTES:
        return None
    behind = bytes(memoryview(data)[at + _CHECKED : at + ENVELOPE_BYTES])
    if kind not in Kind._value2member_map_ or _checksum(magic, behind, salt) != crc:
        return None
    return Envelope(Kind(kind), number, offset, size, ledger, run, first, count, body_crc, epoch, confirmed, durable)


def decode_run(envelope: Envelope, body: Buffer) -> Frame:
    """The frame of a RUN record, with every checksum verified and its identity compared. Raises Corrupt."""
    frame = decode_frame(body)
    header = frame.header
    found = (header.ledger, header.run, header.first_entry, header.count, header.crc)
    wanted = (envelope.ledger, envelope.run, envelope.first_entry, envelope.count, envelope.crc)
    if found != wanted:
        raise Corrupt(f"the record says (ledger, run, first entry, count, checksum) {wanted}, its frame says {found}")
    return frame


def scan(data: Buffer, salt: bytes, segment: int, start: int = 0, base: int = 0) -> Iterator[Finding]:
    """Every stretch of a segment in order, without gaps between them.

    data: the bytes of the segment from offset `base` on. start: the offset of a record. Resynchronises after damage.
    """
    view = memoryview(data)
    at, end = start - base, len(view)
    while at < end:
        envelope = decode_envelope(view, at, salt, segment)
        if envelope is None or envelope.offset != base + at:
            envelope = _resynchronise(view, at, base, salt, segment)
            begin = base + end if envelope is None else envelope.offset
            if begin > base + at:
                yield Finding(base + at, begin, "unknown", None, "no record can be recognised here")
            if envelope is None:
                return
        if envelope.end - base > end:
            yield Finding(envelope.offset, base + end, "damaged", envelope, "the segment ends inside this record")
            return
        yield _judge(view, base, envelope, salt)
        at = envelope.end - base


def encode_mark(segment: int, durable: int, salt: bytes) -> bytes:
    """A witness that the first `durable` bytes of a segment were synced."""
    behind = _MARK.pack(MARK, 0, segment, durable)[_CHECKED:]
    return _MARK.pack(MARK, _checksum(MARK, behind, salt), segment, durable)


def highest_mark(data: Buffer, segment: int, salt: bytes) -> int:
    """The highest length that any readable mark of a segment witnesses; 0 if there is none."""
    highest = 0
    for at in range(0, len(data) - MARK_BYTES + 1, MARK_BYTES):
        magic, crc, number, durable = _MARK.unpack_from(data, at)
        if magic == MARK and number == segment and durable > highest:
            behind = bytes(memoryview(data)[at + _CHECKED : at + MARK_BYTES])
            highest = durable if _checksum(MARK, behind, salt) == crc else highest
    return highest


def _checksum(magic: bytes, behind: bytes, salt: bytes) -> int:
    """Return the checksum that stands between a magic and what is behind it."""
    return int(google_crc32c.value(salt + magic + behind))


def _judge(view: memoryview, base: int, envelope: Envelope, salt: bytes) -> Finding:
    if envelope.kind is Kind.RUN:
        try:
            decode_run(envelope, view[envelope.body - base : envelope.end - ENVELOPE_BYTES - base])
        except Corrupt as error:
            return Finding(envelope.offset, envelope.end, "damaged", envelope, str(error))
    head = decode_envelope(view, envelope.offset - base, salt, envelope.segment)
    foot = decode_envelope(view, envelope.end - ENVELOPE_BYTES - base, salt, envelope.segment, foot=True)
    reason = "" if head == foot else "one of its two envelopes is damaged"
    return Finding(envelope.offset, envelope.end, "ok", envelope, reason)


def _resynchronise(view: memoryview, at: int, base: int, salt: bytes, segment: int) -> Envelope | None:
    """The next record behind damage at `at`, known by its head or, if that is what was damaged, by its foot."""
    data = view.obj if isinstance(view.obj, bytes) and len(view.obj) == len(view) else bytes(view)
    candidate = data.find(_ANY, at)
    while candidate >= 0:
        head = decode_envelope(view, candidate, salt, segment)
        if head is not None and head.offset == base + candidate:
            return head
        foot = decode_envelope(view, candidate, salt, segment, foot=True)
        if foot is not None and foot.end == base + candidate + ENVELOPE_BYTES and foot.offset >= base + at:
            return foot
        candidate = data.find(_ANY, candidate + 1)
    return None
