"""Producers that want a partition for themselves: Pulsar's access modes, among the clients of one gateway.

Sluice's own producers, and those of other gateways, are not asked. What this keeps apart is clients that agreed on it.
"""

from __future__ import annotations

from typing import Any

from actors.pulsar.fields import ServerError
from actors.pulsar.gateway import Gateway, ProducerHere
from actors.pulsar.refusals import Refused
from actors.pulsar.session import Session
from actors.pulsar.topics import Place

SHARED, EXCLUSIVE, WAIT_FOR_EXCLUSIVE, EXCLUSIVE_WITH_FENCING = range(4)


async def admit(session: Session, place: Place, asked: Any, name: str) -> None:
    """Let a producer in as it wants to be, which may take until others have left. Raises Refused."""
    gateway, key = session.gateway, (place.topic, place.partition)
    others = gateway.producers.get(key, [])
    if asked.access_mode == SHARED:
        if any(other.exclusive for other in others):
            raise Refused(ServerError.PRODUCER_BUSY, "Topic has an existing exclusive producer")
        return
    epoch = gateway.topic_epochs.get(key, -1)
    if asked.HasField("topic_epoch") and asked.topic_epoch < epoch:
        raise Refused(ServerError.PRODUCER_FENCED, f"Topic epoch {asked.topic_epoch} is over; it is {epoch}")
    if asked.access_mode == EXCLUSIVE and (others or gateway.queues.get(key)):
        raise Refused(ServerError.PRODUCER_FENCED, "Topic has existing producers")
    if asked.access_mode == EXCLUSIVE_WITH_FENCING:
        for other in list(others):
            other.give_way()
    if asked.access_mode == WAIT_FOR_EXCLUSIVE:
        await _wait(session, key, asked, name)
    told = asked.topic_epoch if asked.HasField("topic_epoch") else epoch + 1
    gateway.topic_epochs[key] = max(told, epoch)


async def _wait(session: Session, key: tuple[str, int], asked: Any, name: str) -> None:
    """Stand in line; the client is told that it does."""
    gateway, me = session.gateway, object()
    line = gateway.queues.setdefault(key, [])
    line.append(me)
    told = False
    try:
        while gateway.producers.get(key) or line[0] is not me:
            if not told:
                told = True
                session.say("producer_success", request_id=asked.request_id, producer_name=name, producer_ready=False)
            gateway.left.clear()
            await gateway.left.wait(gateway.ports)
            if session.closed:
                raise Refused(ServerError.SERVICE_NOT_READY, "the connection has ended")
    finally:
        line.remove(me)
        gateway.left.set()
        if not line:
            gateway.queues.pop(key, None)


def epoch_of(gateway: Gateway, producer: ProducerHere) -> dict[str, int]:
    """The topic's epoch as PRODUCER_SUCCESS tells it; nothing for a producer that shares."""
    if not producer.exclusive:
        return {}
    return {"topic_epoch": gateway.topic_epochs.get((producer.place.topic, producer.place.partition), 0)}
