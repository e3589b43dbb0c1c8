"""The version and the commit of the code that runs, and the command that starts it."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the package, or of a checkout."""
IS_CHECKOUT = (ROOT / "tests" / "__init__.py").is_file()
COMMAND = "./sluice" if IS_CHECKOUT else "sluice"
"""What a person types, as messages and help name it: the script of a checkout, else the installed command."""


def described() -> str:
    """Return "sluice", the version, and in parentheses the commit, as far as the wheel or the checkout names it."""
    built = ROOT / "commit.txt"  # hatch_build.py writes it
    name = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        commit = built.read_text() if built.exists() else _said(name)
    except OSError:
        commit = ""
    return f"sluice {version('sluice')} ({commit.strip() or 'unknown commit'})"


def _said(command: list[str]) -> str:
    """Ask git, unless the package lies in somebody else's repository."""
    if not (ROOT / ".git").exists():
        return ""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
