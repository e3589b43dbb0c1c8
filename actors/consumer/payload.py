"""From a delivered part to its rows: fetch the run's payload, check it, take this consumer's rows.

The dispatcher sends row numbers and a handle. Where the handle is gone (its sharer died), or there never was one
(old runs, due messages), the topic is asked; the topic asks its bookies. A checksum that does not fit is never
delivered (S18): the payload is fetched again from the topic.
"""

from __future__ import annotations

import numpy as np

from actors.consumer.held import Received
from actors.directory import Directory
from actors.messages import Part, PayloadRead, ReadPayload
from actors.ports import Ports, Unknown
from actors.wire import Blob
from storage.batch import decode_body
from storage.errors import Corrupt, Fenced, NotFound, Overloaded, Unavailable
from storage.frame import index_columns, payload_crc

READ_TIMEOUT = 10_000
RETRY_FIRST, RETRY_MOST = 5, 500


class Payloads:
    """Resolves parts of one partition."""

    def __init__(self, ports: Ports, directory: Directory, topic: str, partition: int) -> None:
        self._ports = ports
        self._directory = directory
        self._topic = topic
        self._partition = partition

    async def resolve(self, part: Part, epoch: int, session: int) -> list[Received]:
        """The part's messages, in order, one `Received` a run. Messages that were trimmed are left out."""
        if part.count and part.blob is not None:
            payload = await self._ports.net.fetch(part.blob)
            if payload is not None and payload_crc(payload) == part.crc:
                return [self._cut(part, _as_read(part, payload), epoch, session)]
        found = []
        rest = part
        while len(rest.rows):
            try:
                run = await self._read(rest.ledger, rest.first_entry + int(rest.rows[0]))
            except NotFound:
                self._ports.log("trimmed", ledger=rest.ledger, entry=rest.first_entry + int(rest.rows[0]))
                rest = _without(rest, 1)
                continue
            inside = rest.first_entry + rest.rows.astype(np.int64) < run.first_entry + run.count
            count = int(np.count_nonzero(inside))
            found.append(self._cut(_within(rest, run, count), run, epoch, session))
            rest = _without(rest, count)
        return found

    async def _read(self, ledger: int, entry: int) -> PayloadRead:
        wait = RETRY_FIRST
        while True:
            try:
                address = await self._directory.topic(self._topic, self._partition)
                reply = await self._ports.net.call(address, ReadPayload(ledger=ledger, entry=entry), READ_TIMEOUT)
                if isinstance(reply, Unknown):
                    await self._directory.suspect(address)
                else:
                    payload = await self._ports.net.fetch(reply.payload)
                    if payload is not None and payload_crc(payload) == reply.crc:
                        return reply
            except (Unavailable, Fenced, Corrupt, Overloaded) as error:
                self._ports.log("payload_waits", ledger=ledger, entry=entry, error=str(error))
            await self._ports.clock.sleep(wait)
            wait = min(wait * 2, RETRY_MOST)

    def _cut(self, part: Part, run: PayloadRead, epoch: int, session: int) -> Received:
        payload = run.payload.data
        assert payload is not None
        columns = run.count * (12 if run.delayed else 4)
        rows = decode_body(payload[columns:], run.shape, run.count)
        due, _ = index_columns(payload[:columns], run.count, run.delayed)
        wanted = part.rows.astype(np.int64)
        count = len(wanted)
        whole = count == run.count
        redeliveries = part.redeliveries if len(part.redeliveries) else np.zeros(count, np.uint8)
        return Received(
            rows=rows if whole else rows.take(wanted),
            partition=self._partition,
            positions=(part.ledger << 32 | part.first_entry) + wanted,
            dispatch=np.arange(part.dispatch, part.dispatch + count, dtype=np.int64),
            redeliveries=redeliveries,
            deliver_at=np.zeros(count, np.int64) if due is None else due[wanted],
            epoch=epoch,
            session=session,
        )


def _as_read(part: Part, payload: memoryview) -> PayloadRead:
    return PayloadRead(
        count=part.count,
        delayed=part.delayed,
        shape=part.shape,
        crc=part.crc,
        first_entry=part.first_entry,
        payload=Blob(payload),
    )


def _within(part: Part, run: PayloadRead, count: int) -> Part:
    """The first `count` rows of a part, counted from the start of their run."""
    entries = part.first_entry + part.rows[:count].astype(np.int64)
    return Part(
        ledger=part.ledger,
        first_entry=run.first_entry,
        count=run.count,
        delayed=run.delayed,
        shape=run.shape,
        crc=run.crc,
        dispatch=part.dispatch,
        rows=(entries - run.first_entry).astype(np.uint32),
        redeliveries=part.redeliveries[:count],
    )


def _without(part: Part, count: int) -> Part:
    return Part(
        ledger=part.ledger,
        first_entry=part.first_entry,
        count=part.count,
        delayed=part.delayed,
        shape=part.shape,
        crc=part.crc,
        dispatch=part.dispatch + count,
        rows=part.rows[count:],
        redeliveries=part.redeliveries[count:],
    )
