"""Data folders and metadata stores that do not belong together refuse each other, and nothing is made by looking."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cluster.host.stores import open_metadata, open_objects
from sluice.cluster.node import identity
from sluice.cluster.node.folder import prepare_folder
from sluice.storage.errors import Invalid, Unavailable
from sluice.storage.stores.metadata_sqlite import SqliteMetadata, read_only
from tests.actors.bookie.world import SMALL, World, add
from tests.kit.bookie_disks import store_runs
from tests.sim.loop import simulated


def url_of(folder: Path) -> str:
    return f"sqlite://{folder / 'metadata.db'}"


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A data folder with an id, and a bookie's disk that has served."""
    root = tmp_path / "data"
    root.mkdir()
    cluster = identity.settle(root, url_of(root), None)
    asyncio.run(_serve(root, cluster))
    return root


async def _serve(root: Path, cluster: str) -> None:
    meta = open_metadata(url_of(root))
    await store_runs(root, "b1", meta, [add(5, 0)], cluster=cluster)
    meta.close()


def test_an_id_is_made_once_and_stands_on_both_sides(used: Path) -> None:
    known = identity.of(used)
    assert len(known) == 16
    assert identity.settle(used, url_of(used), None) == known
    (used / identity.ID_FILE).unlink()  # as after a crash between the two, or in a folder from before there were ids
    assert identity.settle(used, url_of(used), None) == known


def test_a_folder_refuses_an_empty_metadata_store(used: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with pytest.raises(Invalid, match=r"belongs to cluster .* knows no cluster.*--forget") as refused:
        identity.settle(used, url_of(other), None)
    assert "\n" not in str(refused.value)
    assert url_of(used) in str(refused.value), "the store that it was used with is named"
    assert not other.exists()


def test_a_folder_refuses_when_its_metadata_file_is_lost(used: Path) -> None:
    for path in used.glob("metadata.db*"):
        path.unlink()
    with pytest.raises(Invalid, match="knows no cluster"):
        identity.settle(used, url_of(used), None)
    (used / identity.ID_FILE).unlink()
    with pytest.raises(Invalid, match=r"disk of a bookie that .* does not know"):
        identity.settle(used, url_of(used), None)


def test_a_folder_refuses_the_metadata_of_another_cluster(used: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    theirs = identity.settle(other, url_of(other), None)
    with pytest.raises(Invalid, match=f"belongs to cluster {theirs}"):
        identity.settle(used, url_of(other), None)


def test_to_forget_sets_the_data_aside_and_deletes_nothing(used: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="nothing to forget"):
        identity.forget(used, url_of(used), None)
    before = sorted(path.name for path in (used / "bookies").rglob("*"))
    other = tmp_path / "other"
    gone = identity.forget(used, url_of(other), None)
    assert (gone.bookies, gone.bytes > 0) == (1, True)
    assert str(gone.folder) in gone.sentence()
    assert sorted(path.name for path in (gone.folder / "bookies").rglob("*")) == before
    assert (gone.folder / "metadata.db").is_file()
    assert not (used / "bookies").exists()
    assert identity.settle(used, url_of(other), None) != gone.cluster


def test_only_the_owner_can_read_the_files_that_are_made(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        root = prepare_folder(tmp_path / "new" / "data")
        asyncio.run(_serve(root, identity.settle(root, url_of(root), None)))
        store = SqliteMetadata(root / "metadata.db")
        store.create("a", 1, b"x")
        asyncio.run(_put(root))
        found = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
        store.close()
    finally:
        os.umask(mask)
    assert {"new/data/metadata.db-wal", "new/data/metadata.db-shm", "new/data/bookies/b1/cookie"} <= set(found)
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


async def _put(root: Path) -> None:
    objects = open_objects((root / "objects").as_uri())
    await objects.put("a/b", b"x")
    objects.close()


def test_a_metadata_file_is_read_without_changing_a_byte(tmp_path: Path) -> None:
    writer = SqliteMetadata(tmp_path / "live" / "metadata.db")
    writer.create("a", 1, b"in the log alone")
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    for folder in (tmp_path / "live", tmp_path / "copy"):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        folder.chmod(0o500)
        with read_only(folder / "metadata.db") as store:
            assert store.keys("") == ["a"]
            found = store.read("a")
            assert found is not None
            assert found.value == b"in the log alone"
        folder.chmod(0o700)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    writer.close()


@simulated
async def test_an_older_metadata_store_gives_no_number_again() -> None:
    from sluice.actors.bookie.cookie import CLUSTER, cookie_key
    from sluice.actors.ownership.ids import LEDGER_IDS, LedgerIds

    world = World()
    meta = world.ports.meta
    await meta.create(CLUSTER, 1, b"c1")
    bookie = world.bookie(SMALL, cluster="c1")
    await bookie.start()
    await bookie.handle(add(50, 0))
    for _ in range(4):
        await bookie.store.checkpoint()
    generation = bookie.store.generation
    await world.kill()
    for key in (cookie_key("b1"), LEDGER_IDS):  # a backup from before the bookie came
        await meta.remove(key)
    bookie = world.bookie(SMALL, cluster="c1")
    await bookie.start()
    assert bookie.store.ledgers.ids() == [50]
    assert bookie.store.generation >= generation, "it was not formatted"
    assert "metadata_older_than_disk" in [event for event, _ in world.events]
    assert await LedgerIds().allocate(bookie.ports, 0) > 50
    await world.kill()
    await meta.remove(CLUSTER)
    await meta.remove(cookie_key("b1"))
    with pytest.raises(Exception, match="another metadata store"):
        await world.bookie(SMALL, cluster="c1").start()
    with pytest.raises(Exception, match="belongs to cluster c1, and this is cluster c2"):
        await world.bookie(SMALL, cluster="c2").start()


def test_a_file_that_changes_all_the_time_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.storage.stores import metadata_sqlite

    SqliteMetadata(tmp_path / "metadata.db").close()
    numbers = iter(range(1000))
    monkeypatch.setattr(metadata_sqlite, "_state", lambda *_: ((next(numbers), 0), b""))
    with pytest.raises(Unavailable, match="faster than it can be copied"), read_only(tmp_path / "metadata.db"):
        pass


def test_newer_format_of_a_folder_is_refused(used: Path) -> None:
    path = used / identity.ID_FILE
    written = json.loads(path.read_bytes())
    assert written["format"] == identity.FORMAT
    path.write_text(json.dumps(written | {"format": identity.FORMAT + 1}))
    before = sorted((file, file.stat().st_mtime_ns) for file in used.rglob("*"))
    with pytest.raises(
        Invalid, match=f"format {identity.FORMAT + 1}.*reads formats up to {identity.FORMAT}"
    ) as refused:
        identity.settle(used, url_of(used), None)
    assert "\n" not in str(refused.value)
    assert sorted((file, file.stat().st_mtime_ns) for file in used.rglob("*")) == before


def test_upgrade_raises_the_format_on_both_sides(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = identity.of(used)
    with monkeypatch.context() as newer:
        newer.setattr(identity, "FORMAT", identity.FORMAT + 1)
        assert identity.settle(used, url_of(used), None) == known
        assert identity.settle(used, url_of(used), None) == known
    with pytest.raises(Invalid, match=f"the data in {used} has format"):
        identity.settle(used, url_of(used), None)
    (used / identity.ID_FILE).unlink()
    with pytest.raises(Invalid, match=r"the data in sqlite://.* has format"):
        identity.settle(used, url_of(used), None)


def test_command_refuses_a_newer_format_in_one_line(used: Path) -> None:
    path = used / identity.ID_FILE
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"format": identity.FORMAT + 1}))
    done = subprocess.run(
        [sys.executable, "-c", "from sluice.cli import main; main()", "up", "--embedded", "--data-dir", str(used)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"sluice: the data in {used} has format {identity.FORMAT + 1}")
    assert done.stderr.count("\n") == 1
