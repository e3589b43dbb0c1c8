"""Inspection reads what real bookies wrote, finds every kind of damage, and changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import msgpack
import msgspec
import pyarrow as pa
import pytest

from sluice.actors.ledger.record import (
    Fragment,
    HistoryPart,
    LedgerRecord,
    LedgerState,
    Offloaded,
    PartitionRecord,
    encode_record,
)
from sluice.actors.messages import TopicSettings
from sluice.cluster import inspect
from sluice.cluster.host.store_ports import AsyncMeta
from sluice.cluster.settings.config import Configuration, load
from sluice.storage.errors import NotFound
from sluice.storage.format.batch import make_batch
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.frame import Frame, Header, make_run
from sluice.storage.format.position import position
from sluice.storage.history.part import PartWriter
from sluice.storage.stores.metadata_sqlite import SqliteMetadata
from sluice.storage.stores.objects import LocalObjects
from tests.actors.bookie.world import add
from tests.kit.bookie_disks import store_runs

LEDGER, RUNS, TOPIC = 7, 4, "orders"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with two bookies that hold one ledger of four runs, its partition, and a subscription."""
    folder = tmp_path_factory.mktemp("written")
    store = SqliteMetadata(folder / "metadata.db")
    runs = [add(LEDGER, run, payload_bytes=100) for run in range(RUNS)]
    for name in ("bookie-0", "bookie-1"):
        asyncio.run(store_runs(folder, name, AsyncMeta(store), runs))
    store.create(f"partition/{TOPIC}/0", 1, msgpack.packb(encode_record(_record())))
    saved = {"epoch": 3, "owner": "x", "cursor": _cursor().encode()}
    store.create(f"subscription/{TOPIC}/0/billing", 1, msgpack.packb(saved))
    store.close()
    return folder


def offloaded(folder: Path, *, on_bookies: bool) -> Path:
    """The ledger is in the object store as well, or there alone; returns the file."""
    columns = pa.table({"payload": [b"one"]})
    run = make_run(make_batch(columns, now=1, producer="p"))
    writer = PartWriter(LEDGER, 0, 0)
    for number in range(RUNS):
        header = Header(LEDGER, number, number, 1, 3, -1, "p", 0, run.delayed, run.shape, run.crc)
        writer.add([Frame(header, run.payload)])
    sealed = writer.finish()
    name = "history/orders/0/1.parquet"
    LocalObjects(folder / "objects").put(name, sealed.data)
    part = HistoryPart(name, len(sealed.data), sealed.footer_bytes, sealed.footer_crc, 0, 0)
    record = _record()
    ledger = msgspec.structs.replace(record.ledgers[0], offloaded=Offloaded(1, (part,)))
    if not on_bookies:
        ledger = msgspec.structs.replace(ledger, fragments=())
    store = SqliteMetadata(folder / "metadata.db")
    store.create(f"partition/{TOPIC}/0", 2, msgpack.packb(encode_record(record.with_ledger(ledger))))
    store.close()
    return next((folder / "objects").rglob("*.parquet"))


@pytest.mark.parametrize("on_bookies", [True, False])
def test_offloaded_ledger_is_read_in_the_object_store(values: Configuration, on_bookies: bool) -> None:
    file = offloaded(values.data_dir, on_bookies=on_bookies)
    [row] = inspect.ledger(values, verify=True)
    assert (row["ok"], row["objects"]) == (True, ["history/orders/0/1.parquet"])
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    [row] = inspect.ledger(values, verify=True)
    assert not row["ok"]
    assert row["problem"] == "object history/orders/0/1.parquet: row group 0 does not fit its checksum"
    file.unlink()
    [row] = inspect.ledger(values, verify=True)
    assert row["problem"].startswith("object history/orders/0/1.parquet: there is no object")


@pytest.fixture
def values(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """A copy of that folder for one test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "data"
    shutil.copytree(written, folder)
    return load(None, data_dir=folder, metadata=f"sqlite://{folder / 'metadata.db'}").values


def _cursor() -> Cursor:
    cursor = Cursor()
    cursor.reset(position(LEDGER, 0))
    cursor.chain([(LEDGER, None)])
    return cursor


def _record(last_run: int = RUNS - 1, state: LedgerState = LedgerState.CLOSED) -> PartitionRecord:
    ledger = LedgerRecord(
        id=LEDGER,
        state=state,
        ensemble=2,
        write_quorum=2,
        ack_quorum=2,
        fragments=(Fragment(0, 0, ("bookie-0", "bookie-1")),),
        last_run=last_run,
        last_entry=last_run,
    )
    return PartitionRecord(topic=TOPIC, partition=0, settings=TopicSettings(), ledgers=(ledger,))


def _journal(values: Configuration, bookie: str) -> Path:
    return values.data_dir / "bookies" / bookie / "journal-00000001"


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_everything_is_well(values: Configuration) -> None:
    assert [row["ok"] for row in inspect.journal(values, verify=True)] == [True, True]
    (row,) = inspect.ledger(values, verify=True)
    assert (row["ledger"], row["entries"], row["ok"], row["quorum"]) == (LEDGER, RUNS, True, "2/2/2")
    (cursor,) = inspect.cursor(values, verify=True)
    assert (cursor["topic"], cursor["subscription"], cursor["epoch"], cursor["ok"]) == (TOPIC, "billing", 3, True)
    assert all(row["ok"] for row in inspect.metadata(values, verify=True))


def test_the_counts_of_a_journal(values: Configuration) -> None:
    rows = inspect.journal(values, verify=False, bookie="bookie-1")
    assert [(row["bookie"], row["run"], row["damaged"]) for row in rows] == [("bookie-1", RUNS, 0)]
    assert "ok" not in rows[0]


def test_nothing_is_changed(values: Configuration) -> None:
    before = _digest(values.data_dir / "bookies")
    for look in (inspect.journal, inspect.ledger, inspect.cursor, inspect.metadata):
        look(values, verify=True)
    assert _digest(values.data_dir / "bookies") == before


def _digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_flipped_byte_is_named_by_bookie_and_ledger(values: Configuration) -> None:
    ((_, found),) = inspect._journals(values, "bookie-1")
    record = next(one for one in found if one.kind == "run" and one.run == 1)
    _flip(_journal(values, "bookie-1"), record.offset + record.bytes // 2)
    well, ill = inspect.journal(values, verify=True)
    assert (well["ok"], ill["ok"], ill["bookie"]) == (True, False, "bookie-1")
    (row,) = inspect.ledger(values, verify=True)
    assert row["ok"] is False
    assert "run 1 can be read from 1 of 2 bookies; not from ['bookie-1']" in row["problem"]


def test_a_lost_disk_is_named(values: Configuration) -> None:
    (values.data_dir / "bookies" / "bookie-0").rename(values.data_dir / "gone")
    (row,) = inspect.ledger(values, verify=True)
    assert "run 0 can be read from 1 of 2 bookies; not from ['bookie-0']" in row["problem"]


def test_a_run_that_nobody_has_is_named(values: Configuration) -> None:
    store = SqliteMetadata(values.data_dir / "metadata.db")
    store.create(f"partition/{TOPIC}/0", 2, msgpack.packb(encode_record(_record(last_run=RUNS))))
    store.close()
    (row,) = inspect.ledger(values, verify=True)
    assert f"run {RUNS} can be read from 0 of 2 bookies" in row["problem"]


def _reopen(values: Configuration) -> None:
    """Make the ledger an open one in the metadata: so each one looks after a kill."""
    store = SqliteMetadata(values.data_dir / "metadata.db")
    store.create(f"partition/{TOPIC}/0", 2, msgpack.packb(encode_record(_record(state=LedgerState.OPEN))))
    store.close()


def _damage(values: Configuration, bookie: str, run: int, *, whole: bool = False) -> None:
    """Damage the body of a run's record; whole: also what describes it on both sides."""
    ((_, found),) = inspect._journals(values, bookie)
    record = next(one for one in found if one.kind == "run" and one.run == run)
    for at in range(8, record.bytes, 32) if whole else (record.bytes // 2,):
        _flip(_journal(values, bookie), record.offset + at)


@pytest.mark.parametrize("run", range(RUNS))
def test_both_copies_of_an_open_ledger_damaged_are_named(values: Configuration, run: int) -> None:
    _reopen(values)
    (row,) = inspect.ledger(values, verify=True)
    assert (row["state"], row["ok"]) == ("OPEN", True)
    for bookie in ("bookie-0", "bookie-1"):
        _damage(values, bookie, run)
    (row,) = inspect.ledger(values, verify=True)
    assert row["ok"] is False
    assert f"run {run} can be read from 0 of 2 bookies" in row["problem"]


def test_every_run_of_an_open_ledger_damaged_is_named(values: Configuration) -> None:
    _reopen(values)
    for bookie in ("bookie-0", "bookie-1"):
        for run in range(RUNS):
            _damage(values, bookie, run, whole=True)
    (row,) = inspect.ledger(values, verify=True)
    assert row["ok"] is False
    assert "confirmed runs may be lost: ['bookie-0', 'bookie-1']" in row["problem"]


def test_a_run_on_too_few_bookies_was_never_confirmed(values: Configuration) -> None:
    """The last run of an open ledger that only one of two bookies stored is no loss."""
    _reopen(values)
    ((_, found),) = inspect._journals(values, "bookie-1")
    last = next(one for one in found if one.kind == "run" and one.run == RUNS - 1)
    journal = _journal(values, "bookie-1")
    journal.write_bytes(journal.read_bytes()[: last.offset])
    for mark in journal.parent.glob("marks-*"):
        mark.unlink()
    (row,) = inspect.ledger(values, verify=True)
    assert row["ok"] is True


def test_a_damaged_cursor_is_named(values: Configuration) -> None:
    store = SqliteMetadata(values.data_dir / "metadata.db")
    store.create(f"subscription/{TOPIC}/0/billing", 2, msgpack.packb({"epoch": 4, "cursor": b"nothing"}))
    store.close()
    (cursor,) = inspect.cursor(values, verify=False)
    assert cursor["ok"] is False
    bad = [row["key"] for row in inspect.metadata(values, verify=True) if not row["ok"]]
    assert bad == [f"subscription/{TOPIC}/0/billing"]


def test_filters(values: Configuration) -> None:
    assert inspect.cursor(values, verify=False, topic="other") == []
    assert inspect.cursor(values, verify=False, topic=TOPIC, subscription="other") == []
    assert [row["key"] for row in inspect.metadata(values, verify=False, prefix="subscription/")] == [
        f"subscription/{TOPIC}/0/billing"
    ]
    with pytest.raises(NotFound, match="no partition has a ledger 8"):
        inspect.ledger(values, verify=False, ledger=8)
    with pytest.raises(NotFound, match="there is no bookie 'nope'"):
        inspect.journal(values, verify=False, bookie="nope")


def test_an_empty_folder_is_said(values: Configuration, tmp_path: Path) -> None:
    empty = load(None, data_dir=tmp_path / "empty").values
    with pytest.raises(NotFound, match="there is no metadata in"):
        inspect.metadata(empty, verify=False)
    with pytest.raises(NotFound, match="there are no bookies in"):
        inspect.journal(empty, verify=False)


def test_a_subscription_that_cannot_be_read_is_a_row_like_others(values: Configuration) -> None:
    store = SqliteMetadata(values.data_dir / "metadata.db")
    store.create(f"subscription/{TOPIC}/0/odd", 1, msgpack.packb({"cursor": _cursor().encode()}))
    store.close()
    assert [(row["subscription"], row.get("ok", True)) for row in inspect.cursor(values, verify=False)] == [
        ("billing", True),
        ("odd", False),
    ]
