"""Object stores on one machine: the conformance kit, the folder's layout, and crashes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sluice.storage.errors import Invalid, NotFound, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.stores.objects import LocalObjects, MemoryObjects, probe
from tests.conformance.objects import Maker, ObjectStoreKit, ObjectStoreRaces


class TestMemoryObjects(ObjectStoreKit, ObjectStoreRaces):
    """In memory: all handles are one object."""

    @pytest.fixture
    def maker(self) -> Maker:
        """One store for all."""
        store = MemoryObjects()
        return lambda: store


class TestLocalObjects(ObjectStoreKit, ObjectStoreRaces):
    """A folder."""

    @pytest.fixture
    def maker(self, tmp_path: Path) -> Maker:
        """Handles that share the folder alone."""
        return lambda: LocalObjects(tmp_path / "deep" / "objects")


class _Overwrites(MemoryObjects):
    def put(self, name: str, data: Buffer) -> bool:
        self.delete(name)
        return super().put(name, data)


class _Refuses(MemoryObjects):
    def put(self, name: str, data: Buffer) -> bool:
        super().put(name, data)
        return False


def test_the_probe_refuses_stores_that_lie() -> None:
    with pytest.raises(Invalid, match="If-None-Match"):
        probe(_Overwrites())
    with pytest.raises(Invalid, match="refuses"):
        probe(_Refuses())


class Forbidden(MemoryObjects):
    """A store in which nothing may be written, nor deleted."""

    def put(self, name: str, data: Buffer) -> bool:
        raise Invalid("the credentials may not go on writing")

    def delete(self, name: str) -> None:
        raise Invalid("the credentials may not go on deleting")


def test_the_probe_tells_what_was_wrong_first() -> None:
    with pytest.raises(Invalid, match="writing"):
        probe(Forbidden())


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path / "objects")
    for name in ("a", "a/b", "a/b/c", "...", "..a/b", "-rf", ".ssh/x"):
        assert store.put(name, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["objects"]
    for path in (tmp_path / "objects").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "objects")


def test_a_failed_put_leaves_no_object_and_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalObjects(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Unavailable, match="No space left"):
            store.put("a", b"x")
    assert store.names("") == []
    assert list((tmp_path / "+temporary+").iterdir()) == []
    assert store.put("a", b"y")


def test_content_is_synced_before_name_and_name_before_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalObjects(tmp_path)
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(descriptor: int) -> None:
        events.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split("-")[0])
        fsync(descriptor)

    def watched_link(source: str, target: str) -> None:
        events.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    assert store.put("folder/a", b"x")
    assert events == [f"sync {os.getpid()}", f"sync {tmp_path.name}".split("-")[0], "link", "sync folder+"]
    events.clear()
    store.delete("folder/a")
    assert events == ["sync folder+"]


def test_taken_name_is_synced_before_the_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer got Unavailable, and takes the object for stored when it finds its own bytes there."""
    store = LocalObjects(tmp_path)
    fsync, synced, broken = os.fsync, list[str](), [tmp_path]

    def fail_once(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path in broken:
            broken.remove(path)
            raise OSError(5, "Input/output error")
        synced.append(path.name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(Unavailable, match="Input/output error"):
        store.put("a", b"x")
    synced.clear()
    assert not store.put("a", b"x")
    assert tmp_path.name in synced


@pytest.mark.parametrize("left", [False, True], ids=["gone", "an empty folder in its place"])
def test_a_folder_that_goes_away_says_nothing_of_objects(tmp_path: Path, left: bool) -> None:
    """As where a disk is unmounted. Who is told that an object is missing gives it up for good."""
    folder, elsewhere = tmp_path / "objects", tmp_path / "elsewhere"
    store = LocalObjects(folder)
    assert store.put("a/b", b"x")
    with pytest.raises(NotFound):
        store.get("a/c")
    assert store.names("c") == []
    folder.rename(elsewhere)
    if left:
        folder.mkdir()
    for call in (lambda: store.get("a/b"), lambda: store.names("a/"), lambda: store.put("c", b"y")):
        with pytest.raises(Unavailable):
            call()
    if left:
        folder.rmdir()
    elsewhere.rename(folder)
    assert store.get("a/b") == b"x"
    assert store.names("") == ["a/b"]


def test_a_folder_that_is_only_looked_at_may_be_missing(tmp_path: Path) -> None:
    looking = LocalObjects(tmp_path / "none", read_only=True)
    assert looking.names("") == []
    with pytest.raises(NotFound):
        looking.get("a")


def test_old_leftovers_of_crashed_writers_are_removed(tmp_path: Path) -> None:
    LocalObjects(tmp_path)
    old, young = tmp_path / "+temporary+" / "1-old", tmp_path / "+temporary+" / "1-young"
    old.write_bytes(b"half an obj")
    young.write_bytes(b"somebody writes this just now")
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    store = LocalObjects(tmp_path)
    assert not old.exists()
    assert young.exists()
    assert store.names("") == []
