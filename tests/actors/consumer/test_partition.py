"""A consumer that comes back to a place that is taken, and one that goes while it acknowledges."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.actors.messages import NO_POSITIONS, Attach, Attached, Delivery, Detach
from sluice.actors.ports import Address
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid, Overloaded, SluiceError, Unavailable
from tests.actors.delayed.desk import Desk, serve
from tests.scenarios.key_shared.broker import KEYS, Broker, Client, play

LEASE_MS = 3_000


def test_consumer_back_at_an_exclusive_place_waits_for_it() -> None:
    async def scenario(broker: Broker) -> None:
        frozen = await broker.join("frozen")
        with pytest.raises(Conflict, match="exclusive"):
            await broker.join("refused")
        broker.world.pause("frozen")
        await broker.quiet(2 * LEASE_MS)
        other = await broker.join("other")
        broker.world.resume("frozen")
        await broker.quiet(2 * LEASE_MS)
        assert "lost" in [event.kind for event in frozen.events]
        await broker.publish("0", "1")
        await broker.until(lambda: len(other.got) == 2)
        await other.close()
        await broker.publish("2", "3")
        await broker.until(lambda: len(frozen.got) == 2)
        assert frozen.came() == ["2", "3"]
        assert frozen.parts[0].failed is None

    play(scenario, type="exclusive", lease_ms=LEASE_MS)


def test_closing_while_acknowledging_loses_no_acknowledgement() -> None:
    """At whatever moment it closes, also while an acknowledgement is under way and others wait behind it."""

    async def scenario(desk: Desk) -> None:
        desk.world.network.faults.delay_ms = (5, 15)
        for moment in range(40):
            leaver = await desk.consume(f"leaver-{moment}")
            for number in range(4):
                desk.world.background(desk.publish(str(number)), "publish")
                await desk.quiet(8)
            await desk.quiet(3 * moment)
            await desk.world.within(2_000, leaver.close(), "it closes")
            assert leaver.parts[0].acknowledgements.heard == leaver.parts[0].acknowledgements.said
        await desk.consume("last")
        await desk.settled()
        assert len(set(desk.names())) == 160
        assert await desk.count("msgBacklog") == 0

    serve(scenario)


@pytest.mark.parametrize("lost_by", ["lease", "owner"])
def test_closing_after_the_session_does_not_wait(lost_by: str) -> None:
    async def scenario(desk: Desk) -> None:
        leaver = await desk.consume("leaver", acking=False)
        await desk.publish("0", "1", "2")
        await desk.until(lambda: len(leaver.got) == 3)
        if lost_by == "lease":
            desk.world.pause("leaver")
            await desk.quiet(2 * LEASE_MS)
            desk.world.resume("leaver")
        else:
            desk.world.crash(next(name for name in desk.world.alive("dispatcher-")))
        Client.ack(leaver)
        await desk.world.within(4 * LEASE_MS, leaver.close(), "it closes")
        other = await desk.consume("other")
        await desk.until(lambda: len(other.got) == 3, 4 * LEASE_MS)

    serve(scenario, lease_ms=LEASE_MS)


def test_closing_twice_leaves_once_and_does_not_wait() -> None:
    """The owner knows the session no more, and is gone before it hears again what was acknowledged."""

    async def scenario(desk: Desk) -> None:
        events: list[str] = []
        desk.world.ears.append(lambda process, event, fields: events.append(event))
        leaver = await desk.consume("leaver", acking=False)
        await desk.publish("0", "1", "2")
        await desk.until(lambda: len(leaver.got) == 3)
        part = leaver.parts[0]
        desk.world.network.faults.delay_ms = (100, 100)
        desk.world.network.refusals["Acknowledge"] = (1.0, (Fenced("session is over"),))
        Client.ack(leaver)
        desk.world.background(part.close(), "it closes")
        await desk.until(lambda: "close_failed" in events, 1_000)
        desk.world.network.refusals.clear()
        desk.world.crash(next(name for name in desk.world.alive("dispatcher-")))
        waiting = asyncio.ensure_future(desk.world.within(4 * LEASE_MS, part.wait_confirmed(), "it is told"))
        await desk.world.within(4 * LEASE_MS, part.close(), "it closes again")
        with pytest.raises(Fenced, match="before its acknowledgements were confirmed"):
            await waiting

    serve(scenario, lease_ms=LEASE_MS)


def test_repeated_delivery_is_as_old_as_its_first_question() -> None:
    """Another consumer may have been active since, and done with it."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.quiet(100)  # a poll waits
        broker.world.network.refusals["Poll"] = (1.0, (Unavailable("not now"),))
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        await broker.quiet(500)
        asked_again = client.ports.clock.monotonic()
        broker.world.network.refusals.clear()
        await broker.publish("b")
        await broker.until(lambda: len(client.got) == 2)
        assert client.parts[0].sure_at < asked_again

    play(scenario)


def test_a_late_copy_of_an_attach_after_a_detach_makes_nobody() -> None:
    """The ghost would own hashes for a lease, and messages of those hashes would wait as long."""

    async def scenario(broker: Broker) -> None:
        stays = await broker.join("stays")
        address = await broker.address()
        request = Attach(consumer="ghost", incarnation="ghost.0")
        attached = await broker.ports.net.call(address, request, 5_000)
        assert isinstance(attached, Attached)
        assert attached.session
        await broker.ports.net.call(address, Detach(session=attached.session), 5_000)
        again = await broker.ports.net.call(address, request, 5_000)
        assert isinstance(again, Attached)
        assert not again.session
        await broker.publish(*KEYS[:50])
        await broker.until(lambda: len(stays.got) == 50, 500)

    play(scenario)


def test_resumed_consumer_is_sent_messages_at_once() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        part = client.parts[0]
        part.pause()
        await broker.quiet(1_500)
        await broker.publish(*KEYS[:20])
        await broker.quiet(1_500)
        assert client.got == []
        part.resume()
        await broker.until(lambda: len(client.got) == 20, 200)

    play(scenario)


def test_unfetched_trimmed_and_cleared_messages_are_released() -> None:
    """The messages were delivered, and no payload comes any more: the consumer reports them as done."""

    async def scenario(desk: Desk) -> None:
        client = await desk.consume("c", acking=False)
        desk.world.network.refusals["ReadPayload"] = (1.0, (Unavailable("no payload now"),))
        for _ in range(4):
            await desk.publish(*KEYS[:5], delay=20_000)
        await desk.quiet(2_000)
        desk.world.crash(next(name for name in desk.world.alive("dispatcher-")))  # the next one reads none of them
        await desk.quiet(20_000)
        await desk.until(lambda: desk.world.network.counters.get("refused ReadPayload", 0) > 2)
        assert (await desk.consumer_stats())["c"]["unackedMessages"] == 20
        await desk.admin("clear_backlog")
        await desk.quiet(5_000)
        desk.world.network.refusals.clear()
        await desk.quiet(3_000)
        assert len(client.got) < 20, "it was trimmed"
        assert (await desk.consumer_stats())["c"]["unackedMessages"] == len(client.got)
        assert (await desk.consumer_stats())["c"]["availablePermits"] == 1000

    serve(scenario, topic={"roll_entries": 4}, type="key_shared", delayed_delivery_min_index_count_per_bucket=5)


def test_closed_consumer_asks_for_no_payload_any_more() -> None:
    """However long nobody can read it: clients that come again and again would add to what is asked for."""

    async def scenario(desk: Desk) -> None:
        client = await desk.consume("c", acking=False)
        network = desk.world.network
        network.refusals["ReadPayload"] = (1.0, (Unavailable("no payload now"),))
        await desk.publish(*KEYS[:20], delay=20_000)
        await desk.until(lambda: network.counters.get("refused ReadPayload", 0) > 2, 60_000)
        await client.parts[0].close()
        await desk.quiet(100)
        asked = network.counters["refused ReadPayload"]
        await desk.quiet(20_000)
        assert network.counters["refused ReadPayload"] == asked
        network.refusals.clear()

    serve(scenario, topic={"roll_entries": 4}, type="key_shared", delayed_delivery_min_index_count_per_bucket=5)


def test_empty_acknowledgement_keeps_no_caller_waiting() -> None:
    """A Pulsar client does so with an id of a batch in which it reports every message as still open."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        client.parts[0].acknowledge_positions(NO_POSITIONS)
        await broker.world.within(10_000, client.parts[0].wait_confirmed(), "it is confirmed")
        client.ack()
        await broker.world.within(10_000, client.parts[0].wait_confirmed(), "it is confirmed")
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario)


@pytest.mark.parametrize("error", [Unavailable("x"), Conflict("x"), Overloaded("x"), Corrupt("x")])
def test_acknowledgements_of_a_refused_poll_are_sent_again(error: SluiceError) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        acknowledgements = client.parts[0].acknowledgements
        broker.world.network.refusals["Poll"] = 1.0, (error,)
        await broker.publish("c")  # which ends the poll that waits
        await broker.until(lambda: len(client.got) == 3)
        client.ack()
        await broker.until(lambda: bool(acknowledgements.unconfirmed))
        await broker.quiet(100)
        broker.world.network.refusals.clear()
        await broker.world.within(10_000, client.parts[0].wait_confirmed(), "it is confirmed")
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario)


@pytest.mark.parametrize("kind", ["Poll", "Acknowledge"])
def test_refused_report_starts_a_new_session(kind: str) -> None:
    """Any part of the report may be wrong, so the consumer drops all it holds, and all comes again in another
    session.
    """

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        session = client.parts[0].session
        broker.world.network.refusals[kind] = 1.0, (Invalid("it cannot be read"),)
        if kind == "Acknowledge":
            client.ack()
        else:
            await broker.publish("c")  # which ends the poll that waits
        await broker.until(lambda: "lost" in [event.kind for event in client.events])
        broker.world.network.refusals.clear()
        before = len(client.got)
        await broker.until(lambda: sorted(client.came()[before:]) == sorted(client.came()[:before]))
        assert client.parts[0].session != session
        client.ack()
        await broker.world.within(10_000, client.parts[0].settle(), "it is confirmed")
        assert (await broker.stats())["msgBacklog"] == 0

    play(scenario, lease_ms=LEASE_MS)


def test_messages_of_a_refused_answer_come_again() -> None:
    """The answer was made, and could not be written: one of its payloads could not be read."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        net: Any = client.ports.net
        call = net.call
        refused: list[Delivery] = []

        async def refuse(to: Address, request: Any, timeout: int) -> Any:
            reply = await call(to, request, timeout)
            if isinstance(reply, Delivery) and reply.parts and not refused:
                refused.append(reply)
                raise Unavailable("a shared payload cannot be read")
            return reply

        net.call = refuse
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        assert refused

    play(scenario)
