"""The version and the commit of the code that runs."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path


def described() -> str:
    """Return "sluice", the version, and in parentheses the commit, as far as the wheel or the checkout names it."""
    root = Path(__file__).resolve().parents[2]  # the package, or a checkout
    built = root / "commit.txt"  # hatch_build.py writes it
    name = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        commit = built.read_text() if built.exists() else _said(name, root)
    except OSError:
        commit = ""
    return f"sluice {version('sluice')} ({commit.strip() or 'unknown commit'})"


def _said(command: list[str], root: Path) -> str:
    """Ask git, unless the package lies in somebody else's repository."""
    if not (root / ".git").exists():
        return ""
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
