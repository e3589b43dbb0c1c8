"""Files with a secret token. A process that can read one has its power, and an empty file gives none.

A token file appears whole or not at all. It is written under another name with mode 0600, synced, and then linked to
its own name, which fails if there is one already: of several processes that start at once one makes the token and all
read the same. A file that is there is believed only if it is long enough. An interrupted copy or a full disk leaves an
empty file, and an empty token would equal the one that a stranger does not send.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from sluice.cluster.base.ownership import read_own_file
from sluice.storage.errors import Invalid

MIN_CHARACTERS = 32
"""Shortest token that is accepted; ours have 64 hexadecimal digits."""


def ensure_token(path: Path) -> str:
    """The token in a file, which is made if it is missing; others than its owner may not read it.

    Raises Invalid in one line if there is a file without a good token, or one that another user could have written,
    or it can neither be read nor made.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make(path)
        token = read_own_file(path).decode("ascii").strip()
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise Invalid(f"the token file {path} cannot be used: {error.strerror}") from error
    if len(token) < MIN_CHARACTERS or not token.isprintable() or " " in token:
        raise Invalid(
            f"{path} has no valid token: it must be one line of {MIN_CHARACTERS} characters or more; "
            "remove the file, and the next start makes a new one"
        )
    return token


def _make(path: Path) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
