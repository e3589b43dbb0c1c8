"""The cookie: proof that this disk is the disk of this bookie, and still holds what the bookie wrote.

A disk that was swapped or emptied would answer "no such run" for runs that were acknowledged, and a recovery that
believes it throws them away. So a bookie has a cookie twice, on its disk and in the metadata store, drawn at random
when the disk was formatted; it also holds the salt of the journal. The disk is formatted only when neither is there
and the disk is empty. The disk's half is written first: a crash between the two halves leaves a disk that never
served, and the next start completes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import msgpack

from actors.ports import Disk, Meta, Rng
from storage.errors import Corrupt, NotFound
from storage.journal import SALT_BYTES

COOKIE = "cookie"
_LIMIT = 4096


def cookie_key(bookie_id: str) -> str:
    """The metadata record with the other half."""
    return f"bookies/{bookie_id}/cookie"


@dataclass(frozen=True, slots=True)
class Cookie:
    """The disk's half. published: the metadata store has its half, so this disk has served or may have."""

    bookie_id: str
    salt: bytes
    data: bytes
    published: bool


async def check_cookie(disk: Disk, meta: Meta, rng: Rng, bookie_id: str) -> Cookie:
    """Compare both halves; on a disk that was never used, write the first.

    Raises Corrupt if the disk is foreign, emptied or its cookie damaged; Unavailable if the store does not answer.
    """
    known = await meta.read(cookie_key(bookie_id))
    here = await _read(disk)
    if here is None:
        if known is not None:
            raise Corrupt(f"the disk of bookie {bookie_id} was emptied or replaced; start a bookie with a new id on it")
        if any(name.startswith(("journal-", "checkpoint-")) for name in await disk.names()):
            raise Corrupt(f"the disk of bookie {bookie_id} has a journal but no cookie")
        here = _encode(bookie_id, bytes(rng.randrange(256) for _ in range(SALT_BYTES)))
        await disk.replace(COOKIE, here)
    owner, salt = _decode(here)
    if owner != bookie_id:
        raise Corrupt(f"this is the disk of bookie {owner}, not of {bookie_id}")
    if known is not None and known.value != here:
        raise Corrupt(f"bookie {bookie_id} was formatted elsewhere; this is not its disk")
    return Cookie(bookie_id, salt, here, known is not None)


async def read_cookie(disk: Disk) -> Cookie:
    """The disk's half, for looking at a disk. Raises Corrupt if it is missing or damaged."""
    data = await _read(disk)
    if data is None:
        raise Corrupt("there is no cookie: this is not the disk of a bookie")
    bookie_id, salt = _decode(data)
    return Cookie(bookie_id, salt, data, published=False)


async def publish_cookie(meta: Meta, cookie: Cookie) -> None:
    """Write the other half. Raises Corrupt if another disk was first."""
    key = cookie_key(cookie.bookie_id)
    if not await meta.create(key, 1, cookie.data):
        known = await meta.read(key)
        if known is None or known.value != cookie.data:
            raise Corrupt(f"bookie {cookie.bookie_id} was formatted elsewhere; this is not its disk")


async def _read(disk: Disk) -> bytes | None:
    try:
        return await disk.read(COOKIE, 0, _LIMIT)
    except NotFound:
        return None


def _encode(bookie_id: str, salt: bytes) -> bytes:
    body: bytes = msgpack.packb([bookie_id, salt])
    return int(google_crc32c.value(body)).to_bytes(4, "little") + body


def _decode(data: bytes) -> tuple[str, bytes]:
    body = data[4:]
    if len(data) < 5 or int.from_bytes(data[:4], "little") != google_crc32c.value(body):
        raise Corrupt("the cookie of this disk is damaged")
    bookie_id, salt = msgpack.unpackb(body)
    return bookie_id, salt
