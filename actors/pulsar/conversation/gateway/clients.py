"""The producers and consumers that are connected to a gateway, for people to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.actors.ownership.names import unquoted
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.refusals import CommandRefused

MOST_SAID = 4_096
"""Bytes that a client may say of one producer or consumer, its name among them: it is kept as long as that is there."""
MOST_VERSION = 200
"""Letters of a client's version that are kept."""


@dataclass(frozen=True, slots=True)
class ClientIntroduction:
    """A client's description of itself and of one producer or consumer. since: milliseconds since 1970."""

    number: int
    address: str
    version: str
    since: int
    metadata: dict[str, str]
    access_mode: str = ""


class Connected(Protocol):
    """The clients of a gateway: producers by topic and partition, consumers by topic and subscription."""

    producers: dict[tuple[str, int], list[Any]]
    consumers: dict[tuple[str, str], list[Any]]
    introductions: dict[object, ClientIntroduction]


def check_introduction(asked: Any) -> None:
    """Raise CommandRefused if a PRODUCER or SUBSCRIBE says too much of its client."""
    named = getattr(asked, "producer_name", "") + getattr(asked, "consumer_name", "")
    said = len(named.encode()) + sum(len(pair.key) + len(pair.value) for pair in asked.metadata)
    if said > MOST_SAID:
        text = f"name and metadata of a producer or consumer have at most {MOST_SAID} bytes, not {said}"
        raise CommandRefused(ServerError.METADATA, text)


def metadata_of(pairs: Iterable[Any]) -> dict[str, str]:
    """Properties as a client gave them."""
    return {pair.key.decode("utf-8", "replace"): pair.value.decode("utf-8", "replace") for pair in pairs}


def clients_here(gateway: Connected, topic: str, partition: int | None) -> dict[str, list[dict[str, Any]]]:
    """Return rows of a partition, or of all; each says its own."""
    if partition is None:
        producing = [(at, one) for (known, at), here in gateway.producers.items() if known == topic for one in here]
    else:
        producing = [(partition, one) for one in gateway.producers.get((topic, partition), ())]
    producers = [
        {"partition": at, "producerName": one.name, "ready": one.ready, **_introduction(gateway, one, "producerId")}
        for at, one in producing
    ]
    consumers = [
        {
            "partition": one.tp.partition,
            "consumerName": unquoted(one.asked.name),
            "subscription": unquoted(one.asked.subscription),
            "reader": one.is_reader,
            **one.read_so_far(),
            **_introduction(gateway, one, "consumerId"),
        }
        for (known, _), here in gateway.consumers.items()
        if known == topic
        for one in here
        if partition in (None, one.tp.partition)
    ]
    return {"producers": producers, "consumers": consumers}


def send_away(gateway: Connected, topic: str, partition: int | None) -> None:
    for (known, at), producers in list(gateway.producers.items()):
        if known == topic and partition in (None, at):
            for producer in list(producers):
                producer.give_way()
    for (known, _), consumers in list(gateway.consumers.items()):
        for consumer in list(consumers):
            if known == topic and partition in (None, consumer.tp.partition):
                consumer.come_back()


def _introduction(gateway: Connected, one: object, number: str) -> dict[str, Any]:
    of = gateway.introductions.get(one)
    if of is None:
        return {}
    return {
        number: of.number,
        "address": f"/{of.address}",
        "clientVersion": of.version,
        "connectedSince": of.since,
        "metadata": of.metadata,
        "accessMode": of.access_mode,
    }
