"""Names and passwords of Pulsar's clients: a file of Apache's `htpasswd -B`, with one line for each user.

    till:$2y$10$...

Passwords are hashed with bcrypt. bcrypt is made to be slow, so it has a thread of its own, one for all: a client that
guesses delays others that come with a password, and no one else. A password that was right once is known from then on,
because a client by HTTP sends it with every request.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluice.cluster.base.certificates import check_private
from sluice.cluster.gateway.tokens import Rejected, TokenIdentity
from sluice.storage.errors import Invalid, Overloaded

METHOD = "basic"
MOST_COST = 12
"""A quarter of a second on a fast machine: who hashes with more makes clients wait."""
_HASH = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
MOST_CHECKS = 50
"""The number of passwords that are being compared, or wait for it. A further client is asked to come again."""
_BYTES = 72
"""bcrypt looks no further."""


class PasswordAuthenticator:
    """Verifies passwords. check: the slow comparison of a password with a hash, bcrypt's own by default.

    Raises Invalid, in one line, if the file cannot be used.
    """

    def __init__(self, file: Path, check: Callable[[bytes, bytes], bool] | None = None) -> None:
        import bcrypt

        self._check = check or bcrypt.checkpw
        self._hashes = _read(file)
        cost = max(int(hashed[4:6]) for hashed in self._hashes.values())
        self._decoy = bcrypt.hashpw(secrets.token_hex(16).encode(), bcrypt.gensalt(cost))
        """What is compared for a name that nobody has: it takes as long."""
        self._secret = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        self._slow = ThreadPoolExecutor(1, "passwords")
        self._checks = 0

    async def __call__(self, data: bytes) -> TokenIdentity:
        """The identity that `name:password` proves. Raises Rejected, which does not say what was wrong, and Overloaded.

        If the caller is cancelled, as when its client has gone, the password is not compared any more.
        """
        name, _, password = data.decode("utf-8", "replace").partition(":")
        given = password.replace("\0", "?").encode()[:_BYTES]
        seal = hmac.digest(self._secret, given, hashlib.sha256)
        if hmac.compare_digest(self._right.get(name, b""), seal):
            return TokenIdentity(name, None)
        wanted = self._hashes.get(name, self._decoy)
        if self._checks >= MOST_CHECKS:
            raise Overloaded("too many passwords are being checked: come again")
        self._checks += 1
        try:
            right = await asyncio.get_running_loop().run_in_executor(self._slow, self._check, given, wanted)
        finally:
            self._checks -= 1
        if not right or name not in self._hashes:
            raise Rejected("the name or the password is wrong")
        self._right[name] = seal
        return TokenIdentity(name, None)


def _read(file: Path) -> dict[str, bytes]:
    """The hash of each user. Raises Invalid."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"pulsar_password_file {file} cannot be read: {getattr(error, 'strerror', error)}") from None
    check_private("pulsar_password_file", file)
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, _, hashed = line.strip().partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        form = _HASH.fullmatch(hashed)
        if not name or form is None:
            raise Invalid(f"line {number} of {file} is not a name and a hash of bcrypt: make it with `htpasswd -B`")
        if int(form[1]) > MOST_COST:
            raise Invalid(f"line {number} of {file} costs {form[1]}, and {MOST_COST} is the most: `htpasswd -B -C 10`")
        found[name] = hashed.encode()
    if not found:
        raise Invalid(f"pulsar_password_file {file} has no users")
    return found
