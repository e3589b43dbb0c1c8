"""The codec of the journal: what was written is found, what was not written never is."""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.storage.format.batch import make_batch
from sluice.storage.format.frame import Header, encode_head, make_run
from sluice.storage.format.journal import (
    ENVELOPE_BYTES,
    MARK_BYTES,
    Envelope,
    Finding,
    Kind,
    decode_envelope,
    decode_run,
    encode_envelope,
    encode_mark,
    highest_mark,
    scan,
)

SALT = b"saltsalt"
SEGMENT = 7


def frame(ledger: int, run: int, payload: bytes = b"hello") -> tuple[Header, bytes]:
    rows = pa.record_batch({"key": pa.array([b"k"]), "payload": pa.array([payload], pa.binary())})
    made = make_run(make_batch(rows, now=1, producer="p"))
    header = Header(ledger, run, run * 10, 1, 3, run * 10 - 1, "p", run, made.delayed, made.shape, made.crc)
    return header, encode_head(header, len(made.payload)) + bytes(made.payload)


def run_record(at: int, ledger: int, run: int, payload: bytes = b"hello", *, salt: bytes = SALT) -> bytes:
    header, body = frame(ledger, run, payload)
    envelope = Envelope(
        Kind.RUN, SEGMENT, at, len(body), ledger, run, header.first_entry, 1, header.crc, 3, header.last_confirmed, at
    )
    head, foot = encode_envelope(envelope, salt)
    return head + body + foot


def control(at: int, kind: Kind, ledger: int, epoch: int = 0) -> bytes:
    return b"".join(encode_envelope(Envelope(kind, SEGMENT, at, ledger=ledger, epoch=epoch), SALT))


def journal(payloads: list[bytes]) -> tuple[bytes, list[int]]:
    """A segment with runs and fences; also the offsets at which its records start."""
    data, starts = b"", []
    for number, payload in enumerate(payloads):
        starts.append(len(data))
        data += (
            control(len(data), Kind.FENCE, number, 5) if number % 3 == 2 else run_record(len(data), 1, number, payload)
        )
    return data, starts


def check_cover(findings: list[Finding], size: int) -> None:
    """Stretches lie one behind the other and cover everything."""
    at = 0
    for finding in findings:
        assert finding.start == at
        assert finding.end > at
        at = finding.end
    assert at == size


envelopes = st.builds(
    Envelope,
    kind=st.sampled_from(Kind),
    segment=st.just(SEGMENT),
    offset=st.integers(0, 2**32 - 1),
    size=st.integers(0, 1 << 20),
    ledger=st.integers(0, 2**31 - 1),
    run=st.integers(0, 2**32 - 1),
    first_entry=st.integers(0, 2**32 - 1),
    count=st.integers(0, 65536),
    crc=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**62),
    last_confirmed=st.integers(-1, 2**32 - 1),
    durable=st.integers(0, 2**32 - 1),
)


@given(envelopes)
@settings(max_examples=100)
def test_an_envelope_comes_back_from_head_and_foot(envelope: Envelope) -> None:
    head, foot = encode_envelope(envelope, SALT)
    assert len(head) == len(foot) == ENVELOPE_BYTES
    assert decode_envelope(head, 0, SALT, SEGMENT) == envelope
    assert decode_envelope(foot, 0, SALT, SEGMENT, foot=True) == envelope
    assert decode_envelope(foot, 0, SALT, SEGMENT) is None
    assert decode_envelope(head, 0, b"othersal", SEGMENT) is None
    assert decode_envelope(head, 0, SALT, SEGMENT + 1) is None


@given(envelopes, st.integers(0, ENVELOPE_BYTES * 8 - 1))
@settings(max_examples=200)
def test_an_envelope_with_a_flipped_bit_is_none(envelope: Envelope, bit: int) -> None:
    head = bytearray(encode_envelope(envelope, SALT)[0])
    head[bit // 8] ^= 1 << bit % 8
    assert decode_envelope(head, 0, SALT, SEGMENT) is None


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_bytes_that_nobody_wrote_are_never_a_record(data: bytes) -> None:
    findings = list(scan(data, SALT, SEGMENT))
    check_cover(findings, len(data))
    assert all(finding.verdict == "unknown" for finding in findings)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_a_whole_segment_is_found_record_by_record(payloads: list[bytes]) -> None:
    data, starts = journal(payloads)
    findings = list(scan(data, SALT, SEGMENT))
    assert [finding.start for finding in findings] == starts
    assert {finding.verdict for finding in findings} == {"ok"}
    assert {finding.reason for finding in findings} == {""}
    check_cover(findings, len(data))
    for at in starts:
        assert list(scan(data[at:], SALT, SEGMENT, at, at)) == [f for f in findings if f.start >= at]


def test_every_flipped_byte_is_served_or_named() -> None:
    data, starts = journal([b"a", b"b", b"c", b"d"])
    whole = list(scan(data, SALT, SEGMENT))
    rng = random.Random(3)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << rng.randrange(8)
        findings = list(scan(bytes(broken), SALT, SEGMENT))
        check_cover(findings, len(data))
        assert [finding.envelope for finding in findings] == [finding.envelope for finding in whole]
        for finding in findings:
            touched = finding.start <= at < finding.end
            assert finding.verdict == "ok" or touched
            assert bool(finding.reason) == touched
            record = finding.envelope
            if finding.verdict == "ok" and record is not None and record.kind is Kind.RUN:
                decode_run(record, bytes(broken[record.body : record.end - ENVELOPE_BYTES]))
    assert len(starts) == 4


def test_every_truncation_keeps_what_is_before_it() -> None:
    data, _ = journal([b"a", b"b", b"c", b"d"])
    whole = list(scan(data, SALT, SEGMENT))
    for size in range(len(data)):
        findings = list(scan(data[:size], SALT, SEGMENT))
        check_cover(findings, size)
        kept = [finding for finding in whole if finding.end <= size]
        assert findings[: len(kept)] == kept
        assert all(finding.verdict != "ok" for finding in findings[len(kept) :])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_wide_hole_swallows_nothing_behind_it(data: st.DataObject) -> None:
    whole, starts = journal([b"a", b"b", b"c", b"d", b"e"])
    low = data.draw(st.integers(0, len(whole) - 1))
    high = data.draw(st.integers(low + 1, len(whole)))
    filler = data.draw(st.sampled_from([b"\0", b"\xff", b"SLJh"]))
    broken = whole[:low] + (filler * (high - low))[: high - low] + whole[high:]
    findings = list(scan(broken, SALT, SEGMENT))
    check_cover(findings, len(whole))
    intact = {
        start for start, end in zip(starts, [*starts[1:], len(whole)], strict=True) if end <= low or start >= high
    }
    assert intact <= {finding.start for finding in findings if finding.verdict == "ok"}


def test_a_journal_in_a_payload_is_no_record() -> None:
    """A user's message holds whole records, from this place and from elsewhere; damage in front does not raise them."""
    forged = run_record(0, 99, 0, salt=b"guessed!") + run_record(0, 99, 1)
    for payload in (forged, forged * 3):
        data = run_record(0, 1, 0, payload)
        data += run_record(len(data), 1, 1)
        broken = b"\0" * (ENVELOPE_BYTES + 4) + data[ENVELOPE_BYTES + 4 :]
        for bytes_read in (data, broken):
            found = [finding.envelope for finding in scan(bytes_read, SALT, SEGMENT)]
            assert [(e.ledger, e.run) for e in found if e is not None] == [(1, 0), (1, 1)]


def test_the_highest_readable_mark_counts() -> None:
    marks = b"".join(encode_mark(SEGMENT, durable, SALT) for durable in (100, 250, 400))
    assert len(marks) == 3 * MARK_BYTES
    assert highest_mark(marks, SEGMENT, SALT) == 400
    assert highest_mark(marks[:-1], SEGMENT, SALT) == 250
    assert highest_mark(marks, SEGMENT + 1, SALT) == 0
    assert highest_mark(marks, SEGMENT, b"othersal") == 0
    for at in range(2 * MARK_BYTES, 3 * MARK_BYTES):
        broken = bytearray(marks)
        broken[at] ^= 16
        assert highest_mark(broken, SEGMENT, SALT) == 250
