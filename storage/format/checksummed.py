"""A record with a checksum and a mark of its kind, so that a reader knows what it is and that it is whole."""

from __future__ import annotations

import struct

import google_crc32c

from sluice.storage.errors import Corrupt

_HEAD = struct.Struct("<4sI")


def seal(magic: bytes, body: bytes) -> bytes:
    """The body behind its kind (4 bytes) and its CRC32C."""
    return _HEAD.pack(magic, google_crc32c.value(body)) + body


def unseal(magic: bytes, data: bytes, what: str) -> bytes:
    """The body back. Raises Corrupt, which names `what` it should have been."""
    if len(data) < _HEAD.size:
        raise Corrupt(f"{what} is cut off")
    kind, crc = _HEAD.unpack_from(data)
    body = bytes(data[_HEAD.size :])
    if kind != magic or google_crc32c.value(body) != crc:
        raise Corrupt(f"{what}'s checksum does not fit")
    return body
