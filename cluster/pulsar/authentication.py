"""Authentication of Pulsar's clients: by a token, by a name and a password, or by either, as the settings say."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.pulsar.conversation.gateway import Authenticate, ClientIdentity
from cluster.pulsar import passwords, tokens
from cluster.pulsar.passwords import PasswordAuthenticator
from cluster.pulsar.tokens import Rejected, TokenAuthenticator


def authenticate_by(settings: Mapping[str, Any]) -> Authenticate | None:
    """None lets everybody in. Raises Invalid if a file that the settings name cannot be used."""
    key_file, password_file = (str(settings.get(f"pulsar_{name}_file") or "") for name in ("token_key", "password"))
    by_token = TokenAuthenticator(Path(key_file)) if key_file else None
    by_password = PasswordAuthenticator(Path(password_file)) if password_file else None
    if by_token is None and by_password is None:
        return None

    async def known(method: str, data: bytes) -> ClientIdentity:
        if method == tokens.METHOD and by_token is not None:
            return by_token(data)
        if method == passwords.METHOD and by_password is not None:
            return await by_password(data)
        ways = [f"a {tokens.METHOD}"] * (by_token is not None)
        ways += [f"a name and a password ({passwords.METHOD!r})"] * (by_password is not None)
        raise Rejected(f"this broker needs {' or '.join(ways)}")

    return known


def in_header(text: str) -> tuple[str, bytes]:
    """Method and credentials of an Authorization header; of none, or what cannot be read, empty ones."""
    scheme, _, given = text.partition(" ")
    if scheme.lower() == "basic":
        try:
            return passwords.METHOD, base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            return passwords.METHOD, b""
    return (tokens.METHOD, given.encode("utf-8", "surrogateescape")) if scheme.lower() == "bearer" else ("", b"")
