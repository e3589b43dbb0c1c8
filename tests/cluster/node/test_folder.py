"""The files of a data folder that others read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sluice.cluster.node.folder import prepare_folder, replace_file
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
