"""The files of a data folder that others read."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cluster.node.folder import LOCK_FILE, claimed, prepare_folder, replace_file
from sluice.cluster.node.identity import ID_FILE, _write_file
from sluice.storage.errors import Invalid


def test_a_replaced_file_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contents are synced before the file has its name, and the folder afterwards."""
    path, seen = tmp_path / "state", []
    really = os.fsync

    def fsync(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        seen.append((kind, os.fstat(handle).st_size if kind == "file" else 0, path.read_bytes()))
        really(handle)

    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(path, b"fresh")
    assert seen == [("file", 5, b"old"), ("folder", 0, b"fresh")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Nothing is begun in it: processes could not tell each other where it is."""
    folder = tmp_path / "data\udcff"
    with pytest.raises(Invalid, match="is not UTF-8; choose another with --data-dir"):
        prepare_folder(folder)
    assert not folder.exists()


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file that this process writes can be longer, as on a full disk."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def test_a_full_disk_is_refused_and_nothing_left(tmp_path: Path) -> None:
    with room_for(10):
        with pytest.raises(Invalid, match="cannot be used: File too large; choose another"):
            prepare_folder(tmp_path)
        with pytest.raises(OSError, match="File too large"):
            _write_file(tmp_path, "id", "memory:")
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".new")] == []
    _write_file(tmp_path, "id", "memory:")
    assert [path.name for path in tmp_path.iterdir()] == [ID_FILE]


def test_a_lock_needs_no_room(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("1 of before")
    with room_for(0), claimed(tmp_path), pytest.raises(Invalid, match="another process runs"), claimed(tmp_path):
        pass
