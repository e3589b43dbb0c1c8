"""Commands that no ordinary client says: who says them is refused, and nobody else has anything of it."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.pulsar.codec.frames import encode_message
from sluice.actors.pulsar.codec.protocol import Metadata, ServerError, Single, command
from sluice.actors.pulsar.conversation.gateway.clients import MOST_SAID
from sluice.storage.format.position import entry_of, ledger_of
from tests.actors.pulsar.made import U32
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import Refusal

ONE, KEY_SHARED = 0, 3
CUMULATIVE = 1


def growing(number: int) -> bytes:
    """Return a SEND of a megabyte or two with very many messages; decoded, each would repeat nearly all of it."""
    count = 40_000
    metadata = Metadata(producer_name=b"p" * 1_500_000, sequence_id=number, publish_time=5, num_messages=count)
    one = Single(payload_size=0).SerializeToString()
    told = command("send", producer_id=0, sequence_id=number, num_messages=count).SerializeToString()
    return encode_message(told, metadata.SerializeToString(), (U32.pack(len(one)) + one) * count)


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "together"])
def test_a_batch_that_would_grow_a_thousandfold_is_refused(count: int) -> None:
    async def scenario(clients: Clients) -> None:
        wire, other = [await clients.join(f"c{number}", GATEWAYS[0]) for number in range(2)]
        await clients.producer(wire, "till", SHARED)
        await clients.producer(other, "other", SHARED)
        wire.write(b"".join(map(growing, range(count))))
        await clients.broker.until(lambda: len(clients.answered["c0"]) == count)
        assert clients.answered["c0"] == [(number, ServerError.CHECKSUM) for number in range(count)]
        for one, name in ((wire, "c0"), (other, "c1")):
            await clients.send(one, name)

    with_gateways(scenario)


def test_a_seek_to_nowhere_leaves_everything_as_it_is() -> None:
    """The seek names neither a message nor a time; read by its defaults it would mean the beginning."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "till", SHARED)
        await clients.consumer(wire, KEY_SHARED, "c0")
        for number in range(3):
            await clients.send(wire, "c0")
            await clients.broker.until(lambda number=number: len(clients.numbers("c0")) > number)  # type: ignore[misc]
        with pytest.raises(Refusal, match="a seek names") as refused:
            await wire.ask("seek", consumer_id=0)
        assert refused.value.code == ServerError.METADATA
        await clients.broker.quiet(1_000)
        assert (clients.sent_away, len(clients.numbers("c0"))) == ([], 3)

    with_gateways(scenario)


def test_cumulative_ack_is_refused_when_shared() -> None:
    """Earlier messages at another consumer are not done: they come when that consumer leaves."""

    async def scenario(clients: Clients) -> None:
        broker = clients.broker
        first, second = [await clients.join(f"c{number}", GATEWAYS[0]) for number in range(2)]
        for wire, name in ((first, "c0"), (second, "c1")):
            await clients.consumer(wire, KEY_SHARED, name)
        keys = [f"k{number}" for number in range(20)]
        await broker.publish(*keys)
        await broker.until(lambda: len(clients.numbers("c0")) + len(clients.numbers("c1")) == len(keys))
        assert clients.numbers("c1")
        last = max(clients.ids["c0"] + clients.ids["c1"])
        ids = [{"ledger": ledger_of(last), "entry": entry_of(last)}]
        with pytest.raises(Refusal, match="no cumulative") as refused:
            await first.ask("ack", consumer_id=0, ack_type=CUMULATIVE, message_id=ids)
        assert refused.value.code == ServerError.NOT_ALLOWED
        await second.ask("close_consumer", consumer_id=0)
        held = sorted(clients.ids["c1"])
        await broker.until(lambda: sorted(set(clients.ids["c0"]) & set(held)) == held)

    with_gateways(scenario)


SAYING_MUCH: list[dict[str, Any]] = [
    {"metadata": [{"key": b"about", "value": b"x" * MOST_SAID}]},
    {"metadata": [{"key": b"%d" % number, "value": b"x"} for number in range(MOST_SAID)]},
]


@pytest.mark.parametrize("much", SAYING_MUCH, ids=["long", "many"])
def test_a_clients_names_and_properties_are_bounded(much: dict[str, Any]) -> None:
    """Names and properties are kept for each producer and consumer, and shown in statistics."""

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        asked = {"topic": "orders", "subscription": "pulsar", "consumer_id": 0, **much}
        for refused in (
            clients.producer(wire, "till", SHARED, **much),
            clients.producer(wire, "t" * (MOST_SAID + 1), SHARED),
            wire.ask("subscribe", **asked),
        ):
            with pytest.raises(Refusal, match="name and metadata") as error:
                await refused
            assert error.value.code == ServerError.METADATA
        gateway = clients.broker.world.process(GATEWAYS[0]).actor
        assert isinstance(gateway, SimGateway)
        assert not gateway.gateway.introductions
        fits = {"metadata": [{"key": b"about", "value": b"x" * (MOST_SAID - 20)}]}
        await clients.producer(wire, "till", SHARED, **fits)
        await clients.consumer(wire, ONE, "c0", **fits)

    with_gateways(scenario)
