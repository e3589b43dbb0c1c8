"""Tokens of Pulsar's clients: JSON Web Tokens, as Pulsar's own token authentication reads them.

The key is a file: a secret (HS256, HS384, HS512), or a public key in PEM (RS…, ES…). A token needs a subject, which is
the client's role, and may have a time at which it ends; everything else in it is left to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.certificates import check_private
from storage.errors import Invalid

METHOD = "token"
SECRET_BYTES = 32
"""Shortest secret: as long as the shortest hash."""
LATE_S = 5
"""Seconds by which clocks may differ."""
_SECRET = ["HS256", "HS384", "HS512"]
_PUBLIC = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]


class Rejected(Invalid):
    """Credentials that are refused."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is. ends: seconds since 1970 at which its token is over, None if it never is."""

    role: str
    ends: float | None


class TokenAuthenticator:
    """Verifies tokens with the key of a file. Raises Invalid if the file holds none."""

    def __init__(self, key_file: Path) -> None:
        try:
            self._key = key_file.read_bytes()
        except OSError as error:
            raise Invalid(f"pulsar_token_key_file {key_file} cannot be read: {error.strerror}") from None
        public = b"PUBLIC KEY" in self._key
        if not public:
            check_private("pulsar_token_key_file", key_file)
        if not public and len(self._key) < SECRET_BYTES:
            raise Invalid(f"the secret in {key_file} has {len(self._key)} bytes; {SECRET_BYTES} are the least")
        self._algorithms = _PUBLIC if public else _SECRET

    def __call__(self, data: bytes) -> Identity:
        """Who presents this token. Raises Rejected; what it says tells a stranger nothing of the key."""
        import jwt

        try:
            claims = jwt.decode(
                data, self._key, algorithms=self._algorithms, leeway=LATE_S, options={"verify_aud": False}
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            raise Rejected("the token is not valid, or over") from None
        role = claims.get("sub")
        if not isinstance(role, str) or not role:
            raise Rejected("the token has no subject")
        ends = claims.get("exp")
        return Identity(role, None if ends is None else float(ends))
