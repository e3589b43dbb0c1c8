"""The cookie: proof that this disk is the disk of this bookie, and still holds what the bookie wrote.

A disk that was swapped or emptied would answer "no such run" for runs that were acknowledged, and a recovery that
believes it throws them away. So a bookie has a cookie twice, on its disk and in the metadata store, drawn at random
when the disk was formatted; it also holds the salt of the journal, and the id of the cluster that it was formatted in.
The disk is formatted only when neither is there and the disk is empty. The disk's half is written first: a crash
between the two halves leaves a disk that never served, and the next start completes it.

A disk that has served and a metadata store that does not know its cookie do not belong together, unless the store names
the same cluster: then it is older than the disk (restored from a backup), and the disk is taken as it is. Whatever is
on a disk with a journal, it is never formatted.
"""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import msgpack

from sluice.actors.ports import Disk, Meta, Rng
from sluice.storage.errors import Corrupt, NotFound
from sluice.storage.format.journal import SALT_BYTES

COOKIE = "cookie"
CLUSTER = "cluster/id"
"""The metadata record with the cluster's id, made once."""
_LIMIT = 4096


def cookie_key(bookie_id: str) -> str:
    """The metadata record with the other half."""
    return f"bookies/{bookie_id}/cookie"


@dataclass(frozen=True, slots=True)
class Cookie:
    """The disk's half. cluster: the id of the cluster that formatted it, empty if that is unknown.

    published: the metadata store has its half. used: the disk has a journal, and is never to be formatted.
    """

    bookie_id: str
    salt: bytes
    data: bytes
    published: bool
    cluster: str = ""
    used: bool = False


async def check_cookie(disk: Disk, meta: Meta, rng: Rng, bookie_id: str, cluster: str = "") -> Cookie:
    """Compare both halves, and the disk's cluster with this one; on a disk that was never used, write the first.

    Raises Corrupt if the disk is foreign, emptied or its cookie damaged; Unavailable if the store does not answer.
    """
    known = await meta.read(cookie_key(bookie_id))
    here = await _read(disk)
    used = any(name.startswith("journal-") for name in await disk.names())
    if here is None:
        if known is not None:
            raise Corrupt(f"the disk of bookie {bookie_id} was emptied or replaced; start a bookie with a new id on it")
        if used:
            raise Corrupt(f"the disk of bookie {bookie_id} has a journal but no cookie")
        here = _encode(bookie_id, bytes(rng.randrange(256) for _ in range(SALT_BYTES)), cluster)
        await disk.replace(COOKIE, here)
    owner, salt, home = _decode(here)
    if owner != bookie_id:
        raise Corrupt(f"this is the disk of bookie {owner}, not of {bookie_id}")
    if known is not None and known.value != here:
        raise Corrupt(f"bookie {bookie_id} was formatted elsewhere; this is not its disk")
    if cluster and home and home != cluster:
        raise Corrupt(f"the disk of bookie {bookie_id} belongs to cluster {home}, and this is cluster {cluster}")
    if known is None and used and (not home or await cluster_id(meta) != home):
        raise Corrupt(
            f"the disk of bookie {bookie_id} has served under another metadata store than this one, which does not"
            " know it; give it the one that it was used with"
        )
    return Cookie(bookie_id, salt, here, known is not None, home, used)


async def cluster_id(meta: Meta) -> str:
    """The id of the cluster that a metadata store belongs to; empty if it was never given one. Raises Unavailable."""
    known = await meta.read(CLUSTER)
    return "" if known is None else known.value.decode()


async def read_cookie(disk: Disk) -> Cookie:
    """The disk's half, for looking at a disk. Raises Corrupt if it is missing or damaged."""
    data = await _read(disk)
    if data is None:
        raise Corrupt("there is no cookie: this is not the disk of a bookie")
    return decode_cookie(data)


def decode_cookie(data: bytes) -> Cookie:
    """A disk's half from its bytes. Raises Corrupt."""
    bookie_id, salt, cluster = _decode(data)
    return Cookie(bookie_id, salt, data, published=False, cluster=cluster)


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


def _encode(bookie_id: str, salt: bytes, cluster: str) -> bytes:
    body: bytes = msgpack.packb([bookie_id, salt, cluster])
    return int(google_crc32c.value(body)).to_bytes(4, "little") + body


def _decode(data: bytes) -> tuple[str, bytes, str]:
    body = data[4:]
    if len(data) < 5 or int.from_bytes(data[:4], "little") != google_crc32c.value(body):
        raise Corrupt("the cookie of this disk is damaged")
    try:
        bookie_id, salt, *cluster = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(f"the cookie of this disk cannot be read: {error}") from error
    return bookie_id, salt, cluster[0] if cluster else ""
