"""Checks the owner of a file: a secret or an address is believed only if nobody else could have written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sluice.storage.errors import Invalid

ROOT_USER = 0


def read_own_file(path: Path) -> bytes:
    """The contents of a file. Raises Invalid in one line if another user could have written it; OSError.

    The opened file is looked at, so nobody can put another in its place between the look and the read. It is opened
    without waiting: a named pipe in its place would hold this process up.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        refuse_foreign_owner(path, status)
        refuse_writable_by_others(f"{path}", status)
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def refuse_foreign_owner(path: Path, status: os.stat_result) -> None:
    """Raises Invalid if this belongs to another user than root."""
    if status.st_uid not in (os.geteuid(), ROOT_USER):
        raise Invalid(
            f"{path} belongs to another user (id {status.st_uid}): run this as that user, or choose another folder"
        )


def refuse_writable_by_others(what: str, status: os.stat_result) -> None:
    """Raises Invalid if its group or everybody may write to it."""
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise Invalid(f"others may write to {what} (its mode is {mode}): chmod go-w, or choose another")
