"""Two requests of clients that are carried out at once: neither undoes what the other relies on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from sluice.actors.messages import Seek
from sluice.actors.pulsar.codec.protocol import Schema, ServerError
from sluice.actors.pulsar.conversation.commands import CommandHandlers
from sluice.actors.pulsar.conversation.consuming.wire_consumer import WireConsumer
from sluice.actors.pulsar.conversation.producing.wire_producer import WireProducer
from sluice.actors.pulsar.topic_names import find_partition
from tests.actors.pulsar.two_gateways import EXCLUSIVE, GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.wire import Refusal

SHARED_SUBSCRIPTION = 1


class Seeks:
    """How many seeks are under way at the owner, and how many consumers were opened meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.done = self.opened_meanwhile = 0
        self.clients: Clients | None = None
        ask_owner, open_consumer = CommandHandlers._ask_owner, WireConsumer.open

        async def slow(answers: CommandHandlers, tp: Any, subscription: str | None, request: Any) -> Any:
            if not isinstance(request, Seek):
                return await ask_owner(answers, tp, subscription, request)
            self.now += 1
            self.most = max(self.most, self.now)
            assert self.clients is not None
            await self.clients.broker.quiet(200 if self.most == 1 else 2_000)
            try:
                return await ask_owner(answers, tp, subscription, request)
            finally:
                self.now -= 1
                self.done += 1

        async def opened(consumer: WireConsumer) -> None:
            self.opened_meanwhile += self.now
            await open_consumer(consumer)

        monkeypatch.setattr(CommandHandlers, "_ask_owner", slow)
        monkeypatch.setattr(WireConsumer, "open", opened)


@pytest.mark.parametrize(("name", "count"), [("pulsar", 2), ("two words/2", 2), ("pulsar", 3)])
def test_no_client_subscribes_while_seeks_follow(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> None:
    seeks = Seeks(monkeypatch)

    async def scenario(clients: Clients) -> None:
        seeks.clients = clients
        *wires, comes = [await clients.join(f"c{number}", GATEWAYS[0]) for number in range(count + 1)]
        for number, wire in enumerate(wires):
            await clients.consumer(wire, SHARED_SUBSCRIPTION, f"c{number}", subscription=name)
        moved = [asyncio.ensure_future(wire.ask("seek", consumer_id=0, publish_time=0)) for wire in wires]
        await clients.broker.until(lambda: seeks.now > 0)
        await _subscribed(clients, comes, name)
        await asyncio.gather(*moved)
        assert (seeks.done, seeks.most, seeks.opened_meanwhile) == (count, 1, 0)

    with_gateways(scenario)


async def _subscribed(clients: Clients, wire: Any, name: str) -> None:
    """As a client does it: who comes between the two seeks is sent away by the second, and asks again."""
    await _accepted(clients, lambda: clients.consumer(wire, SHARED_SUBSCRIPTION, "late", subscription=name))


async def _accepted(clients: Clients, ask: Callable[[], Awaitable[Any]]) -> None:
    while True:
        try:
            await ask()
        except Refusal as refusal:
            if refusal.code != ServerError.SERVICE_NOT_READY:
                raise
            await clients.broker.quiet(100)
        else:
            return


def _one_is_refused(answers: Iterable[Any]) -> None:
    refusals = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(refusal) for refusal in refusals] == [Refusal]
    assert [refusal.code for refusal in refusals if isinstance(refusal, Refusal)] == [ServerError.SERVICE_NOT_READY]


@pytest.mark.parametrize("mode", [SHARED, EXCLUSIVE])
def test_a_producer_that_opens_keeps_its_id(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both requests look for the topic before either of them has a producer."""

    async def scenario(clients: Clients) -> None:
        async def slow(*args: Any, **more: Any) -> Any:
            await clients.broker.quiet(100)
            return await find_partition(*args, **more)

        monkeypatch.setattr("sluice.actors.pulsar.conversation.commands.find_partition", slow)
        wire = await clients.join("c0", GATEWAYS[0])
        asked = clients.producer(wire, "a", SHARED), clients.producer(wire, "b", mode)
        _one_is_refused(await asyncio.gather(*asked, return_exceptions=True))
        await clients.send(wire, "c0")

    with_gateways(scenario)


def test_a_consumer_that_opens_keeps_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both requests wait for a seek."""
    seeks = Seeks(monkeypatch)

    async def scenario(clients: Clients) -> None:
        seeks.clients = clients
        first, wire = [await clients.join(f"c{number}", GATEWAYS[0]) for number in range(2)]
        await clients.consumer(first, SHARED_SUBSCRIPTION, "c0")
        moved = asyncio.ensure_future(first.ask("seek", consumer_id=0, publish_time=0))
        await clients.broker.until(lambda: seeks.now > 0)
        asked = [clients.consumer(wire, SHARED_SUBSCRIPTION, name) for name in ("a", "b")]
        _one_is_refused(await asyncio.gather(*asked, return_exceptions=True))
        await moved

    with_gateways(scenario)


@pytest.mark.parametrize("ms", [1, 5, 20, 100, 200])
def test_a_consumer_that_is_closed_before_it_is_open_is_gone(ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gave up waiting at some moment; messages that the consumer would hold come to the others."""

    async def scenario(clients: Clients) -> None:
        _slow_places(clients, monkeypatch)
        wire, other = [await clients.join(f"c{number}", GATEWAYS[0]) for number in range(2)]
        asked = asyncio.ensure_future(clients.consumer(wire, SHARED_SUBSCRIPTION, "c0"))
        await clients.broker.quiet(ms)
        await wire.ask("close_consumer", consumer_id=0)
        await asyncio.gather(asked, return_exceptions=True)
        await clients.broker.quiet(1_000)
        assert (await clients.broker.stats(subscription="pulsar"))["consumers"] == []
        await clients.consumer(wire, SHARED_SUBSCRIPTION, "c0")  # the id is free again
        await clients.consumer(other, SHARED_SUBSCRIPTION, "c1")

    with_gateways(scenario)


@pytest.mark.parametrize("ms", [1, 5, 20, 100, 200])
def test_a_producer_that_is_closed_before_it_is_open_is_gone(ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that wants the topic to itself does not wait for the closed one."""

    async def scenario(clients: Clients) -> None:
        _slow_places(clients, monkeypatch)
        wire, other = [await clients.join(f"c{number}", GATEWAYS[0]) for number in range(2)]
        asked = asyncio.ensure_future(clients.producer(wire, "a", EXCLUSIVE))
        await clients.broker.quiet(ms)
        await wire.ask("close_producer", producer_id=0)
        await asyncio.gather(asked, return_exceptions=True)
        await clients.broker.quiet(1_000)
        await clients.producer(other, "b", EXCLUSIVE)

    with_gateways(scenario)


def test_subscribe_behind_a_close_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer that is being closed is not the one that is asked for: seed 64000227 of the world gateway."""

    async def scenario(clients: Clients) -> None:
        _slow(clients, monkeypatch, WireConsumer, "looked_up")
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, SHARED_SUBSCRIPTION, "c0")
        wire.forget("close_consumer", consumer_id=0)
        await _subscribed(clients, wire, "pulsar")
        await clients.broker.quiet(1_000)
        await clients.producer(wire, "a", SHARED)
        await clients.send(wire, "c0")
        await clients.broker.until(lambda: "c0" in clients.came)

    with_gateways(scenario)


def test_producer_behind_a_close_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier sends delay the close."""

    async def scenario(clients: Clients) -> None:
        _slow(clients, monkeypatch, WireProducer, "flush")
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.producer(wire, "a", SHARED)
        wire.forget("close_producer", producer_id=0)
        await _accepted(clients, lambda: clients.producer(wire, "a", SHARED))
        await clients.broker.quiet(1_000)
        await clients.send(wire, "c0")

    with_gateways(scenario)


def _slow(clients: Clients, monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> None:
    method = getattr(of, name)

    async def slow(one: Any) -> None:
        await clients.broker.quiet(50)
        await method(one)

    monkeypatch.setattr(of, name, slow)


def _slow_places(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*args: Any, **more: Any) -> Any:
        await clients.broker.quiet(50)
        return await find_partition(*args, **more)

    monkeypatch.setattr("sluice.actors.pulsar.conversation.commands.find_partition", slow)


@pytest.mark.parametrize(("name", "brings", "most"), [("producer", True, 1), ("producer", False, 20)])
def test_producers_bring_schemas_then_one_opens_at_a_time(
    monkeypatch: pytest.MonkeyPatch, name: str, brings: bool, most: int
) -> None:
    """For each of them all earlier schemas of the topic may be read and compared."""
    seen = [0, 0]

    async def counted(answers: CommandHandlers, asked: Any) -> None:
        seen[0] += 1
        seen[1] = max(seen)
        await answers._gateway.ports.clock.sleep(10)
        seen[0] -= 1
        answers._session.say("success", request_id=asked.request_id)

    monkeypatch.setattr(CommandHandlers, name, counted)

    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c", GATEWAYS[0])
        schema = {"schema": Schema(name="s", type=1, data=b"x")} if brings else {}
        asked = [wire.ask(name, topic="pulsar", producer_id=number, **schema) for number in range(30)]
        await asyncio.gather(*asked)
        assert seen == [0, most]

    with_gateways(scenario)
