"""When the erasing of a key is done, no process sends from its memory what the key's messages were."""

from __future__ import annotations

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import Erase, EraseStatus
from sluice.actors.ports import Unknown
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.scenarios.key_shared.broker import TOPIC, Broker, Client, play
from tests.sim.worlds.wire import ERASED, batch_frame

KEYED = 3


class Late(Client):
    """A consumer that tells of the payloads alone."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "late", "late", 1000, acking=False, taking=True)
        self.payloads: list[bytes] = []

    def _received(self, part: Received) -> None:
        self.payloads += part.rows.column("payload").to_pylist()


async def erased(broker: Broker, key: bytes) -> None:
    """The messages of a key are erased, and that is told."""

    async def ask(request: Erase) -> EraseStatus:
        reply = await broker.ports.net.call(await broker.directory.topic(TOPIC, 0), request, 10_000)
        assert not isinstance(reply, Unknown)
        return reply

    left = await ask(Erase(key=key))
    while left.keys:
        await broker.quiet(1_000)
        left = await ask(Erase())
    assert left.done_messages


def test_a_dispatcher_sends_nothing_of_an_erased_key() -> None:
    """Not to the consumer that gets what another one held at the time."""

    async def scenario(broker: Broker) -> None:
        first = await broker.join("first", acking=False)
        await broker.publish("k", "k", "k")
        await broker.until(lambda: len(first.got) == 3)
        await erased(broker, b"k")
        await first.close()
        late = Late(broker)
        await late.open(())
        await broker.until(lambda: len(late.payloads) == 3)
        assert late.payloads == [b"", b"", b""]

    play(scenario)


def test_a_gateway_sends_nothing_of_an_erased_key() -> None:
    """Not to readers that come later: it has the frames of its own producers, and the runs that others have read."""

    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        await clients.producer(first, "till", SHARED)
        await clients.consumer(first, KEYED, "near")
        now, numbers = clients.broker.ports.clock.now(), range(0, 20, 5)
        batches = [[(b"k", number + more) for more in range(5)] for number in numbers]
        frames = [batch_frame(0, rows[0][1], rows, now=now, due=0, by_key=True) for rows in batches]
        first.write(b"".join(frames))  # what is read together is kept
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 20)
        await erased(clients.broker, b"k")
        late = await clients.join("c1", GATEWAYS[0])
        await clients.consumer(late, KEYED, "late", subscription="another")
        await clients.broker.until(lambda: len(clients.numbers("c1")) == 20)
        assert clients.numbers("c1") == [ERASED] * 20

    with_gateways(scenario)
