"""Which files hold a key for tokens, and what tokens may say."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from sluice.cluster.gateway.tokens import (
    Rejected,
    TokenAuthenticator,
    WantedClaims,
    make_key,
    make_token,
    wanted_claims,
)
from sluice.storage.errors import Invalid

RSA = rsa.generate_private_key(65537, 2048)
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def private(key: Any, encoding: Encoding, password: bytes | None = None) -> bytes:
    how = NoEncryption() if password is None else BestAvailableEncryption(password)
    return bytes(key.private_bytes(encoding, PrivateFormat.PKCS8, how))


def authenticator_file(folder: Path, content: bytes) -> Path:
    file = folder / "token.key"
    file.write_bytes(content)
    file.chmod(0o600)
    return file


def authenticator(folder: Path, content: bytes) -> TokenAuthenticator:
    return TokenAuthenticator(authenticator_file(folder, content))


UNUSABLE = {
    "private PEM": (private(RSA, Encoding.PEM), "holds a private key"),
    "private DER": (private(RSA, Encoding.DER), "private key in DER"),
    "encrypted DER": (private(RSA, Encoding.DER, b"secret"), "private key in DER"),
    "public DER": (RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), "public key in DER"),
    "broken PEM": (pem(RSA)[:80] + b"\n-----END PUBLIC KEY-----\n", "no public key in PEM"),
    "certificate": (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no public key in PEM"),
    "Ed25519": (pem(ed25519.Ed25519PrivateKey.generate()), "a key for none of"),
    "another curve": (pem(ec.generate_private_key(ec.SECP256K1())), "a key for none of"),
    "SSH": (RSA.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH), "a key of SSH"),
}


@pytest.mark.parametrize("content", UNUSABLE)
def test_a_key_with_which_no_token_is_valid_is_refused(tmp_path: Path, content: str) -> None:
    data, complaint = UNUSABLE[content]
    with pytest.raises(Invalid, match=complaint) as refused:
        authenticator(tmp_path, data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o622])
@pytest.mark.parametrize("content", [b"s" * 32, pem(RSA)], ids=["secret", "public"])
def test_a_key_that_others_can_replace_is_refused(tmp_path: Path, content: bytes, mode: int) -> None:
    """They would sign tokens with their own."""
    authenticator_file(tmp_path, content).chmod(mode)
    with pytest.raises(Invalid, match="others may write to pulsar_token_key_file"):
        TokenAuthenticator(tmp_path / "token.key")


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", *CURVES])
def test_public_keys_verify_what_they_are_made_for(tmp_path: Path, algorithm: str) -> None:
    key = RSA if algorithm.startswith("RS") else ec.generate_private_key(CURVES[algorithm])
    known = authenticator(tmp_path, pem(key))
    assert known(jwt.encode({"sub": "till"}, key, algorithm).encode()).role == "till"
    forged = jwt.api_jws.encode(b'{"sub": "till"}', secrets.token_bytes(32), "HS256")
    with pytest.raises(Rejected):
        known(forged.encode())


@pytest.mark.parametrize("size", [32, 48, 64, 300])
def test_secrets_of_any_bytes_are_taken(tmp_path: Path, size: int) -> None:
    secret = b"\x30\x82" + secrets.token_bytes(size - 2)  # as DER begins
    assert authenticator(tmp_path, secret)(jwt.encode({"sub": "till"}, secret, "HS256").encode()).role == "till"


CLAIMS = [
    '{"sub": "till", "exp": 1' + "0" * 400 + "}",
    '{"sub": "till", "exp": 1e400}',
    '{"sub": "till", "exp": NaN}',
    '{"sub": "till", "exp": 281474976710657}',
    '{"sub": "till", "nbf": 1' + "0" * 5_000 + "}",
    '{"sub": "till", "iat": Infinity}',
    '{"sub": "\\ud800"}',
    '{"sub": ["till"]}',
    '{"sub": "till", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    '["sub"]',
]


@pytest.mark.parametrize("claims", CLAIMS, ids=range(len(CLAIMS)))
def test_claims_that_mean_nothing_are_rejected(tmp_path: Path, claims: str) -> None:
    secret = secrets.token_bytes(32)
    known = authenticator(tmp_path, secret)
    with pytest.raises(Rejected):
        known(jwt.api_jws.encode(claims.encode(), secret, "HS256").encode())
    assert known(jwt.api_jws.encode(json.dumps({"sub": "till"}).encode(), secret, "HS256").encode()).ends is None


def test_a_claim_of_ones_own_may_name_several_roles(tmp_path: Path) -> None:
    secret = secrets.token_bytes(32)
    known = TokenAuthenticator(authenticator_file(tmp_path, secret), WantedClaims(role="groups"))
    assert known(jwt.encode({"groups": ["a", "b", "a"]}, secret, "HS256").encode()).roles == ("a", "b")
    assert known(jwt.encode({"groups": "a"}, secret, "HS256").encode()).roles == ("a",)
    others: list[Any] = [[], ["a", 1], ["a", ""], ["x"] * 101, {"a": 1}, 7]
    for wrong in [{"sub": "a"}, *({"groups": other} for other in others)]:
        with pytest.raises(Rejected, match="no role in its claim 'groups'"):
            known(jwt.encode(wrong, secret, "HS256").encode())


def test_audience_and_issuer_are_checked_where_they_are_named(tmp_path: Path) -> None:
    secret = secrets.token_bytes(32)
    file = authenticator_file(tmp_path, secret)
    settings = {"pulsar_token_audience": "here", "pulsar_token_audience_claim": "for", "pulsar_token_issuer": "us"}
    known = TokenAuthenticator(file, wanted_claims(settings))
    for audience in ("here", ["there", "here"]):
        token = jwt.encode({"sub": "a", "for": audience, "iss": "us"}, secret, "HS256").encode()
        assert known(token).roles == ("a",)
    wrong: list[dict[str, Any]] = [{}, {"for": "there"}, {"for": ["there"]}, {"for": {"here": 1}}, {"aud": "here"}]
    for claims in wrong:
        with pytest.raises(Rejected, match="another audience"):
            known(jwt.encode({"sub": "a", "iss": "us", **claims}, secret, "HS256").encode())
    with pytest.raises(Rejected, match="another issuer"):
        known(jwt.encode({"sub": "a", "for": "here", "iss": "them"}, secret, "HS256").encode())
    assert TokenAuthenticator(file)(jwt.encode({"sub": "a", "aud": "any"}, secret, "HS256").encode()).roles == ("a",)


def test_a_key_and_a_token_are_made(tmp_path: Path) -> None:
    file = tmp_path / "token.key"
    make_key(file)
    with pytest.raises(Invalid, match="cannot be made"):
        make_key(file)
    assert TokenAuthenticator(file)(make_token(file, {"sub": "till"}).encode()).roles == ("till",)
    with pytest.raises(Rejected):
        TokenAuthenticator(file)(make_token(file, {"sub": "till"}, -60).encode())
    (tmp_path / "public.pem").write_bytes(pem(RSA))
    with pytest.raises(Invalid, match="holds a public key"):
        make_token(tmp_path / "public.pem", {"sub": "till"})
