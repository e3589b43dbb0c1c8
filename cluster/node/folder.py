"""A data folder: its lock, and the state file by which others find the cluster that runs on it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.cluster.base.forks import keep_from_children
from sluice.cluster.base.ownership import refuse_foreign_owner, refuse_writable_by_others
from sluice.cluster.node.environment import is_session_folder
from sluice.storage.errors import Invalid
from sluice.storage.stores.objects import make_private

STATE_FILE = "cluster.json"
TOKEN_FILE = "token"
DOOR_FILE = "door.json"
LOCK_FILE = ".cluster.lock"


def prepare_folder(data_dir: Path) -> Path:
    """Make the data folder and try to write to it. Raises Invalid in one line, also if others can write to it.

    Its path stands in messages between processes, as text.
    """
    try:
        str(data_dir.absolute()).encode()
    except UnicodeEncodeError:
        raise Invalid(f"the name of the data folder {data_dir} is not UTF-8; choose another with --data-dir") from None
    try:
        make_private(data_dir)
        refuse_foreign(data_dir)
        probe = data_dir / f".probe-{os.getpid()}"
        try:
            probe.write_bytes(b"x" * 4096)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise Invalid(
            f"the data folder {data_dir} cannot be used: {error.strerror}; choose another with --data-dir"
        ) from error
    return data_dir.resolve()


def refuse_foreign(data_dir: Path) -> None:
    """Raise Invalid if another user than root could have put something into the folder; OSError.

    A user who writes its token or its state file decides who may use the cluster, and which processes `down` ends.
    """
    refuse_writable_by_others(f"the data folder {data_dir}", data_dir.stat())
    for path in (data_dir, *data_dir.iterdir()):
        refuse_foreign_owner(path, path.lstat())


@contextlib.contextmanager
def claimed(root: Path) -> Iterator[None]:
    """Hold a data folder: nobody else starts or ends a cluster on it meanwhile.

    A forked child has no part in it. Raises Invalid, which names the process that holds it, if one does.
    """
    handle = keep_from_children(os.open(root / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Invalid(
                f"{_holder(handle)} runs a cluster on {root}, or starts or ends one; wait for it, or end it"
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the holder's name
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} {Path(sys.argv[0]).name or sys.executable}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _holder(handle: int) -> str:
    """The holder of a locked folder, as it has written there itself."""
    pid, _, program = os.pread(handle, 4096, 0).decode(errors="replace").partition(" ")
    if pid == str(os.getpid()):
        return "this process itself"
    return f"another process ({pid}, {program})" if pid.isdecimal() else "another process"


def read_state(data_dir: Path) -> dict[str, Any] | None:
    """The state file, None without one. Raises Invalid if it is not ours: it says what `down` may end and remove."""
    path = data_dir / STATE_FILE
    try:
        if path.exists():
            refuse_foreign(data_dir)
        state = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Invalid(f"{path} cannot be read ({error}); remove it if no cluster runs") from None
    texts = [state.get(name) for name in ("address", "session", "token_file")] if isinstance(state, dict) else [None]
    if not all(isinstance(text, str) for text in texts) or (
        state["session"] and not is_session_folder(state["session"])
    ):
        raise Invalid(f"{path} was not written by Sluice; remove it if no cluster runs")
    return dict(state)


def write_state(root: Path, state: dict[str, Any]) -> None:
    """Replace the state file, whole."""
    replace_file(root / STATE_FILE, json.dumps(state).encode())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file, whole and durably; only this user can read it.

    Without the two syncs a power failure may leave an empty file under the final name.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # of one that was killed, perhaps with another mode
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
