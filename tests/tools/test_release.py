"""The release: bad wishes are refused in one line, and a dry run makes every part and leaves the checkout as it was."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.storage.errors import Conflict, Invalid
from tests.hygiene.source import ROOT
from tools.release.cut import (
    VERSIONED,
    Release,
    check_wanted,
    current_version,
    dated_changelog,
    release_notes,
    said,
)

CHANGELOG = "# Changelog\n\n## Unreleased\n\n- one\n- two\n\n## 1.1.0 (2026-11-01)\n\n- before\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository that is version 1.1.0."""
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "somebody")
    root = tmp_path / "checkout"
    (root / "deploy/helm/sluice").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nversion = "1.1.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / "deploy/helm/sluice/Chart.yaml").write_text('version: 1.1.0\nappVersion: "1.1.0"\n')
    for command in (("init",), ("add", "."), ("commit", "--message", "Begin"), ("tag", "v1.1.0")):
        said("git", *command, cwd=root)
    return root


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("1.2", "is no version"),
        ("v1.2.0", "is no version"),
        ("1.0.9", "comes before 1.1.0"),
        ("1.2.0rc1", ""),
        ("1.1.0", "there is a tag v1.1.0"),
    ],
)
def test_version_that_cannot_follow_is_refused(checkout: Path, version: str, line: str) -> None:
    if not line:
        check_wanted(checkout, version, clean=True)
        return
    with pytest.raises(Invalid, match=line):
        check_wanted(checkout, version, clean=True)


def test_checkout_with_changes_is_refused_unless_dry(checkout: Path) -> None:
    (checkout / "new.py").touch()
    check_wanted(checkout, "1.2.0", clean=False)
    with pytest.raises(Invalid, match="the checkout has changes"):
        check_wanted(checkout, "1.2.0", clean=True)


def test_unreleased_notes_become_those_of_the_version() -> None:
    dated = dated_changelog(CHANGELOG, "1.2.0", "2026-12-01")
    assert "## Unreleased\n\n## 1.2.0 (2026-12-01)\n\n- one\n- two\n\n## 1.1.0" in dated
    with pytest.raises(Invalid, match="no section `## Unreleased` with notes"):
        release_notes(dated)


def test_version_of_every_file_is_the_same() -> None:
    """The chart names the version twice, for itself and for the image."""
    lines = [
        line.rstrip('"').replace('"', " ").split()[-1]
        for name, pattern in VERSIONED.items()
        for line in (ROOT / name).read_text().splitlines()
        if re.fullmatch(pattern, line)
    ]
    assert lines == [current_version(ROOT)] * 3


def test_finished_release_reaches_the_checkout(checkout: Path, tmp_path: Path) -> None:
    release = Release(checkout, tmp_path / "made", "1.2.0", print)
    said("git", "clone", str(checkout), str(release.clone), cwd=tmp_path)
    (release.clone / "pyproject.toml").write_text('version = "1.2.0"\n')
    said("git", "commit", "--all", "--message", "Release 1.2.0", cwd=release.clone)
    said("git", "tag", "--annotate", "v1.2.0", "--message", "1.2.0", cwd=release.clone)
    release.dist.mkdir()
    (release.dist / "sluice-1.2.0.tar.gz").write_bytes(b"packed")
    release.hand_over()
    assert current_version(checkout) == "1.2.0"
    assert said("git", "describe", cwd=checkout) == "v1.2.0"
    assert (checkout / "dist" / "sluice-1.2.0.tar.gz").read_bytes() == b"packed"


def test_failed_step_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match=r"^`git nothing` ended with 1: ") as failed:
        said("git", "nothing", cwd=tmp_path)
    assert "\n" not in str(failed.value)


def state() -> tuple[str, str]:
    """Return everything that a release could change in this checkout: its commit, tags and files."""
    return said("git", "rev-parse", "HEAD", cwd=ROOT) + said("git", "tag", cwd=ROOT), said(
        "git", "status", "-s", cwd=ROOT
    )


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(900)
def test_dry_run_makes_every_part_and_keeps_none() -> None:
    before = state()
    command = [sys.executable, "-m", "tools.release", "1000.0.0", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    for part in (
        r"tests/formats/1000\.0\.0\.tar\.gz: [\d,]+ bytes, written and opened",
        r"tag v1000\.0\.0 on \w{12}",
        r"sluice-1000\.0\.0-py3-none-any\.whl: [\d,]+ bytes, the same twice",
        r"sluice-1000\.0\.0\.tar\.gz: [\d,]+ bytes, the same twice",
        r"the wheel says: sluice 1000\.0\.0 \(\w{12}\)",
        r"site: \d+ pages, no warnings",
        r"\w{64}  sluice-1000\.0\.0-site\.tar\.gz",
    ):
        assert re.search(rf"(?m)^{part}$", done.stdout), part
    assert state() == before
