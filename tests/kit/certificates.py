"""Certificates for tests: an authority of the test's own, and what it signs. Real ones, in files of the test."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """Paths of a certificate and of its key."""

    certificate: str
    key: str


class Authority:
    """Signs certificates. trust: the path of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _unsigned(
            name, name, self._key.public_key(), self._key.public_key(), days=1, authority=True
        ).sign(self._key, hashes.SHA256())
        self.trust = str(folder / f"{name}.pem")
        Path(self.trust).write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, *, days: int = 1, address: str = "127.0.0.1") -> Pair:
        """A certificate for the server at an address, or the client of a name. days: negative for one that is over."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _unsigned(name, self._name, key.public_key(), self._key.public_key(), days=days, authority=False)
        subjects = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        signed = made.add_extension(subjects, critical=False).sign(self._key, hashes.SHA256())
        pair = Pair(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        Path(pair.certificate).write_bytes(signed.public_bytes(Encoding.PEM))
        Path(pair.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        Path(pair.key).chmod(0o600)
        return pair


def _unsigned(
    name: str,
    issuer: str,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    *,
    days: int,
    authority: bool,
) -> x509.CertificateBuilder:
    """With the identifiers of keys that RFC 5280 asks for, without which Python from 3.13 on refuses a certificate."""
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 9 * DAY)
        .not_valid_after(now + days * DAY)
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
