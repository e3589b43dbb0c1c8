"""Versioned records in one SQLite file: the embedded default, shared by all processes of one machine.

**Theory.** A version is a row; the condition and the write are one transaction that takes the write lock first
(BEGIN IMMEDIATE), so racing processes are put in a row by SQLite and exactly one sees its predecessor as the newest.
The log is write-ahead with synchronous=FULL: a version that was confirmed is on disk, and a process that is killed
at any point leaves a whole version or none. Trimming rides in the same transaction and costs no sync of its own.

**Few statements.** The caller is a thread beside a busy one. With each statement it lets go of the interpreter's lock,
and waits up to 5 ms until it has it again: beside a thread that never stops, a group of 16 versions took 65 ms in 50
statements, and takes 22 in four. So a group goes in whole, and only if one of it is refused are they taken one by one.

Never put the file on a network file system: SQLite's locks do not hold there. Several machines use S3.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c

from storage.errors import Corrupt, Invalid, NotFound, SluiceError, Unavailable
from storage.metadata import KEEP, NewVersion, Record, check_value, probe_versions
from storage.objects import check_name, check_prefix, make_private

BUSY_MS = 15_000
"""How long a writer waits for the writers of other processes before it says Unavailable, milliseconds."""

_TOGETHER = 200
"""Versions that go into one statement, four values each: SQLite takes 999 at the least."""
_COPY_TRIES = 20
_LOG_HEAD = 32
_SCHEMA = 1
_CREATE = """
CREATE TABLE IF NOT EXISTS versions (
    key TEXT NOT NULL, number INTEGER NOT NULL, crc INTEGER NOT NULL, value BLOB NOT NULL, UNIQUE (key, number)
)
"""


class _NotAll(Exception):
    """A version of a group is refused, and the group was not written."""


def _create(connection: sqlite3.Connection, key: str, number: int, value: bytes) -> bool:
    newest = connection.execute("SELECT max(number) FROM versions WHERE key = ?", (key,)).fetchone()[0] or 0
    if number != newest + 1:
        return False
    row = (key, number, google_crc32c.value(value), value)
    connection.execute("INSERT INTO versions (key, number, crc, value) VALUES (?, ?, ?, ?)", row)
    connection.execute("DELETE FROM versions WHERE key = ? AND number <= ?", (key, number - KEEP))
    return True


def _create_all(connection: sqlite3.Connection, versions: Sequence[NewVersion]) -> bool:
    """Create all of them, in a statement for many; False if one is refused, and then the transaction is void."""
    if len({key for key, _, _ in versions}) < len(versions):
        return False  # one may follow another
    for start in range(0, len(versions), _TOGETHER):
        group = versions[start : start + _TOGETHER]
        rows = [field for key, number, value in group for field in (key, number, google_crc32c.value(value), value)]
        wanted = ", ".join(["(?, ?, ?, ?)"] * len(group))
        created = connection.execute(
            "INSERT INTO versions (key, number, crc, value) SELECT column1, column2, column3, column4 "
            f"FROM (VALUES {wanted}) AS wanted WHERE column2 = 1 + "
            "(SELECT coalesce(max(number), 0) FROM versions WHERE key = wanted.column1)",
            rows,
        )
        if created.rowcount < len(group):
            return False
        old = ", ".join(["(?, ?)"] * len(group))
        connection.execute(
            "DELETE FROM versions WHERE rowid IN (SELECT versions.rowid "
            f"FROM (VALUES {old}) AS old JOIN versions ON key = column1 AND number <= column2)",
            [field for key, number, _ in group for field in (key, number - KEEP)],
        )
    return True


class SqliteMetadata:
    """Records in a file. Safe for threads (one connection, one lock) and for processes (SQLite's own locks)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or make the file. Raises Invalid (cannot be opened), Corrupt (is something else), Unavailable."""
        self.path = Path(path).absolute()
        self._lock = threading.Lock()
        with self._errors():
            try:
                make_private(self.path.parent)
                # SQLite gives its log the mode of the file, and would make the file readable by all.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                self._connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            except (OSError, sqlite3.OperationalError) as error:
                raise Invalid(f"the metadata file {self.path} cannot be opened: {error}") from error
            self._prepare()

    def read(self, key: str) -> Record | None:
        """See storage.metadata.Metadata."""
        check_name(key)
        query = "SELECT number, crc, value FROM versions WHERE key = ? ORDER BY number DESC LIMIT 1"
        with self._lock, self._errors():
            row = self._execute(query, (key,)).fetchone()
        if row is None:
            return None
        number, crc, value = row
        if google_crc32c.value(value) != crc:
            raise Corrupt(f"version {number} of {key} in {self.path} fails its checksum")
        return Record(number, value)

    def create(self, key: str, number: int, value: bytes) -> bool:
        """See storage.metadata.Metadata. One sync of the disk."""
        return self.create_many([(key, number, value)])[0]

    def create_many(self, versions: Sequence[NewVersion]) -> list[bool]:
        """See storage.metadata.GroupedMetadata. One transaction, and one sync of the disk, for all of them."""
        for key, number, value in versions:
            check_name(key)
            check_value(number, value)
        with contextlib.suppress(_NotAll), self._transaction() as connection:
            if not _create_all(connection, versions):
                raise _NotAll
            return [True] * len(versions)
        with self._transaction() as connection:
            return [_create(connection, key, number, bytes(value)) for key, number, value in versions]

    def keys(self, prefix: str) -> list[str]:
        """See storage.metadata.Metadata."""
        check_prefix(prefix)
        query = "SELECT DISTINCT key FROM versions WHERE key >= ? AND key < ? ORDER BY key"
        with self._lock, self._errors():
            rows = self._execute(query, (prefix, prefix + "\x7f")).fetchall()
        return [row[0] for row in rows]

    def remove(self, key: str) -> None:
        """See storage.metadata.Metadata."""
        check_name(key)
        with self._transaction() as connection:
            connection.execute("DELETE FROM versions WHERE key = ?", (key,))

    def probe(self) -> None:
        """See storage.metadata.Metadata."""
        probe_versions(self)

    def close(self) -> None:
        """See storage.metadata.Metadata."""
        with self._lock:
            self._connection.close()

    def _prepare(self) -> None:
        execute = self._execute
        mode = execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise Invalid(
                f"the metadata file {self.path} lies on a file system without shared memory; use a local disk"
            )
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA trusted_schema = OFF")
        with self._transaction():
            found = execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, _SCHEMA):
                raise Invalid(f"the metadata file {self.path} has schema {found}, this version reads {_SCHEMA}")
            execute(_CREATE)
            execute(f"PRAGMA user_version = {_SCHEMA}")

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        """Run a statement; wait while another process holds the lock that it needs, at most BUSY_MS.

        SQLite's own waiting backs off to 100 ms and lets a busy writer starve the others for seconds; short pauses
        of random length are fair.
        """
        deadline = time.monotonic_ns() + BUSY_MS * 1_000_000
        while True:
            try:
                return self._connection.execute(statement, values)
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic_ns() > deadline:
                    raise
            time.sleep(random.uniform(0.0005, 0.004))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock; commit at the end, roll back on any exception."""
        with self._lock, self._errors():
            self._execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SluiceError:
            raise
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            raise Unavailable(f"the metadata file {self.path} does not answer: {error}") from error
        except sqlite3.DatabaseError as error:
            raise Corrupt(f"the metadata file {self.path} is damaged or no metadata file: {error}") from error


@contextlib.contextmanager
def read_only(path: str | os.PathLike[str]) -> Iterator[SqliteMetadata]:
    """A metadata file to look at, also on a disk that cannot be written: not a byte of it or beside it is changed.

    Even a reader of SQLite's log writes to the file beside it, and the last one to leave empties the log into the file.
    So this opens a copy of both, which goes away at the end. Raises NotFound, Unavailable.
    """
    path = Path(path).absolute()
    if not path.is_file():
        raise NotFound(f"there is no metadata file {path}")
    with tempfile.TemporaryDirectory(prefix="sluice-metadata-") as folder:
        copy = Path(folder) / path.name
        _copy_whole(path, copy)
        store = SqliteMetadata(copy)
        try:
            yield store
        finally:
            store.close()


def _copy_whole(path: Path, copy: Path) -> None:
    """Copy a file and its log as they were at one moment, although others write: again while a checkpoint passes."""
    log = path.with_name(path.name + "-wal")
    for _ in range(_COPY_TRIES):
        with contextlib.suppress(FileNotFoundError):  # the log went away in between: look again
            before = _state(path, log)
            shutil.copyfile(path, copy)
            if before[1]:
                shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
            else:
                copy.with_name(copy.name + "-wal").unlink(missing_ok=True)
            if _state(path, log) == before:
                return
    raise Unavailable(f"the metadata file {path} changes faster than it can be copied; try again")


def _state(path: Path, log: Path) -> tuple[tuple[int, int], bytes]:
    """What only a checkpoint changes: size and time of the file, and the beginning of its log (empty without)."""
    found = path.stat()
    try:
        with log.open("rb") as file:
            head = file.read(_LOG_HEAD)
    except FileNotFoundError:
        head = b""
    return (found.st_size, found.st_mtime_ns), head
