"""The remains of killed processes in the temporary folder: the next start removes them, and nothing else."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cluster.node.stale_folders import OWNER_FILE, claim, clear
from tests.cluster.helpers import ROOT

CHILD = """
import sys, time
from pathlib import Path
from sluice.cluster.node.stale_folders import claim
claim(Path(sys.argv[1]))
print("claimed", flush=True)
time.sleep(3600)
"""


def test_only_what_belongs_to_nobody_is_cleared(tmp_path: Path) -> None:
    """While its owner lives a folder stays; killed, it goes; unclaimed, kept and foreign ones stay."""
    owned, mine, kept, plain = (tmp_path / f"sluice-flood-{name}" for name in ("owned", "mine", "kept", "plain"))
    other = tmp_path / "other"
    for folder in (owned, mine, kept, plain, other):
        folder.mkdir()
        (folder / "data").write_text("x")
    (tmp_path / "sluice-flood-link").symlink_to(other)
    child = subprocess.Popen([sys.executable, "-c", CHILD, owned], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "claimed\n"
        claim(mine)
        assert clear(tmp_path, "sluice-flood-") == []
    finally:
        child.kill()
        child.wait()
    assert clear(tmp_path, "sluice-flood-") == [owned]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other", "sluice-flood-kept", "sluice-flood-link", "sluice-flood-mine", "sluice-flood-plain",
    ]  # fmt: skip
    assert (other / "data").exists()


def test_a_folder_that_is_being_claimed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands start at once, and one of them clears just before the other has its lock."""
    folder, cleared = tmp_path / "sluice-new", []
    folder.mkdir()
    really = fcntl.flock

    def flock(handle: int, operation: int) -> None:
        monkeypatch.undo()
        cleared.extend(clear(tmp_path, "sluice-"))
        really(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    claim(folder)
    assert (cleared, clear(tmp_path, "sluice-")) == ([], [])
    assert [path.name for path in folder.iterdir()] == [OWNER_FILE]
