"""State that clients of two gateways share is decided by the owners: names of producers, what of a batch is done,
where a subscription stands, who is subscribed.
"""

from __future__ import annotations

import pytest

from sluice.actors.pulsar.conversation.gateway.gateway import FORGET_MS
from sluice.storage.format.position import entry_of, ledger_of
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, new_topic_owner, with_gateways
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import Refusal, message_id

ONE, MANY, FAILOVER, KEYED = range(4)
TAKEN = "already connected"


def test_one_name_at_two_gateways_is_busy() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.producer(first, "till", SHARED, user_provided_name=True)
        with pytest.raises(Refusal, match=TAKEN):
            await clients.producer(second, "till", SHARED, user_provided_name=True)
        await clients.send(first, "c0")
        await first.ask("close_producer", producer_id=0)
        await clients.producer(second, "till", SHARED, user_provided_name=True)
        await clients.send(second, "c1")

    with_gateways(scenario)


def test_a_name_is_free_when_its_gateway_is_dead() -> None:
    async def scenario(clients: Clients) -> None:
        first = await clients.join("c0", GATEWAYS[0])
        await clients.producer(first, "till", SHARED, user_provided_name=True)
        clients.broker.world.crash(GATEWAYS[0])
        again = await clients.join("c1", GATEWAYS[1])
        await clients.producer(again, "till", SHARED, user_provided_name=True, epoch=1)
        await clients.send(again, "c1")

    with_gateways(scenario)


@pytest.mark.parametrize("frozen", ["c0", GATEWAYS[0]])
def test_a_name_is_free_when_its_client_does_not_answer(frozen: str) -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.producer(first, "till", SHARED, user_provided_name=True)
        await clients.send(first, "c0")
        clients.broker.world.pause(frozen)
        await clients.producer(second, "till", SHARED, user_provided_name=True, epoch=1)
        clients.broker.world.resume(frozen)
        await clients.send(second, "c1")

    with_gateways(scenario)


def test_a_name_stays_taken_under_a_new_owner() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.producer(first, "till", SHARED, user_provided_name=True)
        new_topic_owner(clients.broker)
        await clients.send(first, "c0")
        with pytest.raises(Refusal, match=TAKEN):
            await clients.producer(second, "till", SHARED, user_provided_name=True)

    with_gateways(scenario)


def test_a_name_that_was_made_up_goes_with_its_client() -> None:
    """A client that comes back before its earlier connection is known to be over is itself."""

    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.producer(first, "made-up", SHARED, user_provided_name=False)
        with pytest.raises(Refusal, match=TAKEN):
            await clients.producer(second, "made-up", SHARED, user_provided_name=False)
        await clients.producer(second, "made-up", SHARED, user_provided_name=False, epoch=1)
        await clients.send(second, "c1")
        third = await clients.join("c2", GATEWAYS[0])
        with pytest.raises(Refusal, match=TAKEN):
            await clients.producer(third, "made-up", SHARED, user_provided_name=False)

    with_gateways(scenario)


@pytest.mark.parametrize("ends", ["gateway", "both"])
def test_the_rest_of_a_batch_keeps_its_ids_elsewhere(ends: str) -> None:
    """Also when gateway and owner of the subscription die at the same time."""

    async def scenario(clients: Clients) -> None:
        world = clients.broker.world
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.consumer(first, FAILOVER, "a")
        await clients.producer(second, "till", SHARED)
        await clients.send_batch(second, "c1", 5)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 5)
        at = clients.came["c0"][0].position
        await first.ask("ack", consumer_id=0, message_id=[message_id(at, [0, 2, 4])])
        world.crash(GATEWAYS[0])
        if ends == "both":
            for name in world.alive("dispatcher-"):
                world.crash(name)
        third = await clients.join("c2", GATEWAYS[1])
        await clients.consumer(third, FAILOVER, "a")
        await clients.broker.until(lambda: clients.numbers("c2") == [0, 2, 4], 60_000)
        assert [message.position - at for message in clients.came["c2"]] == [0, 2, 4]
        assert clients.frames["c2"] == 1

    with_gateways(scenario)


def test_one_who_waits_elsewhere_hears_of_single_ones() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.consumer(first, FAILOVER, "a")
        await clients.consumer(second, FAILOVER, "b")
        await clients.producer(second, "till", SHARED)
        await clients.send_batch(second, "c1", 5)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 5)
        at = clients.came["c0"][0].position
        await first.ask("ack", consumer_id=0, message_id=[message_id(at, [1, 3])])
        await first.ask("close_consumer", consumer_id=0)
        await clients.broker.until(lambda: clients.numbers("c1") == [1, 3])
        assert clients.active["c1"]
        assert clients.frames["c1"] == 1

    with_gateways(scenario)


def test_no_receipt_for_a_batch_that_was_sent_elsewhere() -> None:
    """By the id alone this gateway cannot know how many messages it stood for: all but the first come again."""

    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.consumer(first, KEYED, "a")
        await clients.producer(second, "till", SHARED)
        await clients.send_batch(second, "c1", 5)
        await clients.broker.until(lambda: len(clients.numbers("c0")) == 5)
        at = clients.came["c0"][0].position
        clients.broker.world.crash(GATEWAYS[0])
        again = await clients.join("c2", GATEWAYS[1])
        asked = {"topic": "orders", "subscription": "pulsar", "type": KEYED, "consumer_id": 0, "consumer_name": "a"}
        await again.ask("subscribe", **asked)
        with pytest.raises(Refusal, match="only a part is known"):
            await again.ask("ack", consumer_id=0, message_id=[message_id(at)])
        again.say("flow", consumer_id=0, permits=1_000)
        await clients.broker.until(lambda: clients.numbers("c2") == [1, 2, 3, 4], 60_000)
        await again.ask("ack", consumer_id=0, message_id=[message_id(clients.came["c2"][0].position)])

    with_gateways(scenario)


def test_a_seek_sends_consumers_of_every_gateway_away() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.consumer(first, MANY, "a")
        await clients.consumer(second, MANY, "b")
        await clients.producer(first, "till", SHARED)
        await clients.send_batch(first, "c0", 4)
        await clients.broker.until(lambda: len(clients.numbers("c0") + clients.numbers("c1")) == 4)
        await first.ask("seek", consumer_id=0, message_id=message_id(0))
        await clients.broker.until(lambda: sorted(clients.sent_away) == ["c0", "c1"])
        clients.came.clear()
        await clients.consumer(second, MANY, "b")
        await clients.broker.until(lambda: sorted(clients.numbers("c1")) == [0, 1, 2, 3])

    with_gateways(scenario)


def test_unsubscribing_is_refused_while_others_are_elsewhere() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.consumer(first, KEYED, "a")
        await clients.consumer(second, KEYED, "b")
        with pytest.raises(Refusal, match="other consumers"):
            await first.ask("unsubscribe", consumer_id=0)
        await second.ask("close_consumer", consumer_id=0)
        await clients.producer(second, "till", SHARED)
        await clients.send(second, "c1")
        await clients.broker.until(lambda: clients.numbers("c0") == [0])
        await first.ask("unsubscribe", consumer_id=0)
        with pytest.raises(Refusal):
            await first.ask("consumer_stats", consumer_id=0)

    with_gateways(scenario)


def test_an_exclusive_subscription_has_one_consumer() -> None:
    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.consumer(first, ONE, "a")
        with pytest.raises(Refusal):
            await clients.consumer(second, ONE, "b")

    with_gateways(scenario)


def test_runs_published_and_read_here_are_cached() -> None:
    """And nothing is kept where nobody reads it."""

    async def scenario(clients: Clients) -> None:
        def at_hand(gateway: str, position: int) -> bool:
            actor = clients.broker.world.process(gateway).actor
            assert isinstance(actor, SimGateway)
            return actor.gateway.decoded.find(ledger_of(position), entry_of(position)) is not None

        first, second = [await clients.join(f"c{number}", name) for number, name in enumerate(GATEWAYS)]
        await clients.producer(first, "till", SHARED)
        await clients.consumer(second, MANY, "far")
        await clients.send_batch(first, "c0", 3)
        await clients.broker.until(lambda: len(clients.came.get("c1", [])) == 3)
        assert not at_hand(GATEWAYS[0], clients.came["c1"][0].position)
        await clients.consumer(first, MANY, "near", subscription="another")
        await clients.broker.until(lambda: len(clients.came.get("c0", [])) == 3)
        await clients.send_batch(first, "c0", 2)
        await clients.broker.until(lambda: len(clients.came["c0"]) == 5)
        assert at_hand(GATEWAYS[0], clients.came["c0"][4].position)

    with_gateways(scenario)


def test_runs_that_consumers_read_are_dropped_later() -> None:
    """A gateway keeps the runs that its consumers read for others who want them, for a while."""

    async def scenario(clients: Clients) -> None:
        first, second = [await clients.join(f"c{number}", GATEWAYS[number]) for number in range(2)]
        await clients.producer(first, "till", SHARED)
        await clients.send_batch(first, "c0", 3)
        await clients.consumer(second, 0, "a")
        await clients.broker.until(lambda: len(clients.numbers("c1")) == 3)
        at = clients.came["c1"][0].position
        actor = clients.broker.world.process(GATEWAYS[1]).actor
        assert isinstance(actor, SimGateway)
        decoded = actor.gateway.decoded
        await second._end.other.reader.consumers[0].payloads.run(ledger_of(at), entry_of(at))  # type: ignore[union-attr]
        assert decoded.find(ledger_of(at), entry_of(at)) is not None
        await clients.broker.quiet(3 * FORGET_MS)
        assert decoded.find(ledger_of(at), entry_of(at)) is None

    with_gateways(scenario)
