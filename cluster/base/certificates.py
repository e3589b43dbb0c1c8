"""Loads certificates and keys from files, with one clear line for each way in which a file can be wrong."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
from pathlib import Path

from sluice.cluster.base.ownership import refuse_writable_by_others
from sluice.storage.errors import Invalid


def load_trusted(context: ssl.SSLContext, name: str, path: str) -> None:
    """Trust the authorities of a file. name: of the setting. Raises Invalid."""
    readable(name, path)
    check_own(name, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise Invalid(f"{name} {path} holds no certificate in PEM") from None


def load_own(context: ssl.SSLContext, certificate: tuple[str, str], key: tuple[str, str]) -> None:
    """Show this certificate. Both are names of settings and their paths. Raises Invalid."""
    readable(*certificate)
    readable(*key)
    check_private(*key)
    try:
        context.load_cert_chain(certificate[1], key[1], password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise Invalid(f"{key[0]} {key[1]} is not the key of {certificate[0]} {certificate[1]}") from None
        raise Invalid(f"{certificate[0]} {certificate[1]} and {key[0]} {key[1]} are not a pair in PEM") from None
    except ValueError:
        raise Invalid(f"{key[0]} {key[1]} is encrypted; the key must be there without a password") from None


def readable(name: str, path: str) -> None:
    """Raises Invalid if a setting names a file that cannot be read."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise Invalid(f"{name} {path} cannot be read: {error.strerror}") from None


def check_own(name: str, path: str | Path) -> None:
    """Raise Invalid if others can write a file that exists: they would decide which clients get in. name: of the
    setting.
    """
    refuse_writable_by_others(f"{name} {path}", os.stat(path))


def check_private(name: str, path: str | Path) -> None:
    """Raises Invalid if a file that exists holds a secret which others can read, or write. name: of the setting."""
    check_own(name, path)
    if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise Invalid(f"{name} {path} is readable by others; chmod 600 it")


def check_date(name: str, path: str) -> None:
    """Raises Invalid if a certificate is over. The one of a server is first in its file."""
    from cryptography.x509 import load_pem_x509_certificate

    end = load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
    if end < datetime.datetime.now(datetime.UTC):
        raise Invalid(f"{name} {path} has expired: it ended at {end:%Y-%m-%d %H:%M} UTC")


def _no_password() -> str:
    raise ValueError("nobody is here to type a password")
