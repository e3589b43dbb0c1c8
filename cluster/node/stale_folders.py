"""Removes temporary folders of processes that were killed.

Each such folder holds a file that its maker keeps locked as long as it lives; the kernel takes the lock away with the
process, however it ends. So the next start can tell what belongs to nobody, and touches nothing else: not a folder
without that file, not one of another user, and not one of a Ray session in which anything still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sluice.cluster.base.forks import keep_from_children
from sluice.storage.errors import Invalid

OWNER_FILE = ".owner"
_held: list[int] = []


def claim(folder: Path) -> None:
    """Claim a folder for this process, as long as it lives. The file has its name when it is locked: until then it
    would say that its owner has ended.
    """
    draft = folder / f"{OWNER_FILE}.{os.getpid()}"
    handle = keep_from_children(os.open(draft, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    fcntl.flock(handle, fcntl.LOCK_EX)
    draft.rename(folder / OWNER_FILE)
    _held.append(handle)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder against other callers of this function for the block. Raises Invalid if it is locked.

    The lock is on the folder itself, so that nothing is left in it.
    """
    handle = keep_from_children(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Invalid(f"another run has its data in {folder}; wait for it, or name another folder") from None
        yield
    finally:
        os.close(handle)


def clear(parent: Path, prefix: str) -> list[Path]:
    """Remove the folders with this beginning of the name that were claimed and belong to nobody; returns them."""
    cleared = []
    for folder in sorted(parent.glob(f"{prefix}*")):
        if folder.is_symlink() or not folder.is_dir() or not _abandoned(folder):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        cleared.append(folder)
    return cleared


def _abandoned(folder: Path) -> bool:
    """Whether this user claimed it with a process that has ended."""
    from sluice.cluster.node.sessions import processes_of

    with contextlib.suppress(OSError):
        if folder.stat().st_uid != os.getuid():
            return False
        handle = os.open(folder / OWNER_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return not processes_of(str(folder))
        finally:
            os.close(handle)
    return False
