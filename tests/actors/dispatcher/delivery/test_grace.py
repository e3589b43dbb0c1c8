"""Consumers that come back find their places, and places are handed over to their successors (GR-1 to GR-8)."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.messages import Acknowledge, Attach, Detach, Explain, Poll, SubscriptionSettings, Text, shown
from sluice.actors.messages.settings import check_subscription
from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Request
from sluice.storage.errors import Conflict, Invalid
from tests.scenarios.key_shared.broker import KEYS, Broker, Client, play

GRACE_MS, LEASE_MS = 60_000, 3_000
POLICIES = ("draining_hashes", "last_sent_position", "read_position")
SELECTORS = ("consistent_hashing", "auto_split")
KEEPS: dict[str, Any] = {"grace_ms": GRACE_MS, "lease_ms": LEASE_MS}


async def owners(broker: Broker) -> dict[str, list[list[int]]]:
    """Return the ranges of each attached consumer, by name."""
    return {name: row["keyHashRangeArrays"] for name, row in (await broker.consumer_stats()).items()}


async def three(broker: Broker, **how: Any) -> list[Client]:
    """Join consumers a, b and c."""
    return [await broker.join(name, **how) for name in "abc"]


async def attached(broker: Broker, *names: str) -> dict[str, list[list[int]]]:
    """Wait until exactly these consumers are attached and no other is awaited; return their ranges."""
    for _ in range(600):
        stats = await broker.stats()
        found = {row["consumerName"]: row["keyHashRangeArrays"] for row in stats["consumers"]}
        if sorted(found) == sorted(names) and not stats["awaitedConsumers"]:
            return found
        await broker.quiet(100)
    raise AssertionError(f"{sorted(found)} are attached, not {names}")


def crash_dispatcher(broker: Broker) -> None:
    """Kill the subscription's owner."""
    broker.world.crash(next(iter(broker.world.alive("dispatcher-"))))


async def back(broker: Broker, name: str, incarnation: str, **how: Any) -> Client:
    """Start a process that joins with a consumer name used before."""
    return await broker.join(incarnation, called=name, **how)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("end", ["close", "crash"])
def test_returning_consumer_finds_its_hashes(policy: str, selector: str, end: str) -> None:
    async def scenario(broker: Broker) -> None:
        _, b, _ = await three(broker)
        before, moved = await owners(broker), (await broker.stats())["hashesMovedTotal"]
        await (b.close() if end == "close" else crashed(broker, b))
        await broker.publish(*KEYS)
        await broker.quiet(GRACE_MS // 4)
        stats = await broker.stats()
        mine = sum(high - low + 1 for low, high in before["b"])
        assert (stats["keptHashes"], stats["keptConsumers"][0]["consumerName"]) == (mine, "b")
        assert await owners(broker) == {name: before[name] for name in "ac"}
        again = await back(broker, "b", "b-2")
        await broker.until(lambda: broker.seen() == len(KEYS))
        assert again.came()
        assert await owners(broker) == before
        stats = await broker.stats()
        assert (stats["hashesMovedTotal"], stats["placesReturnedTotal"], stats["keptHashes"]) == (moved, 1, 0)

    async def crashed(broker: Broker, client: Client) -> None:
        client.crash()
        await broker.quiet(2 * LEASE_MS)

    play(scenario, policy=policy, selector=selector, **KEEPS)


def test_a_newcomer_of_its_name_asks_whether_it_lives() -> None:
    """The crashed consumer's lease still runs. It keeps its messages until the lease ends, but not its hashes."""

    async def scenario(broker: Broker) -> None:
        a, b, c = await three(broker)
        before = await owners(broker)
        b.crash()
        again = await back(broker, "b", "b-2")
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))
        assert (await owners(broker))["b"] == before["b"]
        assert len(a.got) + len(again.got) + len(c.got) == len(KEYS)

    play(scenario, **(KEEPS | {"lease_ms": 30_000}))


@pytest.mark.parametrize("late", ["acknowledgement", "poll"])
def test_a_late_request_is_no_sign_of_life(late: str) -> None:
    """The consumer is dead. Its last request arrives while the owner asks for it because of its successor."""

    async def scenario(broker: Broker) -> None:
        await three(broker)
        before = await owners(broker)
        dead, address = broker.clients["b"], await broker.address()
        session, turn = dead.parts[0].session, dead.parts[0]._turn
        dead.crash()
        net = broker.world.client("network").net
        said: Request[Any] = Poll(session=session, turn=turn, granted=0)
        if late == "acknowledgement":
            said = Acknowledge(session=session, ack_turn=9)

        async def arrive() -> None:
            for _ in range(4):
                await broker.quiet(500)
                await net.call(address, said, 4_000)

        broker.world.background(arrive(), "late requests")
        await back(broker, "b", "b-2")
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))
        assert await owners(broker) == before
        await broker.quiet(60_000)
        assert (await broker.stats())["keptHashes"] == 0

    play(scenario, **(KEEPS | {"lease_ms": 30_000}))


def test_two_who_live_under_one_name_have_two_places() -> None:
    async def scenario(broker: Broker) -> None:
        await three(broker)
        other = await back(broker, "b", "b-2")
        assert (await broker.stats())["consumersCount"] == 4
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))
        assert other.came()

    play(scenario, **KEEPS)


@pytest.mark.parametrize("owner", ["same", "new"])
def test_the_second_of_a_name_that_asked_for_nothing_is_gone(owner: str) -> None:
    """The client of the second one gave up before the answer came, and has gone on as another consumer."""

    async def scenario(broker: Broker) -> None:
        await three(broker)
        attach = Attach(consumer="b", incarnation="given up.0")
        await broker.world.client("network").net.call(await broker.address(), attach, 20_000)
        if owner == "new":
            crash_dispatcher(broker)
        await attached(broker, *"abc")
        await broker.quiet(3 * LEASE_MS)
        assert (await broker.stats())["keptHashes"] == 0
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))

    play(scenario, **KEEPS)


@pytest.mark.parametrize("owner", ["same", "new"])
def test_the_second_of_a_name_that_asked_for_messages_is_kept(owner: str) -> None:
    async def scenario(broker: Broker) -> None:
        await three(broker)
        other = await back(broker, "b", "b-2")
        await broker.quiet(100)
        if owner == "new":
            crash_dispatcher(broker)
        other.crash()
        await broker.quiet(3 * LEASE_MS)
        await attached(broker, *"abc")
        stats = await broker.stats()
        assert [kept["consumerName"] for kept in stats["keptConsumers"]] == ["b"]

    play(scenario, **KEEPS)


def test_after_the_grace_its_hashes_move() -> None:
    async def scenario(broker: Broker) -> None:
        a, b, c = await three(broker, acking=False)
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))
        held = len(b.got)
        await b.close()
        await broker.quiet(GRACE_MS - 1_000)
        assert len(a.got) + len(c.got) == len(KEYS) - held
        await broker.until(lambda: len(a.got) + len(c.got) == len(KEYS), 3_000)
        assert (await broker.stats())["keptHashes"] == 0

    play(scenario, **KEEPS)


@pytest.mark.parametrize("settings", [{"grace_ms": 0}, {"grace_ms": GRACE_MS}])
def test_consumer_closed_for_good_keeps_no_hashes(settings: dict[str, Any]) -> None:
    async def scenario(broker: Broker) -> None:
        a, b, _ = await three(broker)
        for part in b.parts:
            await part.close(for_good=True)
        b.gone = True
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS), 2_000)
        assert a.came()
        assert (await broker.stats())["keptHashes"] == 0

    play(scenario, **settings)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_new_owner_keeps_what_was_kept(selector: str, policy: str) -> None:
    """The place of a consumer that died with the owner, and never came to the next one, is kept as well."""

    async def scenario(broker: Broker) -> None:
        _, b, c = await three(broker)
        before = await owners(broker)
        await b.close()
        crash_dispatcher(broker)
        c.crash()
        assert await attached(broker, "a") == {"a": before["a"]}
        crash_dispatcher(broker)
        await attached(broker, "a")
        for name in "cb":
            await back(broker, name, f"{name}-2")
        assert await owners(broker) == before
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))

    play(scenario, policy=policy, selector=selector, **KEEPS)


def test_the_grace_begins_when_nobody_may_be_alive() -> None:
    """A new owner knows b from the record. b comes back late, but had its place all the time."""

    async def scenario(broker: Broker) -> None:
        await three(broker)
        before = await owners(broker)
        broker.world.pause("b")
        crash_dispatcher(broker)
        assert (await broker.stats())["awaitedConsumers"]
        await broker.quiet(LEASE_MS // 3)
        assert [row["consumerName"] for row in (await broker.stats())["keptConsumers"]].count("b") == 1
        broker.world.resume("b")
        assert await attached(broker, *"abc") == before

    play(scenario, selector="auto_split", grace_ms=50, lease_ms=60_000)


def test_a_seek_takes_nobodys_place() -> None:
    async def scenario(broker: Broker) -> None:
        _, b, _ = await three(broker)
        before = await owners(broker)
        await broker.publish(*KEYS)
        await b.close()
        await broker.admin("seek", message_id="earliest")
        assert await attached(broker, "a", "c") == {name: before[name] for name in "ac"}
        await back(broker, "b", "b-2")
        assert await owners(broker) == before

    play(scenario, **KEEPS)


def test_sticky_ranges_are_kept_for_their_name() -> None:
    async def scenario(broker: Broker) -> None:
        low, high = [(0, 32_767)], [(32_768, 65_535)]
        await broker.join("a", ranges=low)
        b = await broker.join("b", ranges=high)
        await b.close()
        with pytest.raises(Conflict, match="kept for one"):
            await broker.join("x", ranges=high)
        await back(broker, "b", "b-2", ranges=high)
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))

    play(scenario, selector="sticky", **KEEPS)


# -- handing over -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("to", ["b", "other"])
def test_a_planned_hand_over_moves_nobody_elses_hashes(policy: str, selector: str, to: str) -> None:
    async def scenario(broker: Broker) -> None:
        _, b, _ = await three(broker, acking=False)
        before, moved = await owners(broker), (await broker.stats())["hashesMovedTotal"]
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))
        for part in b.parts:
            await part.handing_over.offer(to)
        held = {message.key for message in b.got}
        newcomer = await back(broker, to, "b-2")
        await broker.publish(*KEYS)
        await broker.until(lambda: b.parts[0].handing_over.done)
        await broker.quiet(500)
        assert not newcomer.came(), "what it owns now is held by the one before, or waits for what is"
        for client in broker.clients.values():
            client.ack()
        await broker.until(lambda: set(newcomer.came()) == held)
        await b.close()
        after = await owners(broker)
        assert {name: after[name] for name in "ac"} == {name: before[name] for name in "ac"}
        assert after[to] == before["b"]
        stats = await broker.stats()
        assert (stats["hashesMovedTotal"], stats["handOversTotal"]) == (moved, 1)

    play(scenario, policy=policy, selector=selector, **KEEPS)


@pytest.mark.parametrize("end", ["close", "crash"])
def test_name_that_took_over_and_left_keeps_its_hashes(end: str) -> None:
    """The newcomer had asked for nothing yet. Its predecessor of the same name is still attached (grace 65001073)."""

    async def scenario(broker: Broker) -> None:
        _, b, _ = await three(broker)
        before = await owners(broker)
        await b.parts[0].handing_over.offer("b")
        net, address = broker.world.client("network").net, await broker.address()
        newcomer = await net.call(address, Attach(consumer="b", incarnation="new.0"), 20_000)
        assert not isinstance(newcomer, Unknown)
        await net.call(address, Detach(session=newcomer.session), 20_000)
        if end == "crash":
            b.crash()
        else:
            await b.close()
        after = await attached(broker, "a", "c")
        assert after == {name: before[name] for name in "ac"}
        assert [kept["consumerName"] for kept in (await broker.stats())["keptConsumers"]] == ["b"]

    play(scenario, **KEEPS)


@pytest.mark.parametrize("asks", [False, True])
def test_an_offer_ends_when_another_one_asks_for_messages(asks: bool) -> None:
    """A client that only attached at the offered place had given up by then."""

    async def scenario(broker: Broker) -> None:
        _, b, _ = await three(broker)
        before = await owners(broker)
        await b.parts[0].handing_over.offer("b2")
        await b.close()
        if asks:
            await back(broker, "b", "b-2")
            await broker.quiet(100)
        else:
            attach = Attach(consumer="b", incarnation="given up.0")
            await broker.world.client("network").net.call(await broker.address(), attach, 20_000)
        crash_dispatcher(broker)
        await attached(broker, *("abc" if asks else "ac"))
        await broker.join("b2")
        await broker.quiet(3 * LEASE_MS)
        after = await owners(broker)
        if asks:
            assert all(after[name] for name in ("a", "b", "b2", "c"))
        else:
            assert after == {"a": before["a"], "b2": before["b"], "c": before["c"]}

    play(scenario, **KEEPS)


def test_a_hand_over_outlives_owners() -> None:
    async def scenario(broker: Broker) -> None:
        _, b, _ = await three(broker)
        before = await owners(broker)
        await b.parts[0].handing_over.offer("b2")
        crash_dispatcher(broker)
        await broker.until(lambda: all(each.parts[0].session for each in broker.clients.values()))
        await broker.join("b2")
        crash_dispatcher(broker)
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS), 4 * LEASE_MS)
        await broker.until(lambda: b.parts[0].handing_over.done)
        after = await owners(broker)
        assert after["b2"] == before["b"]
        assert after["b"] == []
        await b.close()
        crash_dispatcher(broker)
        assert (await attached(broker, "a", "c", "b2"))["b2"] == before["b"]

    play(scenario, **KEEPS)


def test_a_hand_over_to_one_with_hashes_is_refused() -> None:
    async def scenario(broker: Broker) -> None:
        _, b, _ = await three(broker)
        with pytest.raises(Conflict, match="has hashes of its own already"):
            await b.parts[0].handing_over.offer("a")

    play(scenario, **KEEPS)


def test_a_hand_over_needs_grace() -> None:
    async def scenario(broker: Broker) -> None:
        a = await broker.join("a")
        with pytest.raises(Invalid, match="grace_ms > 0"):
            await a.parts[0].handing_over.offer("b")

    play(scenario)


@pytest.mark.parametrize("settings", [{"type": "shared"}, {"type": "failover"}, {"allow_out_of_order_delivery": True}])
def test_grace_needs_an_ordered_key_shared_subscription(settings: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="grace_ms = 5 needs"):
        check_subscription(SubscriptionSettings(grace_ms=5, **settings))


# -- damping ----------------------------------------------------------------------------------------------------------


def test_flapping_consumer_gets_its_hashes_later() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.join("a")
        waited = []
        for life in range(4):
            flapper = await back(broker, "f", f"f-{life}")
            begun = broker.world.loop.now
            if life == 2:
                crash_dispatcher(broker)
            while not (await owners(broker)).get("f"):
                await broker.quiet(500)
            waited.append(broker.world.loop.now - begun)
            await flapper.close()
            await broker.quiet(grace + 1_000)
        assert max(waited[:2]) < 500
        assert grace <= waited[2] < 2 * grace + LEASE_MS
        assert 2 * grace <= waited[3] < 3 * grace
        assert (await broker.stats())["dampedConsumersTotal"] >= 1

    grace = 5_000
    play(scenario, **(KEEPS | {"grace_ms": grace}))


def test_a_place_is_durable_before_anything_comes() -> None:
    """The consumer waited longer than others for its place, so the record does not have the place from the attach."""

    async def scenario(broker: Broker) -> None:
        await broker.join("a", acking=False)
        for life in range(3):
            flapper = await back(broker, "f", f"f-{life}", acking=False)
            if life < 2:
                await flapper.close()
                await broker.quiet(grace + 1_000)
        await broker.publish(*KEYS)
        await broker.quiet(500)
        assert not (await owners(broker))["f"]
        broker.world.meta.trouble.cut["broker"] = 1
        while not (await owners(broker))["f"]:
            await broker.quiet(100)
        await broker.publish(*[f"new-{key}" for key in KEYS])
        await broker.quiet(500)
        assert not flapper.got, "the next owner would not know its place"
        broker.world.meta.trouble.cut.clear()
        await broker.until(lambda: bool(flapper.got))

    grace = 5_000
    play(scenario, **(KEEPS | {"grace_ms": grace, "lease_ms": 60_000}))


def test_a_copy_of_an_attach_waits_for_its_place_too() -> None:
    """The copy comes because a slow store delays the answer to the first attach."""

    async def scenario(broker: Broker) -> None:
        address, net = await broker.address(), broker.world.client("network").net
        answered = []

        async def attach() -> None:
            answered.append(await net.call(address, Attach(consumer="a", incarnation="a.0"), 60_000))

        broker.world.background(attach(), "attach")
        while not (await broker.stats())["consumersCount"]:
            await broker.quiet(1)
        broker.world.meta.trouble.cut["broker"] = 1
        broker.world.background(attach(), "copy")
        await broker.quiet(1_000)
        assert not answered, "the next owner would not know its place"
        broker.world.meta.trouble.cut.clear()
        await broker.until(lambda: len(answered) == 2)

    play(scenario, **(KEEPS | {"lease_ms": 60_000}))


# -- explanations -----------------------------------------------------------------------------------------------------


def test_explain_names_for_whom_it_is_kept() -> None:
    async def scenario(broker: Broker) -> None:
        _, b, _ = await three(broker)
        await broker.publish(*KEYS)
        await broker.until(lambda: broker.seen() == len(KEYS))
        key = b.came()[0]
        await b.close()
        await broker.publish(key)
        await broker.quiet(500)
        told = await broker.ports.net.call(await broker.address(), Explain(key=key.encode()), 5_000)
        assert isinstance(told, Text)
        reason = shown(told)["reasons"][0]
        assert reason["gate"] == "kept_for_owner"
        assert "kept for its owner 'b'" in reason["text"]
        assert 0 < reason["until"] - broker.ports.clock.now() <= GRACE_MS

    play(scenario, **KEEPS)
