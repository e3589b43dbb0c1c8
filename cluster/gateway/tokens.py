"""Tokens of Pulsar's clients: JSON Web Tokens, as Pulsar's own token authentication reads them.

The key is a file: a secret (HS256, HS384, HS512), or a public key in PEM (RS…, ES…). A token needs a subject, which is
the client's role, and may have a time at which it ends. Settings can name another claim for the role, which may be a
list of several, and an audience and an issuer that a token must be for and from; everything else in it is left to
others. A file that holds another key, with which no token would ever be valid, is refused at the start.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.cluster.base.certificates import check_own, check_private
from sluice.storage.errors import Invalid

METHOD = "token"
SETTING = "pulsar_token_key_file"
SECRET_BYTES = 32
"""Shortest secret: as long as the shortest hash."""
LATE_S = 5
"""Seconds by which clocks may differ."""
SUBJECT = "sub"
"""The claim that names the role, unless settings name another one."""
MOST_ROLES = 100
"""Of one token."""
MAX_SECONDS = 1 << 48
"""Latest end of a token, in seconds since 1970: what lies behind it is a mistake, and more than clocks can count."""
_SECRET = ["HS256", "HS384", "HS512"]
_RSA, _ELLIPTIC = ["RS256", "RS384", "RS512"], {"secp256r1": ["ES256"], "secp384r1": ["ES384"], "secp521r1": ["ES512"]}
_PEM = b"-----BEGIN"


class Rejected(Invalid):
    """Credentials that are refused."""


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The identity of a client. ends: when its token expires, in seconds since 1970; None if never."""

    role: str
    ends: float | None
    others: tuple[str, ...] = ()
    """Further roles."""

    @property
    def roles(self) -> tuple[str, ...]:
        """All of them."""
        return (self.role, *self.others)


@dataclass(frozen=True, slots=True)
class WantedClaims:
    """role: the claim that names the roles. audience: what the claim audience_claim must be or have in its list, and
    issuer: what `iss` must be; empty: anything.
    """

    role: str = SUBJECT
    audience: str = ""
    audience_claim: str = "aud"
    issuer: str = ""


def wanted_claims(settings: Mapping[str, Any]) -> WantedClaims:
    """Return the claims that settings name."""
    given = {
        "role": settings.get("pulsar_token_auth_claim"),
        "audience": settings.get("pulsar_token_audience"),
        "audience_claim": settings.get("pulsar_token_audience_claim"),
        "issuer": settings.get("pulsar_token_issuer"),
    }
    return WantedClaims(**{name: str(value) for name, value in given.items() if value})


class TokenAuthenticator:
    """Verifies tokens with the key of a file. Raises Invalid, in one line, if the file holds none."""

    def __init__(self, key_file: Path, wanted: WantedClaims | None = None) -> None:
        self._wanted = wanted or WantedClaims()
        try:
            content = key_file.read_bytes()
        except OSError as error:
            raise Invalid(f"{SETTING} {key_file} cannot be read: {error.strerror}") from None
        self._key: Any = content
        if _PEM in content:
            check_own(SETTING, key_file)
            self._key, self._algorithms = _public_key(key_file, content)
            return
        check_private(SETTING, key_file)
        _check_secret(key_file, content)
        self._algorithms = _SECRET

    def __call__(self, data: bytes) -> TokenIdentity:
        """The identity that this token proves. Raises Rejected, whose text tells a stranger nothing of the key."""
        import jwt

        try:
            claims = jwt.decode(
                data,
                self._key,
                algorithms=self._algorithms,
                leeway=LATE_S,
                options={"verify_aud": False, "verify_iss": False, "verify_sub": False},
            )
            ends = claims.get("exp")
            until = None if ends is None else float(ends)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise Rejected("the token is not valid or has expired") from None
        role, *others = _roles_in(claims, self._wanted.role)
        _check_claims(claims, self._wanted)
        if until is not None and not (math.isfinite(until) and until <= MAX_SECONDS):
            raise Rejected("the time at which the token ends is not valid")
        return TokenIdentity(role, until, tuple(others))


def _roles_in(claims: Mapping[str, Any], name: str) -> list[str]:
    """Return the roles in the claim of this name: at least one, and one alone in a subject. Raises Rejected."""
    given = claims.get(name)
    roles = given if isinstance(given, list) and name != SUBJECT else [given]
    if not 0 < len(roles) <= MOST_ROLES or not all(isinstance(role, str) and role and _is_text(role) for role in roles):
        raise Rejected(
            "the token has no subject" if name == SUBJECT else f"the token has no role in its claim {name!r}"
        )
    return [str(role) for role in dict.fromkeys(roles)]


def _check_claims(claims: Mapping[str, Any], wanted: WantedClaims) -> None:
    """Raises Rejected for a token that is for others, or from others."""
    given = claims.get(wanted.audience_claim)
    if wanted.audience and wanted.audience not in (given if isinstance(given, list) else [given]):
        raise Rejected("the token is for another audience")
    if wanted.issuer and claims.get("iss") != wanted.issuer:
        raise Rejected("the token is from another issuer")


def _is_text(role: str) -> bool:
    """Whether it can be written down: JSON can name halves of characters."""
    try:
        role.encode()
    except UnicodeEncodeError:
        return False
    return True


def _public_key(file: Path, content: bytes) -> tuple[Any, list[str]]:
    """A public key in PEM, and what it verifies. Raises Invalid."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if b"PRIVATE KEY" in content:
        raise Invalid(f"{SETTING} {file} holds a private key: the broker needs the public one, `openssl pkey -pubout`")
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise Invalid(f"{SETTING} {file} holds no public key in PEM that can be read") from None
    if isinstance(key, RSAPublicKey):
        return key, _RSA
    algorithms = _ELLIPTIC.get(key.curve.name) if isinstance(key, EllipticCurvePublicKey) else None
    if algorithms is None:
        raise Invalid(f"{SETTING} {file} holds a key for none of RS256 to RS512 and ES256 to ES512")
    return key, algorithms


def _check_secret(file: Path, content: bytes) -> None:
    """Raises Invalid for what is no secret."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key

    if len(content) < SECRET_BYTES:
        raise Invalid(f"the secret in {file} has {len(content)} bytes; {SECRET_BYTES} are the least")
    if content.lstrip().startswith((b"ssh-", b"ecdsa-")):
        raise Invalid(f"{SETTING} {file} holds a key of SSH: it must be a public key in PEM, or a secret")
    for load, kind in ((load_der_public_key, "public"), (lambda data: load_der_private_key(data, None), "private")):
        try:
            load(content)
        except (ValueError, UnsupportedAlgorithm):
            continue
        except TypeError:  # it is encrypted
            kind = "private"
        raise Invalid(f"{SETTING} {file} holds a {kind} key in DER: it must be a public key in PEM, or a secret")


def make_key(file: Path) -> None:
    """Write a new secret to a new file, for its owner alone. Raises Invalid if there is one, or it cannot be made."""
    try:
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise Invalid(f"{file} cannot be made: {error.strerror}") from None
    with os.fdopen(handle, "wb") as opened:
        opened.write(secrets.token_bytes(SECRET_BYTES))


def make_token(key_file: Path, claims: Mapping[str, Any], lasts_s: int | None = None) -> str:
    """A token that is signed with the secret of a file. lasts_s: for how many seconds it counts; None: without end.

    Raises Invalid if the file holds no secret.
    """
    import jwt

    TokenAuthenticator(key_file)
    secret = key_file.read_bytes()
    if _PEM in secret:
        raise Invalid(f"{key_file} holds a public key: tokens are signed with a private one, where that is kept")
    ends = {} if lasts_s is None else {"exp": int(time.time()) + lasts_s}
    return str(jwt.encode({**claims, **ends}, secret, _SECRET[0]))
