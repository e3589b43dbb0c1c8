"""The processes that called this one."""

from __future__ import annotations

import psutil


def callers() -> list[str]:
    """Return their names, the nearest first; a login shell is without its dash."""
    return [str(process.name()).lstrip("-") for process in psutil.Process().parents()]
