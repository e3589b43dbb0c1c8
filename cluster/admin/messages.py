"""Single messages by HTTP, out of the log; paths below /admin/v2/persistent/public/default/{topic}.

    GET .../ledger/{ledger}/entry/{entry}      the message, or the client's batch, of an id
    GET .../subscription/{sub}/position/{n}    the n-th that is not acknowledged, from 1; a batch counts once
    GET .../examinemessage?initialPosition=earliest|latest&messagePosition=n
    GET .../lastMessageId                      {"ledgerId": L, "entryId": E, "partitionIndex": P}
    GET .../messageid/{ms}                     that of the first message published at or after a time

The body of a message is its payload, of a batch what the client packed, without compression; the headers say what else
is known of it, as Pulsar's do.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import Ends, FindBacklog, FindTime, ReadEnds
from sluice.cluster.admin.broker import CALL_TIMEOUT, Broker, Named, named, subscription_of
from sluice.cluster.admin.statistics import moment
from sluice.cluster.admin.topics import TOPIC
from sluice.cluster.http.responses import large
from sluice.cluster.http.server import number_of
from sluice.storage.errors import Invalid, NotFound, Unavailable
from sluice.storage.format.position import entry_of, ledger_of, position

MOST_STEPS = 1_000
"""So far into a backlog or a log these paths look, because each message costs a question."""
PREFIX = "X-Pulsar-"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message or a client's batch. first: its entry; count: its messages, as rows. batched: whether it is a batch."""

    ledger: int
    first: int
    count: int
    batched: bool
    part: Received


class Messages:
    """The routes of single messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", large(self._by_id)),
            web.get(f"{TOPIC}/subscription/{{subscription}}/position/{{number}}", large(self._peek)),
            web.get(f"{TOPIC}/examinemessage", large(self._examine)),
            web.get(f"{TOPIC}/lastMessageId", self._last_id),
            web.get(f"{TOPIC}/messageid/{{time}}", self._id_at),
        ]

    async def _by_id(self, request: web.Request) -> web.Response:
        which = await self._one(request)
        ledger, entry = (number_of(request.match_info[name]) for name in ("ledger", "entry"))
        return _response(await entry_at(self._broker, which, ledger, entry))

    async def _peek(self, request: web.Request) -> web.Response:
        which, name = await self._one(request), subscription_of(request)
        number = number_of(request.match_info["number"])
        at, found = -1, None
        for _ in range(_bounded(number)):
            owner = await self._broker.ask_owner(which.topic, which.partition or 0, name, FindBacklog(start=at))
            if owner.position < 0:
                raise NotFound("Message not found: the backlog is shorter")
            found = await entry_at(self._broker, which, ledger_of(owner.position), entry_of(owner.position))
            at = position(found.ledger, found.first) + found.count
        assert found is not None
        return _response(found)

    async def _examine(self, request: web.Request) -> web.Response:
        """Counted from the end as Pulsar counts: the first from the end is the last one."""
        which = await self._one(request)
        edge = request.query.get("initialPosition", "latest")
        number = _bounded(number_of(request.query.get("messagePosition", "1")))
        ends = await self._ends(which)
        if edge not in ("latest", "earliest"):
            raise Invalid("initialPosition is latest or earliest")
        at = ends.last if edge == "latest" else max(ends.first, 0)
        found = await self._entry(which, at, ends)
        for _ in range(number - 1):
            behind = position(found.ledger, found.first) + found.count
            if edge == "latest":
                if position(found.ledger, found.first) <= max(ends.first, 0):
                    break  # Pulsar answers with the farthest there is
                at = _before(position(found.ledger, found.first), ends)
            else:
                if behind > ends.last:
                    break
                at = _after(behind, ends)
            found = await self._entry(which, at, ends)
        return _response(found)

    async def _last_id(self, request: web.Request) -> web.Response:
        which = await self._one(request)
        fields = await last_id(self._broker, which, await self._ends(which))
        return web.json_response({**fields, "partitionIndex": await self._index(which)})

    async def _id_at(self, request: web.Request) -> web.Response:
        which = await self._one(request)
        asked = FindTime(time=number_of(request.match_info["time"]))
        at = (await self._broker.ask_owner(which.topic, which.partition or 0, None, asked)).position
        fields = {"ledgerId": ledger_of(at), "entryId": entry_of(at), "partitionIndex": await self._index(which)}
        return web.json_response(fields)

    async def _one(self, request: web.Request) -> Named:
        """A topic of one partition, or a partition. Raises Invalid, NotFound."""
        which = named(request)
        settings = await self._broker.settings(which)
        if which.partition is None and settings.has_partitions:
            raise Invalid(f"topic {which.topic} is divided into partitions ({settings.partitions}); name one of them")
        return which

    async def _index(self, which: Named) -> int:
        """The partition as ids have it."""
        several = (await self._broker.settings(which)).has_partitions
        return (which.partition or 0) if several or which.partition is not None else -1

    async def _ends(self, which: Named) -> Ends:
        ends: Ends = await self._broker.ask_owner(which.topic, which.partition or 0, None, ReadEnds())
        return ends

    async def _entry(self, which: Named, at: int, ends: Ends) -> StoredMessage:
        if ends.last < max(ends.first, 0):
            raise NotFound("Could not examine messages: the topic is empty")
        return await entry_at(self._broker, which, ledger_of(at), entry_of(at))


async def last_id(broker: Broker, which: Named, ends: Ends) -> dict[str, int]:
    """The id of the last message, or batch, of a partition that ends there. Raises Unavailable."""
    if ends.last < max(ends.first, 0):
        return {"ledgerId": -1, "entryId": -1}
    found = await entry_at(broker, which, ledger_of(ends.last), entry_of(ends.last))
    fields = {"ledgerId": found.ledger, "entryId": found.first}
    return fields | ({"batchIndex": found.count - 1, "batchSize": found.count} if found.batched else {})


async def entry_at(broker: Broker, which: Named, ledger: int, entry: int) -> StoredMessage:
    """The message or batch that an entry belongs to. Raises NotFound, Unavailable."""
    ends: Ends = await broker.ask_owner(which.topic, which.partition or 0, None, ReadEnds())
    if entry > ends.last_entries().get(ledger, -1):
        raise NotFound("Message not found: no message has this id any more, or yet")
    payloads = Payloads(broker.ports, broker.directory, which.topic, which.partition or 0)
    try:
        async with asyncio.timeout(CALL_TIMEOUT / 1000):
            run = await payloads.run(ledger, entry)
    except TimeoutError:
        raise Unavailable(f"message {ledger}:{entry} cannot be read now") from None
    row = entry - run.first_entry
    first, end, batched = row, row + 1, False
    if "batch_index" in run.rows.schema.names:
        index = run.rows.column("batch_index").fill_null(-1).to_numpy(zero_copy_only=False)
        if index[row] >= 0:
            batched, first = True, row - int(index[row])
            others = np.flatnonzero(index[row + 1 :] != np.arange(index[row] + 1, index[row] + len(index) - row))
            end = row + 1 + int(others[0]) if len(others) else len(index)
    first = max(first, 0)
    count = end - first
    part = run.received(which.partition or 0, first, count)
    return StoredMessage(ledger, run.first_entry + first, count, batched, part)


def _response(found: StoredMessage) -> web.Response:
    """A message as Pulsar's broker tells it."""
    from sluice.actors.pulsar.codec.delivery_encoder import encode_part  # only who asks for messages pays for protobuf
    from sluice.actors.pulsar.codec.frames import Cutter, body_of
    from sluice.actors.pulsar.codec.message_encoder import Addressee
    from sluice.actors.pulsar.codec.protocol import Metadata, parse

    frame = Cutter().feed(encode_part(found.part, Addressee(0, -1, None)).data)[0]
    body = body_of(frame.rest)
    said = parse(Metadata, body.metadata)
    headers: dict[str, str] = {}
    headers[f"{PREFIX}Message-ID"] = f"{found.ledger}:{found.first}"
    headers[f"{PREFIX}publish-time"] = str(moment(said.publish_time))
    headers[f"{PREFIX}producer-name"] = _line(said.producer_name)
    headers[f"{PREFIX}sequence-id"] = str(said.sequence_id)
    if said.event_time:
        headers[f"{PREFIX}event-time"] = str(moment(said.event_time))
    if said.deliver_at_time:
        headers[f"{PREFIX}deliver-at-time"] = str(moment(said.deliver_at_time))
    if said.HasField("partition_key") and not found.batched:
        headers[f"{PREFIX}partition-key"] = _line(said.partition_key)
        headers[f"{PREFIX}partition-key-b64-encoded"] = str(said.key_is_base64).lower()
    if said.null_value:
        headers[f"{PREFIX}null-value"] = "true"
    if found.batched:
        headers[f"{PREFIX}num-batch-message"] = str(said.num_messages)
        headers[f"{PREFIX}batch-size"] = str(len(body.payload))
    properties = {_line(pair.key): _line(pair.value) for pair in said.properties}
    if properties:
        headers[f"{PREFIX}PROPERTY"] = json.dumps(properties)
    return web.Response(body=bytes(body.payload), headers=headers, content_type="application/octet-stream")


def _line(data: bytes) -> str:
    """Text that may stand in a header."""
    return "".join(letter if letter.isprintable() else "?" for letter in data.decode("utf-8", "replace"))


def _bounded(number: int) -> int:
    if not 1 <= number <= MOST_STEPS:
        raise Invalid(f"messages are counted from 1 to {MOST_STEPS} here, not {number}")
    return number


def _before(at: int, ends: Ends) -> int:
    """The position before one, of the ledger before if it is the first of its own."""
    if entry_of(at) > 0:
        return at - 1
    filled = [
        (ledger, last) for ledger, last in ends.ledgers if ledger < ledger_of(at) and last is not None and last >= 0
    ]
    return position(*filled[-1]) if filled else at


def _after(at: int, ends: Ends) -> int:
    """A position, or the first of the next ledger that holds something if it is behind the end of its own."""
    for ledger, last in ends.ledgers:
        if ledger == ledger_of(at) and (last is None or entry_of(at) <= last):
            return at
        if ledger > ledger_of(at) and (last is None or last >= 0):
            return position(ledger, 0)
    return at
