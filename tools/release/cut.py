"""The steps of a release, all in a clone beside the checkout, which gets the outcome only when everything is there.

1. The changelog's section Unreleased becomes the version with its date, and each file that names the version gets it.
2. The version writes what it leaves behind into `tests/formats`, and opens it again.
3. Commit and tag.
4. The tag is built twice, in folders of two names: wheel and source archive must be the same bytes.
5. The wheel says its version and the tag's commit, and makes the site, which may have no warning.
6. Checksums.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import Version

from sluice.storage.errors import Conflict, Invalid

VERSIONED = {
    "pyproject.toml": r'(?m)^(version = ")[^"]+(")$',
    "deploy/helm/sluice/Chart.yaml": r'(?m)^((?:version: |appVersion: "))[^"\n]+("?)$',
}
"""Each file that names the version, and the pattern of its lines. pyproject.toml is the source."""
UNRELEASED = "## Unreleased\n"
SHAPE = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
OPENING = "tests/cluster/test_earlier_versions.py"


def current_version(root: Path) -> str:
    """Return the version that a checkout names."""
    found = re.search(VERSIONED["pyproject.toml"], (root / "pyproject.toml").read_text(encoding="utf-8"))
    if not found:
        raise Invalid(f"{root / 'pyproject.toml'} names no version")
    return found[0].split('"')[1]


def check_wanted(root: Path, version: str, *, clean: bool) -> None:
    """Raise Invalid, in one line, unless a checkout can become this version. clean: it may have no changes."""
    if not SHAPE.fullmatch(version):
        raise Invalid(f"{version} is no version: write three numbers, such as 1.2.0, or 1.2.0rc1 before it")
    if Version(version) < Version(current_version(root)):
        raise Invalid(f"{version} comes before {current_version(root)}, which pyproject.toml names: choose a later one")
    if said("git", "tag", "--list", f"v{version}", cwd=root):
        raise Invalid(f"there is a tag v{version}: choose another version, or remove the tag if nobody has it")
    if clean and said("git", "status", "--porcelain", cwd=root):
        raise Invalid("the checkout has changes: commit them first, or try --dry-run, which takes the last commit")
    release_notes((root / "CHANGELOG.md").read_text(encoding="utf-8"))


def release_notes(changelog: str) -> str:
    """Return the text of the section Unreleased. Raises Invalid if there is none, or nothing in it."""
    _, found, rest = changelog.partition(UNRELEASED)
    notes = rest.partition("\n## ")[0].strip()
    if not found or not notes:
        raise Invalid("CHANGELOG.md has no section `## Unreleased` with notes: write what users must know")
    return notes


def dated_changelog(changelog: str, version: str, date: str) -> str:
    """Return the changelog with an empty section Unreleased above the version's. date: YYYY-MM-DD."""
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n## {version} ({date})\n", 1)


class Release:
    """The making of one version in a folder of its own.

    source: the checkout. folder: where everything is made. say: is told each step in a line.
    """

    def __init__(self, source: Path, folder: Path, version: str, say: Callable[[str], None]) -> None:
        self.version, self._say, self._source = version, say, source
        self.clone, self.dist, self._again = folder / "sluice", folder / "dist", folder / "the-same-again"
        self._wheel_files = folder / "wheel"

    def make(self) -> None:
        """Carry out every step. Raises Conflict, in one line, where a step's outcome is not what it must be."""
        self._run("git", "clone", "--quiet", str(self._source), str(self.clone), cwd=self._source)
        self._bump()
        self._leave_formats()
        self._commit()
        self._build()
        self._check_wheel()
        self._build_site()
        self._sum()

    def files(self) -> list[Path]:
        """Return what a release publishes."""
        return sorted(self.dist.iterdir())

    def hand_over(self) -> None:
        """Give the checkout the commit, the tag and the files, in its folder `dist`."""
        self._run("git", "fetch", "--quiet", str(self.clone), "tag", f"v{self.version}", cwd=self._source)
        self._run("git", "merge", "--quiet", "--ff-only", f"v{self.version}", cwd=self._source)
        target = self._source / "dist"
        target.mkdir(exist_ok=True)
        for file in self.files():
            (target / file.name).write_bytes(file.read_bytes())

    def _bump(self) -> None:
        path = self.clone / "CHANGELOG.md"
        changelog = path.read_text(encoding="utf-8")
        self._notes = release_notes(changelog)
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        path.write_text(dated_changelog(changelog, self.version, date), encoding="utf-8")
        for name, pattern in VERSIONED.items():
            text = (self.clone / name).read_text(encoding="utf-8")
            bumped, count = re.subn(pattern, rf"\g<1>{self.version}\g<2>", text)
            if not count:
                raise Conflict(f"{name} has no line with the version")
            (self.clone / name).write_text(bumped, encoding="utf-8")
        self._say(f"CHANGELOG.md: {len(self._notes.split())} words under {self.version} ({date})")
        self._say(f"version {self.version} in {', '.join(VERSIONED)}")

    def _leave_formats(self) -> None:
        archive = f"tests/formats/{self.version}.tar.gz"
        here = {"PYTHONPATH": os.pathsep.join((str(self.clone / "src"), str(self.clone)))}
        (self.clone / archive).unlink(missing_ok=True)
        self._python("-m", "tools.release.formats", archive, **here)
        self._python("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", OPENING, "-k", self.version, **here)
        self._say(f"{archive}: {(self.clone / archive).stat().st_size:,} bytes, written and opened")

    def _commit(self) -> None:
        self._run("git", "add", "--all")
        self._run("git", "commit", "--quiet", "--message", f"Release {self.version}")
        self._run("git", "tag", "--annotate", f"v{self.version}", "--message", f"{self.version}\n\n{self._notes}")
        self._say(f"tag v{self.version} on {self._described()}")

    def _build(self) -> None:
        tag = f"v{self.version}"
        self._run("git", "clone", "--quiet", "--branch", tag, str(self.clone), str(self._again))
        again = self.dist.with_name("dist-again")
        for root, target in ((self.clone, self.dist), (self._again, again)):
            self._run(sys.executable, "-m", "hatchling", "build", "-d", str(target), cwd=root)
        names = [f"sluice-{self.version}-py3-none-any.whl", f"sluice-{self.version}.tar.gz"]
        if sorted(file.name for file in self.dist.iterdir()) != names:
            raise Conflict(f"the build left {sorted(file.name for file in self.dist.iterdir())}, not {names}")
        for name in names:
            if (self.dist / name).read_bytes() != (again / name).read_bytes():
                raise Conflict(f"two builds of {name} differ")
            self._say(f"{name}: {(self.dist / name).stat().st_size:,} bytes, the same twice")

    def _check_wheel(self) -> None:
        (wheel,) = self.dist.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(self._wheel_files)
        told = self._python("-c", "from sluice.cli import main; main()", "--version", **self._of_wheel())
        wanted = f"sluice {self.version} ({self._described()})"
        if told != wanted:
            raise Conflict(f"the wheel says {told!r}, not {wanted!r}")
        self._say(f"the wheel says: {told}")

    def _build_site(self) -> None:
        site = self.dist.with_name("site")
        told = self._python("-m", "tools.site", "build", "--folder", str(site), **self._of_wheel())
        if f"Sluice {self.version}" not in (site / "README.html").read_text(encoding="utf-8"):
            raise Conflict(f"the site does not name {self.version}")
        with tarfile.open(self.dist / f"sluice-{self.version}-site.tar.gz", "w:gz") as packed:
            packed.add(site, f"sluice-{self.version}-site")
        self._say(f"site: {told.partition(' in ')[0]}, no warnings")

    def _sum(self) -> None:
        lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in self.files()]
        (self.dist / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
        for line in lines:
            self._say(line.rstrip())

    def _described(self) -> str:
        return said("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*", cwd=self.clone)

    def _of_wheel(self) -> dict[str, str]:
        """Return an environment in which Sluice is the wheel's, and the tools are the clone's."""
        return {"PYTHONPATH": os.pathsep.join((str(self._wheel_files), str(self.clone)))}

    def _python(self, *words: str, **environ: str) -> str:
        return said(sys.executable, *words, cwd=self.clone, **environ)

    def _run(self, *words: str, cwd: Path | None = None) -> None:
        said(*words, cwd=cwd or self.clone)


def said(*words: str, cwd: Path, **environ: str) -> str:
    """Return what a command prints. Raises Conflict with its last line if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    done = subprocess.run(words, cwd=cwd, env=kept | environ, capture_output=True, text=True, check=False)
    if done.returncode:
        last: Sequence[str] = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Conflict(f"`{' '.join(words)}` ended with {done.returncode}: {''.join(last)}")
    return done.stdout.strip()
