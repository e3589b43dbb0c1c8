"""Limits of every store: the names of objects and metadata records, and the size of a record."""

from __future__ import annotations

import re

from sluice.storage.errors import Invalid

MAX_NAME = 700
MAX_PART = 200
MAX_VALUE_BYTES = 64 * 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*\Z")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]*\Z")


def check_name(name: str) -> str:
    """The name itself, or Invalid when it cannot be one everywhere."""
    if not _NAME.match(name) or len(name) > MAX_NAME or not _has_usable_parts(name):
        raise Invalid(
            f"{name!r} is not an object name: use parts of A-Z a-z 0-9 . _ - joined by /, "
            f"at most {MAX_PART} characters a part and {MAX_NAME} in all"
        )
    return name


def _has_usable_parts(name: str) -> bool:
    if len(name) <= MAX_PART and "./" not in name and not name.endswith("."):
        return True  # as almost all are, and each is checked in several places
    return all(part not in (".", "..") and len(part) <= MAX_PART for part in name.split("/"))


def check_prefix(prefix: str) -> str:
    """The prefix itself, or Invalid when no name can start with it."""
    if not _PREFIX.match(prefix) or len(prefix) > MAX_NAME:
        raise Invalid(f"{prefix!r} is not a prefix of object names")
    return prefix


def folder_of(prefix: str) -> str | None:
    """The part of a prefix that names whole folders, "" or ending with "/"; None if no name can start with it."""
    folder = check_prefix(prefix)[: prefix.rfind("/") + 1]
    return None if any(part in ("", ".", "..") for part in folder.split("/")[:-1]) else folder


def check_value(number: int, value: bytes) -> None:
    """Raises Invalid for a number below 1 or a value above 64 MiB."""
    if number < 1:
        raise Invalid(f"versions are numbered from 1, not {number}")
    if len(value) > MAX_VALUE_BYTES:
        raise Invalid(f"a metadata record holds at most {MAX_VALUE_BYTES} bytes, this one {len(value)}")
