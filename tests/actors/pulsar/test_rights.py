"""Every command of the protocol by every kind of role, and what becomes of those whose rights are revoked.

The table has a row for each command that a connection takes; a new one without a row fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluice.actors.policies import permission_cache
from sluice.actors.policies.authorization import of_topic as of_a_topic
from sluice.actors.policies.namespaces import Namespaces
from sluice.actors.policies.permission_cache import FRESH_MS
from sluice.actors.policies.permissions import Permissions
from sluice.actors.policies.policy_records import MOST_CHANGES, of_namespace, of_topic
from sluice.actors.pulsar.codec.protocol import NOT_OFFERED, ServerError
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.pulsar.conversation.commands import CommandHandlers
from sluice.actors.pulsar.conversation.gateway import access_control
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway
from sluice.storage.errors import Unavailable
from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways
from tests.sim.worlds.gateway import SimGateway
from tests.sim.worlds.wire import Refusal, Wire

MANY = 1
SPACE, TOPIC = of_namespace("public/default"), of_topic("orders")
ROLES = ("root", "watcher", "chief", "writer", "reader", "clerk", "everywhere", "stranger", "nobody")
"""A superuser, a viewer, the tenant's administrator; who may produce, or consume, one topic; the only one who may use
the subscription `kept`; who may consume in the namespace; the administrator of another tenant; who has no right.
"""
BOTH = "root chief writer reader clerk everywhere"
PRODUCING, CONSUMING = "root chief writer", "root chief reader clerk everywhere"

OPEN = "nothing is needed, or what the client was let in with"
OWN = "of a consumer that was let in"
COMMANDS: dict[str, str | list[tuple[dict[str, Any], str]]] = {
    "connect": OPEN,
    "ping": OPEN,
    "pong": OPEN,
    "send": OPEN,
    "flow": OPEN,
    "ack": OPEN,
    "redeliver": OPEN,
    "close_producer": OPEN,
    "close_consumer": OPEN,
    "get_last_id": OWN,
    "consumer_stats": OWN,
    "seek": OWN,
    "unsubscribe": OWN,
    "partition_metadata": [
        ({"topic": "orders"}, BOTH),
        ({"topic": "orders", "allow_creation": False}, f"{BOTH} watcher"),
        ({"topic": "new"}, "root chief everywhere"),
    ],
    "lookup": [({"topic": "orders"}, BOTH)],
    "topics_of": [({"namespace": "public/default"}, "root watcher chief everywhere")],
    "producer": [
        ({"topic": "orders"}, PRODUCING),
        ({"topic": "orders", "initial_subscription": "first"}, "root chief"),
    ],
    "subscribe": [
        ({"topic": "orders", "subscription": "free", "type": MANY}, CONSUMING),
        ({"topic": "orders", "subscription": "kept", "type": MANY}, "root chief clerk"),
        ({"topic": "orders", "subscription": "kept", "type": 0, "durable": False}, "root chief clerk"),
        ({"topic": "orders", "subscription": "reader-1", "type": 0, "durable": False}, CONSUMING),
    ],
    "get_schema": [({"topic": "orders"}, f"{BOTH} watcher")],
    "put_schema": [({"topic": "orders", "schema": {"type": 1}}, PRODUCING)],
}


async def granted(clients: Clients) -> Permissions:
    """Grant the rights of these tests to their roles; return the permissions."""
    meta = clients.broker.world.client("tool").meta
    said = Permissions(meta)
    await Namespaces(meta).change_tenant("public", ("chief",))
    await Namespaces(meta).create_tenant("sales", ("stranger",))
    await said.grant(TOPIC, "writer", ["produce"])
    for role in ("reader", "clerk"):
        await said.grant(TOPIC, role, ["consume"])
    await said.grant(SPACE, "everywhere", ["consume"])
    await said.grant_subscription("public/default", "kept", ["clerk"])
    clients.enforce()
    return said


def gateway_of(clients: Clients) -> Gateway:
    """The first one."""
    actor = clients.broker.world.process(GATEWAYS[0]).actor
    assert isinstance(actor, SimGateway)
    return actor.gateway


async def refused(wire: Wire, name: str, **values: Any) -> bool:
    """Whether the right is missing, whatever else the answer is."""
    try:
        await wire.ask(name, **values)
    except Refusal as refusal:
        return refusal.code == ServerError.AUTHORIZATION
    return False


def test_every_command_has_a_row() -> None:
    answered = {name for name, _ in inspect.getmembers(CommandHandlers, inspect.iscoroutinefunction) if name[0] != "_"}
    source = inspect.getsource(ClientConnection.__init__)
    immediate = {name for name in ("ping", "pong", "flow", "ack", "redeliver") if f'"{name}": ' in source}
    assert source.count('": ') == len(immediate)
    assert set(COMMANDS) == answered | immediate | {"send"}
    assert not NOT_OFFERED & set(COMMANDS), "what is not offered is refused to everybody"


@pytest.mark.parametrize("role", ROLES)
def test_every_command_by_every_role(role: str) -> None:
    async def scenario(clients: Clients) -> None:
        await granted(clients)
        wire, number = await clients.enter("c0", GATEWAYS[0], role), 0
        for name, rows in COMMANDS.items():
            for values, permitted in rows if isinstance(rows, list) else ():
                number += 1
                more = {"subscribe": {"consumer_id": number}, "producer": {"producer_id": number}}.get(name, {})
                told = await refused(wire, name, **values, **more)
                assert told == (role not in permitted.split()), (name, values)

    with_gateways(scenario)


@pytest.mark.parametrize("name", [name for name, row in COMMANDS.items() if row == OWN])
def test_command_on_a_consumer_needs_an_own_consumer(name: str) -> None:
    async def scenario(clients: Clients) -> None:
        await granted(clients)
        reader = await clients.enter("c0", GATEWAYS[0], "reader")
        await clients.consumer(reader, MANY, "a")
        stranger = await clients.enter("c1", GATEWAYS[0], "nobody")
        with pytest.raises(Refusal) as told:
            await stranger.ask(name, consumer_id=0)
        assert told.value.code == ServerError.CONSUMER_NOT_FOUND

    with_gateways(scenario)


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_revoked_right_ends_who_lives_by_it(gateway: str) -> None:
    """Within a second, at every gateway, and without taking others along."""

    async def scenario(clients: Clients) -> None:
        said = await granted(clients)
        clock = clients.broker.ports.clock
        writer = await clients.enter("c0", gateway, "writer")
        reader = await clients.enter("c1", gateway, "reader")
        other = await clients.enter("c2", gateway, "clerk")
        await clients.producer(writer, "till", SHARED)
        await clients.consumer(reader, MANY, "a")
        await clients.consumer(other, MANY, "b")
        await clients.send(writer, "c0")
        await said.revoke(TOPIC, "writer")
        await said.revoke(TOPIC, "reader")
        await clock.sleep(FRESH_MS)
        assert (clients.ended, clients.sent_away) == (["c0"], ["c1"])
        with pytest.raises(Refusal) as told:
            await clients.producer(writer, "till", SHARED)
        assert told.value.code == ServerError.AUTHORIZATION
        assert await refused(reader, "subscribe", topic="orders", subscription="s", type=MANY, consumer_id=1)

    with_gateways(scenario)


def test_a_right_is_revoked_among_very_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are named, while so many other records were read that those of the right are not known any more."""
    monkeypatch.setattr(permission_cache, "MOST_KNOWN", 3)

    async def scenario(clients: Clients) -> None:
        said = await granted(clients)
        writer = await clients.enter("c0", GATEWAYS[0], "writer")
        await clients.producer(writer, "till", SHARED)
        for number in range(3):
            assert await refused(writer, "lookup", topic=f"sales/eu/other-{number}")
        cache = gateway_of(clients).access.permissions
        assert cache is not None
        monkeypatch.setattr(cache, "refresh", looks_later := Later(cache.refresh))
        await said.revoke(TOPIC, "writer")
        for number in range(MOST_CHANGES):
            await said.grant(of_topic("another"), f"role-{number}", ["consume"])
        looks_later.waits = False
        await clients.broker.until(lambda: clients.ended == ["c0"])

    with_gateways(scenario)


class Later:
    """Does nothing for now."""

    def __init__(self, does: Callable[[], Awaitable[None]]) -> None:
        self._does = does
        self.waits = True

    async def __call__(self) -> None:
        if not self.waits:
            await self._does()


def test_a_tenants_administrator_who_is_none_any_more_goes() -> None:
    async def scenario(clients: Clients) -> None:
        await granted(clients)
        chief = await clients.enter("c0", GATEWAYS[0], "chief")
        await clients.producer(chief, "till", SHARED)
        await Namespaces(clients.broker.world.client("tool").meta).change_tenant("public", ())
        await clients.broker.until(lambda: clients.ended == ["c0"])

    with_gateways(scenario)


def test_a_subscription_that_is_reserved_sends_others_away() -> None:
    async def scenario(clients: Clients) -> None:
        said = await granted(clients)
        reader = await clients.enter("c0", GATEWAYS[0], "reader")
        await clients.consumer(reader, MANY, "a")
        await said.grant_subscription("public/default", "pulsar", ["clerk"])
        await clients.broker.until(lambda: clients.sent_away == ["c0"])

    with_gateways(scenario)


def test_a_store_that_is_away_keeps_new_ones_out() -> None:
    """Connected clients stay, and go on; a right revoked meanwhile ends when the store is back."""

    async def scenario(clients: Clients) -> None:
        said = await granted(clients)
        clock, trouble = clients.broker.ports.clock, clients.broker.world.meta.trouble
        writer = await clients.enter("c0", GATEWAYS[0], "writer")
        await clients.producer(writer, "till", SHARED)
        await said.revoke(TOPIC, "writer")
        trouble.refused["read permission"] = Unavailable
        await clock.sleep(5 * FRESH_MS)
        assert clients.ended == []
        await clients.send(writer, "c0")
        another = await clients.enter("c1", GATEWAYS[0], "clerk")
        with pytest.raises(Refusal) as told:
            await another.ask("subscribe", topic="orders", subscription="s", type=MANY, consumer_id=0)
        assert told.value.code == ServerError.SERVICE_NOT_READY
        trouble.refused.clear()
        await clients.broker.until(lambda: clients.ended == ["c0"])
        await another.ask("subscribe", topic="orders", subscription="s", type=MANY, consumer_id=0)

    with_gateways(scenario)


@pytest.mark.parametrize("what", ["producer", "consumer"])
def test_a_right_that_goes_while_something_opens(what: str) -> None:
    """The right is revoked, and every registered client was checked, before the newcomer is registered."""

    async def scenario(clients: Clients) -> None:
        said = await granted(clients)
        wire = await clients.enter("c0", GATEWAYS[0], "everywhere" if what == "consumer" else "writer")
        gateway = gateway_of(clients)

        async def revoked(*_: Any) -> None:
            await said.revoke(SPACE, "everywhere")
            await said.revoke(TOPIC, "writer")
            await clients.broker.ports.clock.sleep(2 * FRESH_MS)

        for name in ("check_producer", "check_consumer"):
            setattr(gateway.head_count, name, revoked)
        with pytest.raises(Refusal) as told:
            await (clients.producer(wire, "till", SHARED) if what == "producer" else clients.consumer(wire, MANY, "a"))
        assert told.value.code == ServerError.AUTHORIZATION
        assert not gateway.producers
        assert not gateway.consumers

    with_gateways(scenario)


def test_others_have_their_turn_while_many_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right changes by which twenty producers live: the last is not looked at before something else could be done."""
    monkeypatch.setattr(access_control, "TURN", 5)

    async def scenario(clients: Clients) -> None:
        said = await granted(clients)
        access, left, between = gateway_of(clients).access, list[str](), list[int]()
        for number in range(20):
            access.admit(number, ("writer",), (of_a_topic("produce", "orders"),), lambda: left.append("writer"))

        async def another() -> None:
            while len(left) < 20:
                between.append(len(left))
                await clients.broker.ports.clock.sleep(1)

        await clients.broker.ports.clock.sleep(FRESH_MS)  # until the gateway knows how many changes there were before
        clients.broker.ports.spawn(another(), "another")
        await said.revoke(TOPIC, "writer")
        await clients.broker.until(lambda: len(left) == 20)
        assert set(between) & {4, 9, 14, 19}

    with_gateways(scenario)
