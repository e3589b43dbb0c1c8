"""Checkpoints: a bookie's state at one place of its journal, so that a start need not read earlier records.

There are two files that take turns. The newer valid one is used; the journal is kept from the place of the older one
on, and the tables of both, so if the newer one is damaged the older one and a longer replay give the same state. If
neither can be read, epochs and deletions before the journal's oldest segment are lost: everything is in limbo.

The watermark is a file of its own: every ledger with a record written at any time has an id below it, and that is
durable before the record is. It bounds what may have been lost when something was lost that has no name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import google_crc32c
import msgpack
import numpy as np
from pyroaring import BitMap

from sluice.actors.bookie.known_ledgers import BookieLedger, FencingState, Segments
from sluice.actors.ports import Disk
from sluice.storage.errors import Corrupt, NotFound
from sluice.storage.format.position import MAX_LEDGER

FILES = ("checkpoint-0", "checkpoint-1")
WATERMARK = "watermark"
_STEP = 1024
_STATE = np.dtype([("id", "<u4"), ("epoch", "<i8"), ("confirmed", "<i8"), ("last_run", "<i8"), ("limbo", "?")])
_LIVE = np.dtype([("segment", "<u4"), ("ledger", "<u4"), ("bytes", "<u8")])
_SIZE = np.dtype([("segment", "<u4"), ("size", "<u4")])


@dataclass(slots=True)
class Checkpoint:
    """State at the end of the first `offset` bytes of `segment`. tables: names of index tables, oldest first."""

    generation: int = 0
    segment: int = 0
    offset: int = 0
    tables: list[str] = field(default_factory=list)
    next_table: int = 1
    ledgers: FencingState = field(default_factory=FencingState)
    segments: Segments = field(default_factory=Segments)


def encode_checkpoint(checkpoint: Checkpoint, salt: bytes) -> bytes:
    """The bytes of a checkpoint file. Of each ledger the durable epoch is kept, never one that only memory knows."""
    states = [
        (ledger, state.durable_epoch, state.last_confirmed, state.last_run, state.limbo)
        for ledger, state in sorted(checkpoint.ledgers.states.items())
    ]
    live = [
        (segment, ledger, size)
        for segment, ledgers in sorted(checkpoint.segments.live.items())
        for ledger, size in sorted(ledgers.items())
    ]
    body: bytes = msgpack.packb(
        [
            checkpoint.generation,
            checkpoint.segment,
            checkpoint.offset,
            checkpoint.tables,
            checkpoint.next_table,
            np.array(states, _STATE).tobytes(),
            checkpoint.ledgers.deleted.serialize(),
            checkpoint.ledgers.limbo_below,
            np.array(sorted(checkpoint.segments.sizes.items()), _SIZE).tobytes(),
            np.array(live, _LIVE).tobytes(),
        ]
    )
    return _seal(body, salt)


def decode_checkpoint(data: bytes, salt: bytes) -> Checkpoint:
    """Read a checkpoint back. Raises Corrupt."""
    body = _open(data, salt, "the checkpoint")
    try:
        return _read(body)
    except (ValueError, TypeError, LookupError, OverflowError, msgpack.UnpackException) as error:
        raise Corrupt(f"the checkpoint cannot be read: {error}") from error


def _read(body: bytes) -> Checkpoint:
    generation, segment, offset, tables, next_table, states, deleted, limbo_below, sizes, live = msgpack.unpackb(body)
    ledgers = FencingState()
    ledgers.deleted = BitMap.deserialize(deleted)
    ledgers.limbo_below = limbo_below
    for ledger, epoch, confirmed, last_run, limbo in np.frombuffer(states, _STATE).tolist():
        ledgers.states[ledger] = BookieLedger(epoch, epoch, confirmed, last_run, limbo)
    segments = Segments()
    segments.sizes = dict(np.frombuffer(sizes, _SIZE).tolist())
    for number, ledger, size in np.frombuffer(live, _LIVE).tolist():
        segments.stored(number, ledger, size)
    return Checkpoint(generation, segment, offset, tables, next_table, ledgers, segments)


async def load_checkpoints(disk: Disk, salt: bytes) -> list[Checkpoint]:
    """The checkpoints that can be read, newest first."""
    found = []
    for name in FILES:
        try:
            found.append(decode_checkpoint(await disk.read(name, 0, await disk.size(name)), salt))
        except (Corrupt, NotFound):
            continue
    return sorted(found, key=lambda checkpoint: -checkpoint.generation)


async def save_checkpoint(disk: Disk, generation: int, data: bytes) -> None:
    """Write an encoded checkpoint over the older of the two. Raises DiskFull with both as they were."""
    await disk.replace(FILES[generation % 2], data)


async def load_watermark(disk: Disk, salt: bytes) -> int:
    """Every ledger that may have been here is below this id; above all ids if that is unknown."""
    try:
        body = _open(await disk.read(WATERMARK, 0, 64), salt, "the watermark")
    except (Corrupt, NotFound):
        return MAX_LEDGER + 1
    return int.from_bytes(body, "little")


async def raise_watermark(disk: Disk, ledger: int, salt: bytes) -> int:
    """Make a watermark above a ledger durable, with room for some more, and return it."""
    watermark = min(ledger + _STEP, MAX_LEDGER + 1)
    await disk.replace(WATERMARK, _seal(watermark.to_bytes(8, "little"), salt))
    return watermark


def _seal(body: bytes, salt: bytes) -> bytes:
    return int(google_crc32c.value(salt + body)).to_bytes(4, "little") + body


def _open(data: bytes, salt: bytes, what: str) -> bytes:
    if len(data) < 5 or int.from_bytes(data[:4], "little") != google_crc32c.value(salt + data[4:]):
        raise Corrupt(f"{what} is damaged")
    return data[4:]
