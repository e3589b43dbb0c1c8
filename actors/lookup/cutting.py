"""Cuts the rows that a consumer on another machine needs out of a run, so that the whole run need not travel.

On one machine a run lies in memory once, and every consumer maps it. Between machines it would travel to each consumer
that gets a row of it. So the process that has the payload cuts the rows out: the dispatcher if it sends payloads along,
the topic if it is asked for one.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.actors.messages import Delivery, Part, PayloadRead
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import Corrupt
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.cut import cut_run

W = TypeVar("W", Part, PayloadRead)

PAUSE_BYTES = 4 * 1024 * 1024
"""After so many bytes the others of this process have their turn."""


async def cut_delivery(ports: Ports, delivery: Delivery, least: int) -> Delivery:
    """Return a delivery as it is sent: of runs of at least `least` bytes only the wanted rows, where that is less. The
    decided delivery stays whole: a repetition of the turn is cut again.
    """
    parts, looked_at = [], 0
    for part in delivery.parts:
        parts.append(part if part.blob is None else await _cut(ports, part, part.blob, part.rows, least))
        looked_at += 0 if part.blob is None else part.blob.size
        if looked_at >= PAUSE_BYTES:
            looked_at = 0
            await ports.clock.sleep(0)
    return msgspec.structs.replace(delivery, parts=parts)


async def cut_read(ports: Ports, read: PayloadRead, entries: npt.NDArray[np.uint32], least: int) -> PayloadRead:
    """A run that was asked for, as it is sent to a consumer that wants these entries of its ledger (ascending)."""
    rows = entries.astype(np.int64) - read.first_entry
    inside = rows[(rows >= 0) & (rows < read.count)].astype(np.uint32)
    return await _cut(ports, read, read.payload, inside, least) if len(inside) else read


async def _cut(ports: Ports, whole: W, blob: Blob, rows: npt.NDArray[np.uint32], least: int) -> W:
    """The same with these rows alone. It stays whole if they are most of the run, or if its payload cannot be used,
    which the receiver notices.
    """
    if blob.size < least or len(rows) == whole.count or len(whole.cut):
        return whole
    payload = await ports.net.fetch(blob)
    if payload is None or payload_crc(payload) != whole.crc:
        return whole
    try:
        run = cut_run(payload, whole.count, whole.delayed, whole.shape, rows)
    except Corrupt:
        return whole
    if run is None:
        return whole
    name = "blob" if isinstance(whole, Part) else "payload"
    return msgspec.structs.replace(whole, crc=run.crc, cut=rows, **{name: Blob(run.payload)})
