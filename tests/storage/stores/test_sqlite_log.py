"""SQLite's log: the end that a crash leaves is opened, damage and a lost end are refused in one line."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.storage.errors import Corrupt
from sluice.storage.stores import metadata_sqlite
from sluice.storage.stores.metadata import Record
from sluice.storage.stores.metadata_sqlite import SLOTS, SqliteMetadata, Witness, highest_seen, read_only, witness_of
from sluice.storage.stores.sqlite_log import check_log

RECORDS = 40
HEADER, FRAME = 32, 24 + 4096


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A metadata file as a kill leaves it: every change is in the log alone."""
    live = tmp_path / "live"
    store = SqliteMetadata(live / "m.db")
    for number in range(1, RECORDS + 1):
        assert store.create(f"record/{number}", 1, b"%d" % number * 100)
    shutil.copytree(live, tmp_path / "killed")
    store.close()
    return tmp_path / "killed" / "m.db"


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _frames(path: Path) -> int:
    return (_log(path).stat().st_size - HEADER) // FRAME


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_store_of_a_killed_process_is_opened_whole(killed: Path) -> None:
    assert _frames(killed) > RECORDS
    check_log(_log(killed))
    store = SqliteMetadata(killed)
    assert len(store.keys("record/")) == RECORDS
    store.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_byte_anywhere_in_the_log_is_refused(killed: Path, seed: int) -> None:
    """SQLite itself opens it without a word, with fewer records. Nothing is changed by the refusal."""
    rng = random.Random(seed)
    size = _log(killed).stat().st_size
    at = seed if seed < 4 else rng.randrange(size)
    _flip(_log(killed), at)
    before = {path.name: path.read_bytes() for path in killed.parent.iterdir()}
    with pytest.raises(Corrupt, match=r"m\.db") as refused:
        SqliteMetadata(killed)
    assert "\n" not in str(refused.value)
    assert str(killed) in str(refused.value)
    with pytest.raises(Corrupt, match=str(killed)), read_only(killed):
        pass
    assert {path.name: path.read_bytes() for path in killed.parent.iterdir() if "shm" not in path.name} == {
        name: data for name, data in before.items() if "shm" not in name
    }


@pytest.mark.parametrize("part", [0, 1, 8, 12, 16, 24, 2000])
def test_a_frame_damaged_in_the_middle_is_named(killed: Path, part: int) -> None:
    """In its page, its salts or its checksum; also without a witness."""
    witness_of(killed).unlink()
    _flip(_log(killed), HEADER + 10 * FRAME + part)
    with pytest.raises(Corrupt, match=r"m\.db-wal is damaged \(frame 11 fails its checksum"):
        SqliteMetadata(killed)


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_log_that_lost_its_end_is_refused(killed: Path, kept: float) -> None:
    """The log alone looks as after a crash; the witness knows better. Without one, SQLite's answer stands."""
    log = _log(killed)
    with log.open("rb+") as file:
        file.truncate(int(log.stat().st_size * kept))
    check_log(log)
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"gone back in time: change 40 was confirmed.*remove .*m\.db-witness"):
            SqliteMetadata(killed)
    witness_of(killed).unlink()
    store = SqliteMetadata(killed)
    assert len(store.keys("record/")) < RECORDS
    store.close()


@pytest.mark.parametrize("seed", range(10))
def test_store_with_a_torn_transaction_is_opened_without_it(killed: Path, seed: int) -> None:
    """The transaction was never confirmed: any of its pages may be missing, also one in front of others."""
    store = SqliteMetadata(killed)
    before = _frames(killed)
    store.create_many([(f"late/{number}", 1, b"x" * 3000) for number in range(20)])
    log = _log(killed)
    copy = killed.parent / "torn" / "m.db"
    copy.parent.mkdir()
    shutil.copyfile(killed, copy)
    shutil.copyfile(log, _log(copy))
    store.close()
    data = bytearray(_log(copy).read_bytes())
    rng = random.Random(seed)
    for frame in rng.sample(range(before, _frames(copy)), 3):
        start = HEADER + frame * FRAME + rng.randrange(2) * 512
        data[start : start + 512] = bytes(512)
    _log(copy).write_bytes(data[: len(data) - rng.choice([0, 1, 5000])])
    opened = SqliteMetadata(copy)
    assert len(opened.keys("record/")) == RECORDS
    assert opened.keys("late/") == []
    opened.close()


def test_a_log_that_began_anew_is_opened(tmp_path: Path) -> None:
    """Behind its new frames stand those of the log before, with other salts."""
    store = SqliteMetadata(tmp_path / "m.db")
    for number in range(1, RECORDS + 1):
        store.create("record", number, b"%d" % number * 1000)
    with contextlib.closing(sqlite3.connect(tmp_path / "m.db")) as other, other:
        other.execute("PRAGMA wal_checkpoint(RESTART)")
    other.close()
    store.create("record", RECORDS + 1, b"new")
    check_log(_log(tmp_path / "m.db"))
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
    opened = SqliteMetadata(tmp_path / "copy" / "m.db")
    assert opened.read("record") == Record(RECORDS + 1, b"new")
    opened.close()
    store.close()


def test_a_log_of_nothing_is_fine(tmp_path: Path) -> None:
    log = tmp_path / "m.db-wal"
    for content in (b"", b"\x37", bytes(32), bytes(32 + 5000)):
        log.write_bytes(content)
        check_log(log)
    check_log(tmp_path / "none")


def test_a_log_is_checked_while_others_write(tmp_path: Path) -> None:
    """A reader finds no damage in a log that grows and restarts meanwhile."""
    path = tmp_path / "metadata.db"
    SqliteMetadata(path).close()
    command = [sys.executable, "-m", "tests.conformance.writer", "sqlite", str(tmp_path), "w"]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        for number, _ in enumerate(writer.stdout):
            if number % 10 == 0:
                check_log(_log(path))
            if number > 1200:  # the log restarts after about five hundred
                break
    finally:
        writer.kill()
        writer.wait()
    SqliteMetadata(path).close()


def test_every_open_store_leaves_the_locks_of_others(tmp_path: Path) -> None:
    """A second store that comes and goes in one process must not let a third, elsewhere, take the log away."""
    first = SqliteMetadata(tmp_path / "m.db")
    first.create("a", 1, b"one")
    SqliteMetadata(tmp_path / "m.db")  # opens and closes no descriptor of the file beside SQLite
    code = "import sys; from sluice.storage.stores.metadata_sqlite import SqliteMetadata as S; S(sys.argv[1]).close()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.db")], check=True)
    assert _log(tmp_path / "m.db").exists(), "another process ended the log that this one writes to"
    first.create("a", 2, b"two")
    again = SqliteMetadata(tmp_path / "m.db")
    assert again.read("a") == Record(2, b"two")


def test_a_damaged_page_of_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.db"
    store = SqliteMetadata(path)
    for number in range(500):
        store.create(f"record/{number}", 1, b"x" * 500)
    store.close()
    whole = path.read_bytes()
    at = whole.index(b"record/77")
    path.write_bytes(whole[:at] + b"recorc" + whole[at + 6 :])
    with pytest.raises(Corrupt, match=r"m\.db is damaged: .*put back a whole copy"):
        SqliteMetadata(path)
    monkeypatch.setattr(metadata_sqlite, "CHECKED_BYTES", len(whole) - 1)  # one page more than is looked through
    SqliteMetadata(path).close()


def test_a_removal_is_a_change(tmp_path: Path) -> None:
    """A file that forgets a removal would bring the record back."""
    store = SqliteMetadata(tmp_path / "m.db")
    store.remove("never")
    store.create("a", 1, b"one")
    before = highest_seen(witness_of(store.path))
    shutil.copytree(tmp_path, tmp_path / "older", ignore=shutil.ignore_patterns("older"))
    store.remove("a")
    assert highest_seen(witness_of(store.path)) == before + 1
    shutil.copyfile(witness_of(store.path), witness_of(tmp_path / "older" / "m.db"))
    with pytest.raises(Corrupt, match="gone back in time"):
        SqliteMetadata(tmp_path / "older" / "m.db")
    store.close()


def test_a_file_of_schema_1_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    SqliteMetadata(tmp_path / "new.db").create("a", 1, b"one")
    with contextlib.closing(sqlite3.connect(path)) as old, old:
        old.execute(
            "CREATE TABLE versions (key TEXT NOT NULL, number INTEGER NOT NULL, crc INTEGER NOT NULL,"
            " value BLOB NOT NULL, UNIQUE (key, number))"
        )
        old.execute("ATTACH ? AS new", (str(tmp_path / "new.db"),))
        old.execute("INSERT INTO versions SELECT key, number, crc, value FROM new.versions")
        old.execute("PRAGMA user_version = 1")
    old.close()
    for _ in range(2):
        store = SqliteMetadata(path)
        assert store.read("a") == Record(1, b"one")
        store.close()
    store = SqliteMetadata(path)
    assert store.create("a", 2, b"two")
    assert highest_seen(witness_of(path)) == 2
    store.close()


def test_a_witness_that_is_damaged_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "w"
    assert highest_seen(path) == 0
    witness = Witness(path)
    witness.saw(7)
    witness.saw(5)
    assert highest_seen(path) == 7
    witness.close()
    witness.close()
    whole = path.read_bytes()
    assert len(whole) == 16 * SLOTS
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        assert highest_seen(path) in (0, 7)
    path.write_bytes(b"torn")
    assert highest_seen(path) == 0
    Witness(path).close()
    assert len(path.read_bytes()) == 16 * SLOTS
