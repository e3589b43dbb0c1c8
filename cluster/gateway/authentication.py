"""Authentication of Pulsar's clients: by a token, by a name and a password, or by either, as the settings say.

Settings can give a role to clients that present nothing that is looked at here (`pulsar_anonymous_role`). A client that
presents a wrong token or password is refused in any case. The rights of roles are decided elsewhere
(actors.policies.authorization).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.actors.policies.authorization import Authorization
from sluice.actors.pulsar.conversation.gateway.gateway import Authenticate, Certified, ClientIdentity
from sluice.cluster.gateway import passwords, tokens
from sluice.cluster.gateway.passwords import PasswordAuthenticator
from sluice.cluster.gateway.tokens import Rejected, TokenAuthenticator, wanted_claims
from sluice.storage.errors import Invalid

KEY_FILES = ("pulsar_token_key_file", "pulsar_password_file")
"""Settings that name files."""


def authenticate_by(settings: Mapping[str, Any]) -> Authenticate | None:
    """None lets everybody in. Raises Invalid if a file that the settings name cannot be used."""
    key_file, password_file = (str(settings.get(f"pulsar_{name}_file") or "") for name in ("token_key", "password"))
    by_token = TokenAuthenticator(Path(key_file), wanted_claims(settings)) if key_file else None
    anonymous = str(settings.get("pulsar_anonymous_role") or "")
    by_password = PasswordAuthenticator(Path(password_file)) if password_file else None
    if by_token is None and by_password is None:
        return None

    async def known(method: str, data: bytes) -> ClientIdentity:
        if method == tokens.METHOD and by_token is not None:
            return by_token(data)
        if method == passwords.METHOD and by_password is not None:
            return await by_password(data)
        if anonymous:
            return Certified(anonymous)
        ways = [f"a {tokens.METHOD}"] * (by_token is not None)
        ways += [f"a name and a password ({passwords.METHOD!r})"] * (by_password is not None)
        raise Rejected(f"this broker needs {' or '.join(ways)}")

    return known


def authorization_of(settings: Mapping[str, Any]) -> Authorization | None:
    """The roles that settings name; None where everybody may do everything. Raises Invalid."""
    if not settings.get("authorization_enabled"):
        if settings.get("pulsar_anonymous_role"):
            raise Invalid(
                "pulsar_anonymous_role lets everybody in: set authorization_enabled, which says what it may do"
            )
        for name in ("super_user_roles", "viewer_roles"):
            if settings.get(name):
                raise Invalid(f"everybody may do everything, although {name} is set: set authorization_enabled as well")
        return None
    known = ("pulsar_token_key_file", "pulsar_password_file", "pulsar_tls_trust_certs_file", "pulsar_anonymous_role")
    if not any(settings.get(name) for name in known):
        raise Invalid(f"authorization_enabled needs to know clients: set {', '.join(known[:-1])} or {known[-1]}")
    return Authorization(*(names_in(str(settings.get(f"{kind}_roles") or "")) for kind in ("super_user", "viewer")))


def names_in(text: str) -> tuple[str, ...]:
    """Names that commas divide."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def in_header(text: str) -> tuple[str, bytes]:
    """Method and credentials of an Authorization header; of none, or what cannot be read, empty ones."""
    scheme, _, given = text.partition(" ")
    if scheme.lower() == "basic":
        try:
            return passwords.METHOD, base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            return passwords.METHOD, b""
    return (tokens.METHOD, given.encode("utf-8", "surrogateescape")) if scheme.lower() == "bearer" else ("", b"")
