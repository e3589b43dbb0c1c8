"""Reads the disk for `sluice inspect`, without a running cluster and without changing a byte.

Each function answers rows. With `verify`, a row has `ok`, and where that is false `problem` says what is wrong:

* a journal is well if every record that was synced can be read (a torn end was never acknowledged, so it is no loss);
* a ledger is well if each of its confirmed runs can be read from at least `ack_quorum` bookies of this machine that
  should hold it. The metadata does not say how far an open ledger is confirmed. So each run counts that a frame calls
  confirmed, or that `ack_quorum` bookies have stored, readable or not; and where damage without a name may hide a
  confirmed run, the ledger is not well. One that is in the object store must be whole there, and if its bookies have
  forgotten it only there;
* a cursor or another record is well if it decodes.

The answer is about this machine's disks: bookies on other machines are counted as missing, and named.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from sluice.actors.bookie import JournalRow, inspect_journal
from sluice.actors.ledger.record import LedgerRecord, LedgerState, unpack_record
from sluice.actors.ownership.fenced_record import record_in
from sluice.cluster.host.disk import FileDisk
from sluice.cluster.host.stores import read_metadata, read_objects
from sluice.cluster.settings.config import Configuration
from sluice.storage.errors import Corrupt, Invalid, NotFound
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import show
from sluice.storage.history.part import decode_footer, decode_group

Row = dict[str, Any]

BAD = ("damaged", "unknown", "missing")
"""Verdicts on a stretch of a journal that mean a loss on this disk."""


@dataclass(slots=True)
class Held:
    """The contents of one bookie's disk: per ledger its runs, and the highest entry known to be confirmed.

    damaged: runs that were stored and cannot be read. unnamed: something is damaged or gone that may have been any run.
    """

    runs: dict[int, dict[int, JournalRow]] = field(default_factory=dict)
    damaged: dict[int, dict[int, JournalRow]] = field(default_factory=dict)
    confirmed: dict[int, int] = field(default_factory=dict)
    unnamed: bool = False


def metadata(values: Configuration, *, verify: bool, prefix: str = "") -> list[Row]:
    """A row for each record: key, version, bytes, value (decoded where that is possible)."""
    rows = []
    for key, version, raw, damage in _records(values, prefix):
        row: Row = {"key": key, "version": version, "bytes": len(raw), "value": _plain(raw)}
        problem = damage or _decode_problem(key, raw)
        rows.append(row | _verdict(problem) if verify or damage else row)
    return rows


def cursor(
    values: Configuration, *, verify: bool, topic: str | None = None, subscription: str | None = None
) -> list[Row]:
    """A row for each subscription of each partition: mark-delete position and acknowledgements beyond it."""
    rows = []
    for key, version, raw, damage in _records(values, f"subscription/{topic}/" if topic else "subscription/"):
        _, of_topic, partition, name = key.split("/")
        if subscription not in (None, name):
            continue
        row: Row = {"topic": of_topic, "partition": int(partition), "subscription": name, "version": version}
        problem = damage or _decode_problem(key, raw)
        if not problem:
            value = msgpack.unpackb(raw)
            found = Cursor.decode(value["cursor"])
            row |= {
                "epoch": value["epoch"],
                "mark_delete": show(found.mark_delete),
                "acknowledged_beyond": found.acknowledged_count,
                "holes": found.holes,
            }
        rows.append(row | _verdict(problem) if verify or problem else row)
    return rows


def journal(values: Configuration, *, verify: bool, bookie: str | None = None) -> list[Row]:
    """A row for each journal segment of each bookie on this machine: records by kind, bytes, verdicts."""
    rows: list[Row] = []
    for name, found in _journals(values, bookie):
        segments: dict[int, list[JournalRow]] = {}
        for one in found:
            segments.setdefault(one.segment, []).append(one)
        for segment, stretches in segments.items():
            kinds = Counter(one.kind for one in stretches if one.verdict == "ok")
            verdicts = Counter(one.verdict for one in stretches)
            row: Row = {"bookie": name, "segment": segment, "bytes": sum(one.bytes for one in stretches)}
            row |= {kind: kinds[kind] for kind in ("run", "fence", "delete")}
            row |= {"torn": verdicts["torn"], "damaged": sum(verdicts[bad] for bad in BAD)}
            reasons = [f"offset {one.offset}: {one.verdict}: {one.reason}" for one in stretches if one.verdict in BAD]
            rows.append(row | _verdict("; ".join(reasons[:3])) if verify else row)
    return rows


def ledger(values: Configuration, *, verify: bool, ledger: int | None = None) -> list[Row]:
    """A row for each ledger of each partition: state, size, and the bookies of each fragment."""
    held = {name: _held(found) for name, found in _journals(values, None)} if verify else {}
    rows = []
    for key, _, raw, damage in _records(values, "partition/"):
        problem = damage or _decode_problem(key, raw)
        if problem:
            _, topic, partition = key.split("/")
            rows.append({"topic": topic, "partition": int(partition), "ledger": None} | _verdict(problem))
            continue
        record = unpack_record(raw)
        for one in record.ledgers:
            if ledger not in (None, one.id):
                continue
            row: Row = {
                "topic": record.topic,
                "partition": record.partition,
                "ledger": one.id,
                "state": one.state.value,
                "entries": one.last_entry + 1 if one.state is LedgerState.CLOSED else None,
                "bytes": one.bytes,
                "quorum": f"{one.ensemble}/{one.write_quorum}/{one.ack_quorum}",
                "fragments": [[part.first_entry, *part.bookies] for part in one.fragments],
                "objects": [part.name for part in one.offloaded.parts] if one.offloaded else [],
            }
            if verify:
                row |= _verdict(_history_problem(one, values) or (_ledger_problem(one, held) if one.fragments else ""))
            rows.append(row)
    if ledger is not None and not rows:
        raise NotFound(f"no partition has a ledger {ledger}")
    return rows


def _history_problem(record: LedgerRecord, values: Configuration) -> str:
    """The problem of a ledger's copy in the object store, or nothing."""
    if record.offloaded is None:
        return ""
    options = values.cluster_options().settings()
    store = read_objects(options["objects"], options["s3_endpoint_url"])
    runs = 0
    for part in record.offloaded.parts:
        try:
            tail = store.get(part.name, part.size - part.footer_bytes)
            footer = decode_footer(tail, part.size, part.footer_crc)
            for number, group in enumerate(footer.groups):
                decode_group(footer, number, store.get(part.name, group.start, group.length))
                runs += group.stop_run - group.first_run
        except (Corrupt, NotFound) as error:
            return f"object {part.name}: {error}"
    return "" if runs == record.last_run + 1 else f"its objects hold {runs} of {record.last_run + 1} runs"


def _ledger_problem(record: LedgerRecord, held: dict[str, Held]) -> str:
    """The problem of a ledger's copies on this machine's disks, or nothing."""
    is_open = record.state is not LedgerState.CLOSED
    for run in range((_last_stored(record, held) if is_open else record.last_run) + 1):
        holders = [name for name in record.write_set(run) if run in _runs(held, name, record.id)]
        if len(holders) < record.ack_quorum:
            lost = [name for name in record.write_set(run) if name not in holders]
            return f"run {run} can be read from {len(holders)} of {record.ack_quorum} bookies; not from {lost}"
    return _doubt(record, held) if is_open else ""


def _last_stored(record: LedgerRecord, held: dict[str, Held]) -> int:
    """The last run of an open ledger that may have been confirmed, as far as this machine's disks name it."""
    confirmed = max((one.confirmed.get(record.id, -1) for one in held.values()), default=-1)
    stored: dict[int, JournalRow] = {}
    copies: Counter[int] = Counter()
    for one in held.values():
        here = one.damaged.get(record.id, {}) | one.runs.get(record.id, {})
        stored |= here
        copies.update(here.keys())
    return max(
        (
            run
            for run, row in stored.items()
            if copies[run] >= record.ack_quorum or row.first_entry + row.count - 1 <= confirmed
        ),
        default=-1,
    )


def _doubt(record: LedgerRecord, held: dict[str, Held]) -> str:
    """Why an open ledger may have confirmed runs that no disk here knows, or nothing."""
    doubtful = [name for name in record.fragments[-1].bookies if name not in held or held[name].unnamed]
    if len(doubtful) < record.ack_quorum:
        return ""
    return f"confirmed runs may be lost: {doubtful} are not here, or are damaged where nobody can say what was written"


def _runs(held: dict[str, Held], bookie: str, ledger: int) -> dict[int, JournalRow]:
    return held[bookie].runs.get(ledger, {}) if bookie in held else {}


def _held(found: list[JournalRow]) -> Held:
    answer = Held()
    for row in found:
        answer.unnamed = answer.unnamed or row.verdict in ("unknown", "missing")
        if row.kind == "delete" and row.verdict == "ok":
            answer.runs.pop(row.ledger, None)
            answer.damaged.pop(row.ledger, None)
        elif row.kind == "run" and row.verdict in ("ok", "damaged"):
            kept = answer.runs if row.verdict == "ok" else answer.damaged
            kept.setdefault(row.ledger, {})[row.run] = row
            answer.confirmed[row.ledger] = max(answer.confirmed.get(row.ledger, -1), row.last_confirmed)
    return answer


def _journals(values: Configuration, bookie: str | None) -> Iterator[tuple[str, list[JournalRow]]]:
    root = Path(values.data_dir) / "bookies"
    folders = [folder for folder in sorted(root.glob("*")) if folder.is_dir() and bookie in (None, folder.name)]
    if not folders:
        raise NotFound(f"there is no bookie {bookie!r} in {root}" if bookie else f"there are no bookies in {root}")
    for folder in folders:
        yield folder.name, asyncio.run(_read_journal(folder))


async def _read_journal(folder: Path) -> list[JournalRow]:
    disk = FileDisk(folder, readers=1, read_only=True)
    try:
        return [row async for row in inspect_journal(disk)]
    except Corrupt as error:
        return [JournalRow(0, 0, 0, "unknown", reason=str(error))]
    finally:
        disk.close()


def _records(values: Configuration, prefix: str) -> Iterator[tuple[str, int, bytes, str]]:
    """Key, version and bytes of every metadata record with the prefix; and why it cannot be read, if that is so."""
    if not values.metadata and not (values.data_dir / "metadata.db").is_file():
        raise NotFound(f"there is no metadata in {values.data_dir}; name the data folder or the metadata store")
    options = values.cluster_options().settings()
    with read_metadata(options["metadata"], options["s3_endpoint_url"]) as store:
        for key in store.keys(prefix):
            try:
                record = store.read(key)
            except Corrupt as error:
                yield key, 0, b"", str(error)
                continue
            if record is not None:
                yield key, record.number, record.value, ""


def _decode_problem(key: str, raw: bytes) -> str:
    """Why a record cannot be read, or nothing. Kinds of records that this code does not know are not judged."""
    try:
        if key.startswith("partition/"):
            unpack_record(raw)
        elif key.startswith("subscription/"):
            Cursor.decode(record_in(key, raw)["cursor"])
    except (Corrupt, Invalid, ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _plain(raw: bytes) -> object:
    """A record for people: decoded if it is one msgpack map, else as text or hexadecimal digits."""
    try:
        value = msgpack.unpackb(raw)
    except (ValueError, msgpack.UnpackException):
        value = None
    if isinstance(value, dict):
        return value
    return raw.decode() if raw.isascii() else raw.hex()


def _verdict(problem: str) -> Row:
    return {"ok": not problem, "problem": problem or None}
