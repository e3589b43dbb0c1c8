"""Versioned records in one SQLite file: the embedded default, shared by all processes of one machine.

**Theory.** A version is a row; the condition and the write are one transaction that takes the write lock first
(BEGIN IMMEDIATE), so racing processes are put in a row by SQLite and exactly one sees its predecessor as the newest.
The log is write-ahead with synchronous=FULL: a version that was confirmed is on disk, and a process that is killed
at any point leaves a whole version or none. Trimming rides in the same transaction and costs no sync of its own.

**Few statements.** The caller is a thread beside a busy one. With each statement it releases the interpreter's lock,
and waits up to 5 ms until it has it again: beside a thread that never stops, a group of 16 versions took 65 ms in 50
statements, and takes 22 in four. So a group goes in whole, and only if one of it is refused are they taken one by one.

**Going back in time.** Every change has a number, given by AUTOINCREMENT. SQLite drops what stands behind damage in its
log without a word, so the log is looked through before SQLite sees it (`storage.stores.sqlite_log`); and a witness
beside the file knows the number of the last confirmed change (`Witness`), so a file that knows less is refused.

**Locks.** Closing any descriptor of a file ends all locks that the process has on it, also those of SQLite's own open
connections; then another process that leaves takes the log away from beneath them. So an existing file is never opened
and closed here beside SQLite.

Never put the file on a network file system: SQLite's locks do not hold there. Several machines use S3.

**The witness.** SQLite's log cannot say that its end was cut off: that looks as after a crash. So a process that has
committed a change writes its number into the witness, after the sync and before it reports the change to
anybody. The witness itself is not synced. The witness outlives the end of the process. A loss of power may leave it a
few seconds behind, and it is never ahead of the durable changes. So a file that knows less than its witness has gone
back in time for certain, and must not be used as if nothing had happened.

Each process writes a slot of its own, chosen by its id, and the highest of the slots counts: two processes that commit
in turn and write in another turn take nothing back. A slot that is torn or damaged says nothing. There is room for
everything from the beginning, so a full disk stops no slot from being written.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c

from sluice.storage.errors import Corrupt, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.stores.limits import check_name, check_prefix, check_value
from sluice.storage.stores.metadata import KEEP, NewVersion, Record, probe_versions
from sluice.storage.stores.objects import make_private
from sluice.storage.stores.sqlite_log import check_log

CHECKED_BYTES = 16 * 1024 * 1024
"""A file up to this size is looked through as a whole when it is opened, which takes some tens of milliseconds."""
BUSY_MS = 15_000
"""How long a writer waits for the writers of other processes before it says Unavailable, milliseconds."""

_TOGETHER = 200
"""Versions that go into one statement, four values each: SQLite takes 999 at the least."""
_COPY_TRIES = 20
_LOG_HEAD = 32
SCHEMA = 2
_CREATE = """
CREATE TABLE IF NOT EXISTS versions (
    change INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL, number INTEGER NOT NULL, crc INTEGER NOT NULL, value BLOB NOT NULL, UNIQUE (key, number)
)
"""
_FROM_SCHEMA_1 = (
    "ALTER TABLE versions RENAME TO versions_1",
    _CREATE,
    "INSERT INTO versions (key, number, crc, value) SELECT key, number, crc, value FROM versions_1 ORDER BY rowid",
    "DROP TABLE versions_1",
)
"""Schema 1 had no numbers of changes."""


class _NotAll(Exception):
    """A version of a group was refused, so the group was not written."""


def _create(connection: sqlite3.Connection, key: str, number: int, value: bytes) -> int:
    """Create a version; the number of the change, 0 if it is refused."""
    newest = connection.execute("SELECT max(number) FROM versions WHERE key = ?", (key,)).fetchone()[0] or 0
    if number != newest + 1:
        return 0
    row = (key, number, google_crc32c.value(value), value)
    created = connection.execute("INSERT INTO versions (key, number, crc, value) VALUES (?, ?, ?, ?)", row)
    connection.execute("DELETE FROM versions WHERE key = ? AND number <= ?", (key, number - KEEP))
    return created.lastrowid or 0


def _create_all(connection: sqlite3.Connection, versions: Sequence[NewVersion]) -> int:
    """Create all of them, in a statement for many; the number of the last change. Raises _NotAll if one is refused."""
    if len({key for key, _, _ in versions}) < len(versions):
        raise _NotAll  # one may follow another
    change = 0
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
            raise _NotAll
        change = created.lastrowid or 0
        old = ", ".join(["(?, ?)"] * len(group))
        connection.execute(
            "DELETE FROM versions WHERE rowid IN (SELECT versions.rowid "
            f"FROM (VALUES {old}) AS old JOIN versions ON key = column1 AND number <= column2)",
            [field for key, number, _ in group for field in (key, number - KEEP)],
        )
    return change


class SqliteMetadata:
    """Records in a file. Safe for threads (one connection, one lock) and for processes (SQLite's own locks)."""

    def __init__(self, path: str | os.PathLike[str], *, shown: Path | None = None) -> None:
        """Open or make the file. shown: its name in messages, where it is a copy.

        Raises Invalid (cannot be opened), Corrupt (damaged, gone back in time, or something else), Unavailable.
        """
        self.path = Path(path).absolute()
        self._shown = shown or self.path
        self._lock = threading.Lock()
        self._change = 0
        """The number of the last change of the transaction that is under way."""
        self._witness: Witness | None = None
        with self._errors():
            try:
                make_private(self.path.parent)
                _make_file(self.path)
                check_log(_log_of(self.path), _log_of(self._shown))
                self._connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            except (OSError, sqlite3.OperationalError) as error:
                raise Invalid(f"the metadata file {self._shown} cannot be opened: {error}") from error
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise

    def read(self, key: str) -> Record | None:
        (found,) = self.read_many([key])
        if isinstance(found, Corrupt):
            raise found
        return found

    def read_many(self, keys: Sequence[str]) -> list[Record | Corrupt | None]:
        for key in keys:
            check_name(key)
        query = "SELECT number, crc, value FROM versions WHERE key = ? ORDER BY number DESC LIMIT 1"
        with self._lock, self._errors():
            rows = [self._execute(query, (key,)).fetchone() for key in keys]
        return [self._checked(key, row) for key, row in zip(keys, rows, strict=True)]

    def _checked(self, key: str, row: tuple[int, int, bytes] | None) -> Record | Corrupt | None:
        if row is None:
            return None
        number, crc, value = row
        if google_crc32c.value(value) != crc:
            return Corrupt(f"version {number} of {key} in {self._shown} fails its checksum", version=number)
        return Record(number, value)

    def create(self, key: str, number: int, value: bytes) -> bool:
        """See storage.stores.metadata.Metadata. One sync of the disk."""
        return self.create_many([(key, number, value)])[0]

    def create_many(self, versions: Sequence[NewVersion]) -> list[bool]:
        """See storage.stores.metadata.GroupedMetadata. One transaction, and one sync of the disk, for all of them."""
        for key, number, value in versions:
            check_name(key)
            check_value(number, value)
        with contextlib.suppress(_NotAll), self._transaction() as connection:
            self._change = _create_all(connection, versions)
            return [True] * len(versions)
        with self._transaction() as connection:
            changes = [_create(connection, key, number, bytes(value)) for key, number, value in versions]
            self._change = max(changes, default=0)
            return [change > 0 for change in changes]

    def keys(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        query = "SELECT DISTINCT key FROM versions WHERE key >= ? AND key < ? ORDER BY key"
        with self._lock, self._errors():
            rows = self._execute(query, (prefix, prefix + "\x7f")).fetchall()
        return [row[0] for row in rows]

    def remove(self, key: str, number: int | None = None) -> bool:
        check_name(key)
        with self._transaction() as connection:
            (newest,) = connection.execute("SELECT max(number) FROM versions WHERE key = ?", (key,)).fetchone()
            if newest is not None and number not in (None, newest):
                return False
            connection.execute("DELETE FROM versions WHERE key = ?", (key,))
            # A removal is a change as well: a file that has forgotten it would bring the record back.
            connection.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'versions'")
            self._change = _last_change(connection)
            return True

    def size(self) -> int:
        """See Metadata. Pages of the file that are in use."""
        query = "SELECT * FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
        with self._lock, self._errors():
            pages, free, size = self._execute(query).fetchone()
        return int((pages - free) * size)

    def probe(self) -> None:
        probe_versions(self)

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            if self._witness is not None:
                self._witness.close()

    def _prepare(self) -> None:
        execute = self._execute
        witness = witness_of(self.path)
        seen = highest_seen(witness)  # before the file is looked at: others go on writing
        mode = execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise Invalid(
                f"the metadata file {self._shown} lies on a file system without shared memory; use a local disk"
            )
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA trusted_schema = OFF")
        self._look_through()
        with self._transaction() as connection:
            found = execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, 1, SCHEMA):
                raise Invalid(f"the metadata file {self._shown} has schema {found}, this version reads {SCHEMA}")
            for statement in _FROM_SCHEMA_1 if found == 1 else (_CREATE,):
                execute(statement)
            last = _last_change(connection)
            if last < seen:
                raise Corrupt(
                    f"the metadata file {self._shown} has gone back in time: change {seen} was confirmed, and it ends"
                    f" with change {last}. Its log was cut off, or an older copy took its place: put the newest copy"
                    f" back. To go on with the older one (a backup), remove {witness_of(self._shown)}"
                )
            execute(f"PRAGMA user_version = {SCHEMA}")
        try:
            self._witness = Witness(witness)
        except OSError as error:
            raise Invalid(f"{witness} cannot be opened: {error}") from error
        self._witness.saw(last)

    def _look_through(self) -> None:
        """Look at every page, unless there are too many. Raises Corrupt."""
        pages, size = (self._execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if pages * size <= CHECKED_BYTES:
            found = self._execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                problem = " ".join(str(found).split())
                raise Corrupt(f"the metadata file {self._shown} is damaged: {problem}; put back a whole copy")

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
            self._change = 0
            try:
                yield self._connection
                self._connection.execute("COMMIT")
                if self._witness is not None:
                    self._witness.saw(self._change)
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
            raise Unavailable(f"the metadata file {self._shown} does not answer: {error}") from error
        except sqlite3.DatabaseError as error:
            raise Corrupt(f"the metadata file {self._shown} is damaged or no metadata file: {error}") from error


def _last_change(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'versions'").fetchone()
    return int(found[0]) if found is not None else 0


def _make_file(path: Path) -> None:
    """Make a file that only this user can read, unless it is there.

    SQLite gives its log the mode of the file, and would make the file readable by all.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


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
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(witness_of(path), witness_of(copy))  # first: it must not be ahead of what is copied
        _copy_whole(path, copy)
        store = SqliteMetadata(copy, shown=path)
        try:
            yield store
        finally:
            store.close()


def _copy_whole(path: Path, copy: Path) -> None:
    """Copy a file and its log as they were at one moment, although others write: again while a checkpoint passes."""
    log = _log_of(path)
    for _ in range(_COPY_TRIES):
        with contextlib.suppress(FileNotFoundError):  # the log went away in between: look again
            before = _state(path, log)
            shutil.copyfile(path, copy)
            if before[1]:
                shutil.copyfile(log, _log_of(copy))
            else:
                _log_of(copy).unlink(missing_ok=True)
            if _state(path, log) == before:
                return
    raise Unavailable(f"the metadata file {path} changes faster than it can be copied; try again")


def _state(path: Path, log: Path) -> tuple[tuple[int, int], bytes]:
    """Return the state that only a checkpoint changes: size and time of the file, head of its log (b"" without one)."""
    found = path.stat()
    try:
        with log.open("rb") as file:
            head = file.read(_LOG_HEAD)
    except FileNotFoundError:
        head = b""
    return (found.st_size, found.st_mtime_ns), head


SLOTS = 64
_SLOT = struct.Struct("<QI4x")
_EMPTY = bytes(_SLOT.size * SLOTS)


def witness_of(path: Path) -> Path:
    """Return the path of the witness of a metadata file."""
    return path.with_name(path.name + "-witness")


def highest_seen(witness: Path) -> int:
    """The highest change that a witness names; 0 if it is not there or names none."""
    try:
        data = witness.read_bytes()
    except OSError:
        return 0
    whole = len(data) - len(data) % _SLOT.size
    slots = [_SLOT.unpack_from(data, at) for at in range(0, min(whole, len(_EMPTY)), _SLOT.size)]
    return max((number for number, crc in slots if number and _crc(number) == crc), default=0)


class Witness:
    """Writes one process's slot. Not safe for threads."""

    def __init__(self, witness: Path) -> None:
        """Open or make the file. Raises OSError."""
        self._file = os.open(witness, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size < len(_EMPTY):
            size = os.fstat(self._file).st_size
            os.pwrite(self._file, _EMPTY[size:], size)
        self._at = os.getpid() % SLOTS * _SLOT.size
        self._number = 0

    def saw(self, number: int) -> None:
        """A change is durable. A write that fails is left out: the witness says less then, and nothing false."""
        if number > self._number:
            self._number = number
            with contextlib.suppress(OSError):
                os.pwrite(self._file, _SLOT.pack(number, _crc(number)), self._at)

    def close(self) -> None:
        """Sync the witness to disk and close it. Idempotent."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1


def _crc(number: int) -> int:
    return int(google_crc32c.value(number.to_bytes(8, "little")))
