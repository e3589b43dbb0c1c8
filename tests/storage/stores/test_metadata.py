"""Metadata stores on one machine: the conformance kit, trimming, damage, and writers that are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.storage.errors import Corrupt, Invalid, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.stores.metadata import MemoryMetadata, Metadata, Record
from sluice.storage.stores.metadata_objects import KEEP, TRIM_EVERY, ObjectMetadata
from sluice.storage.stores.metadata_sqlite import SqliteMetadata
from sluice.storage.stores.objects import LocalObjects, MemoryObjects
from tests.conformance.metadata import Maker, MetadataKit, MetadataRaces
from tests.conformance.writer import KEY, open_store, value_of

_ROOT = Path(__file__).resolve().parents[3]
LEFT_AT_MOST = KEEP + TRIM_EVERY


class TestMemoryMetadata(MetadataKit, MetadataRaces):
    """In memory: all handles are one object."""

    @pytest.fixture
    def maker(self) -> Maker:
        """One store for all."""
        store = MemoryMetadata()
        return lambda: store


class TestSqliteMetadata(MetadataKit, MetadataRaces):
    """One file, a connection for each handle."""

    @pytest.fixture
    def maker(self, tmp_path: Path) -> Maker:
        """A connection of its own for each handle."""
        return lambda: SqliteMetadata(tmp_path / "deep" / "metadata.db")

    def check_trimmed(self, store: Metadata) -> None:
        assert isinstance(store, SqliteMetadata)
        with contextlib.closing(sqlite3.connect(store.path)) as connection, connection:
            numbers = [row[0] for row in connection.execute("SELECT number FROM versions ORDER BY number")]
        assert numbers == [self.many - 1, self.many]


class TestObjectMetadataInMemory(MetadataKit, MetadataRaces):
    """Numbered objects over the simplest object store."""

    window = KEEP

    @pytest.fixture
    def maker(self) -> Maker:
        """Handles that share the objects, but not what they remember."""
        objects = MemoryObjects()
        return lambda: ObjectMetadata(objects)

    def check_trimmed(self, store: Metadata) -> None:
        assert isinstance(store, ObjectMetadata)
        assert len(store._objects.names("")) <= LEFT_AT_MOST


class TestObjectMetadataInAFolder(TestObjectMetadataInMemory):
    """Numbered objects over files."""

    @pytest.fixture
    def maker(self, tmp_path: Path) -> Maker:
        """Handles that share the folder alone."""
        return lambda: ObjectMetadata(LocalObjects(tmp_path))


# -- the probe -----------------------------------------------------------------------------------------------------


class _Overwrites(MemoryObjects):
    """A store like rclone and others: it ignores the condition and answers a cheerful 200."""

    def put(self, name: str, data: Buffer) -> bool:
        self.delete(name)
        return super().put(name, data)


class _SaysYes(MemoryObjects):
    """Keeps the first content, but tells both writers that they won."""

    def put(self, name: str, data: Buffer) -> bool:
        super().put(name, data)
        return True


@pytest.mark.parametrize("objects", [_Overwrites(), _SaysYes()])
def test_the_probe_refuses_a_store_that_ignores_the_condition(objects: MemoryObjects) -> None:
    with pytest.raises(Invalid, match="If-None-Match"):
        ObjectMetadata(objects).probe()


# -- damage --------------------------------------------------------------------------------------------------------


def _tear(objects: LocalObjects, number: int, size: int, key: str = "a") -> None:
    path = objects.folder / "metadata+" / f"{key}+" / f"v{number:012d}"
    os.truncate(path, size)


@pytest.mark.parametrize("size", [0, 3, 19, 20, 25])
def test_a_torn_newest_version_counts_as_the_one_before(tmp_path: Path, size: int) -> None:
    objects = LocalObjects(tmp_path)
    store = ObjectMetadata(objects)
    for number in (1, 2, 3):
        assert store.create("a", number, b"value %d" % number)
    _tear(objects, 3, size)
    fresh = ObjectMetadata(objects)
    assert fresh.read("a") == Record(3, b"value 2")
    assert fresh.torn == 1
    assert not fresh.create("a", 3, b"again")
    assert fresh.create("a", 4, b"value 4")
    assert fresh.read("a") == Record(4, b"value 4")


def test_a_newest_version_full_of_zeros_is_torn_too(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    store = ObjectMetadata(objects)
    store.create("a", 1, b"one")
    store.create("a", 2, b"two")
    path = tmp_path / "metadata+" / "a+" / "v000000000002"
    path.write_bytes(bytes(path.stat().st_size))
    assert ObjectMetadata(objects).read("a") == Record(2, b"one")


def test_a_record_of_torn_versions_alone_is_corrupt(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    ObjectMetadata(objects).create("a", 1, b"one")
    _tear(objects, 1, 5)
    with pytest.raises(Corrupt, match="a is torn") as refused:
        ObjectMetadata(objects).read("a")
    assert refused.value.version == 1


def test_every_flipped_bit_of_a_version_is_corrupt(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    store = ObjectMetadata(objects)
    store.create("a", 1, b"one")
    store.create("a", 2, b"two")
    path = tmp_path / "metadata+" / "a+" / "v000000000002"
    whole, damaged_versions = path.read_bytes(), set[int]()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            # A flipped bit in the length makes the object look cut short; then the version before may answer.
            assert store.read("a") == Record(2, b"one")
        except Corrupt as error:
            damaged_versions.add(error.version)
    assert damaged_versions == {2}
    path.write_bytes(whole)
    assert store.read("a") == Record(2, b"two")
    path.write_bytes(damaged)
    assert store.create("a", 3, b"three"), "a version that follows mends it"
    assert store.read("a") == Record(3, b"three")


def test_a_damaged_value_in_sqlite_is_corrupt(tmp_path: Path) -> None:
    store = SqliteMetadata(tmp_path / "m.db")
    store.create("a", 1, b"one")
    with contextlib.closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE versions SET value = ?", (b"0ne",))
    with pytest.raises(Corrupt, match="version 1 of a") as refused:
        store.read("a")
    assert refused.value.version == 1
    assert store.create("a", 2, b"two"), "a version that follows mends it"
    assert store.read("a") == Record(2, b"two")


def test_a_file_that_is_no_metadata_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    path.write_bytes(b"this is a letter to my aunt, not a database. " * 50)
    with pytest.raises(Corrupt, match=r"m\.db"):
        SqliteMetadata(path)
    assert path.read_bytes().startswith(b"this is a letter")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "m.db")) as connection, connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(Invalid, match="schema 7"):
        SqliteMetadata(tmp_path / "m.db")


def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Invalid, match=r"file/m\.db"):
        SqliteMetadata(tmp_path / "file" / "m.db")
    with pytest.raises(Invalid, match="file"):
        LocalObjects(tmp_path / "file")


def test_a_closed_sqlite_store_is_unavailable(tmp_path: Path) -> None:
    store = SqliteMetadata(tmp_path / "m.db")
    store.close()
    store.close()
    with pytest.raises(Unavailable):
        store.read("a")


def test_a_write_lock_held_by_another_process_is_waited_for(tmp_path: Path) -> None:
    store = SqliteMetadata(tmp_path / "m.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "m.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.read("a")  # readers do not wait
        release = threading.Timer(0.2, other.execute, ("ROLLBACK",))
        release.start()
        assert store.create("a", 1, b"one")
        release.join()


@pytest.mark.parametrize("seed", range(4))
def test_a_group_of_versions_is_as_they_are_one_by_one(tmp_path: Path, seed: int) -> None:
    """Whether all of them follow, some are refused, or one follows another; and each record keeps as many."""
    rng = random.Random(seed)
    grouped, model = SqliteMetadata(tmp_path / "m.db"), MemoryMetadata()
    newest: dict[str, int] = {}
    for _ in range(12):
        keys = [f"k/{number}" for number in rng.sample(range(500), rng.choice([1, 2, 16, 450]))]
        versions = [(key, newest.get(key, 0) + 1, rng.randbytes(20)) for key in keys]
        for _ in range(rng.choice([0, 0, 1, 3])):
            key, number, _ = rng.choice(versions)
            versions.insert(rng.randrange(len(versions)), (key, max(number + rng.choice([-1, 0, 1, 2]), 1), b"else"))
        outcomes = grouped.create_many(versions)
        assert outcomes == [model.create(*version) for version in versions]
        for (key, number, _), created in zip(versions, outcomes, strict=True):
            newest[key] = number if created else newest.get(key, 0)
    for key, number in newest.items():
        assert grouped.read(key) == model.read(key)
        with contextlib.closing(sqlite3.connect(grouped.path)) as connection, connection:
            kept = connection.execute("SELECT number FROM versions WHERE key = ? ORDER BY number", (key,)).fetchall()
        assert [row[0] for row in kept] == [each for each in (number - 1, number) if each]


def test_a_group_of_versions_takes_four_statements(tmp_path: Path) -> None:
    """Each is a chance for a busy thread to keep the interpreter's lock for a while."""
    store = SqliteMetadata(tmp_path / "m.db")
    said: list[str] = []
    for number in range(1, 4):
        said.clear()
        store._connection.set_trace_callback(said.append)
        assert all(store.create_many([(f"record/{key}", number, b"x") for key in range(16)]))
        store._connection.set_trace_callback(None)
        assert len(said) == 4


def test_a_number_that_does_not_follow_is_refused_unwritten() -> None:
    """Not even for a moment may a reader see a version behind a gap."""

    class Watched(MemoryObjects):
        puts: list[str] = []

        def put(self, name: str, data: Buffer) -> bool:
            self.puts.append(name)
            return super().put(name, data)

    objects = Watched()
    assert ObjectMetadata(objects).create("a", 1, b"one")
    written = list(objects.puts)
    for number in (1, 3, 17):
        assert not ObjectMetadata(objects).create("a", number, b"x")
    assert objects.puts == written


def test_versions_of_a_key_below_are_not_of_the_key_above() -> None:
    store = ObjectMetadata(MemoryObjects())
    for number in range(1, 10):
        assert store.create("a/vault", number, b"below")
    assert store.read("a") is None
    assert store.create("a", 1, b"above")
    assert store.read("a") == Record(1, b"above")


# -- failures between the effects of a create ----------------------------------------------------------------------


class _Failing(MemoryObjects):
    """Fails at effect number `at`, before or after it happened; counts from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.at: int | None = None
        self.after = False
        self.count = 0

    def _effect(self, call: Callable[[], object]) -> object:
        self.count += self.at is not None
        failing = self.count == self.at
        if failing and not self.after:
            raise Unavailable("lost before the effect")
        result = call()
        if failing:
            raise Unavailable("lost after the effect")
        return result

    def put(self, name: str, data: Buffer) -> bool:
        return bool(self._effect(lambda: super(_Failing, self).put(name, data)))

    def names(self, prefix: str) -> list[str]:
        return self._effect(lambda: super(_Failing, self).names(prefix))  # type: ignore[return-value]

    def delete(self, name: str) -> None:
        self._effect(lambda: super(_Failing, self).delete(name))


@pytest.mark.parametrize("after", [False, True])
def test_an_unavailable_store_at_any_effect_loses_nothing(after: bool) -> None:
    """Write until old versions are trimmed, with a failure at each effect in turn."""
    for at in range(1, 2 * LEFT_AT_MOST + 4):
        objects = _write_with_failure(at, after=after)
        assert objects.count >= at, "the store did not fail"


def _write_with_failure(at: int, *, after: bool) -> _Failing:
    """The writer reads again and compares when the outcome is unknown, as it must."""
    objects = _Failing()
    objects.at, objects.after = at, after
    store = ObjectMetadata(objects)
    for number in range(1, LEFT_AT_MOST + 2):
        try:
            assert store.create("a", number, b"%d" % number)
        except Unavailable:
            newest = store.read("a")
            if newest != Record(number, b"%d" % number):
                assert (0 if newest is None else newest.number) == number - 1
                assert store.create("a", number, b"%d" % number)
        armed, objects.at = objects.at, None
        assert ObjectMetadata(objects).read("a") == Record(number, b"%d" % number)
        objects.at = armed
    return objects


def test_an_interrupted_removal_never_shows_an_old_version() -> None:
    for at in range(1, 9):
        objects = _Failing()
        store = ObjectMetadata(objects)
        for number in range(1, 7):
            store.create("a", number, b"%d" % number)
        objects.at, objects.count = at, 0
        try:
            store.remove("a")
        except Unavailable:
            objects.at = None
            assert store.read("a") in (Record(6, b"6"), None)
            store.remove("a")
        objects.at = None
        assert store.read("a") is None


# -- killed writers ------------------------------------------------------------------------------------------------


def _writer(kind: str, path: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.conformance.writer", kind, str(path), name]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)


def _read_until(writer: subprocess.Popen[str], lines: int) -> list[int]:
    assert writer.stdout is not None
    return [int(writer.stdout.readline()) for _ in range(lines)]


def _kill(writer: subprocess.Popen[str]) -> list[int]:
    """SIGKILL, and what it still said before."""
    assert writer.stdout is not None
    writer.send_signal(signal.SIGKILL)
    rest = [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()
    return rest


@pytest.mark.parametrize("kind", ["sqlite", "folder"])
def test_killed_writers_lose_no_version_and_win_none_twice(tmp_path: Path, kind: str) -> None:
    """Two writers race on one record and are killed at different moments, again and again."""
    won: list[int] = []
    for turn in range(3):
        writers = [_writer(kind, tmp_path, f"{turn}-{name}") for name in "ab"]
        try:
            for number, writer in enumerate(writers):
                won += _read_until(writer, 5 + 3 * turn + number)
            for writer in writers:
                won += _kill(writer)
        finally:
            for writer in writers:
                writer.kill()
        newest = open_store(kind, tmp_path).read(KEY)
        assert newest is not None
        assert len(set(won)) == len(won), "two writers were told that they created the same version"
        # Each killed writer may have created one version whose confirmation it could not print any more.
        missing = sorted(set(range(1, newest.number + 1)) - set(won))
        assert max(won) <= newest.number
        assert len(missing) <= 2 * (turn + 1)
        writer_name = newest.value.split()[1].decode()
        assert newest.value == value_of(newest.number, writer_name)
