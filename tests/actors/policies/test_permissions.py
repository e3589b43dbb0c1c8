"""Permissions as records, and what a process knows of them."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from sluice.actors.policies import permission_cache
from sluice.actors.policies.authorization import Authorization, Forbidden, of_topic
from sluice.actors.policies.namespaces import Namespaces, check_roles
from sluice.actors.policies.permission_cache import FRESH_MS, LOOK_MS, OLD_MS, PermissionCache
from sluice.actors.policies.permissions import Grants, Permissions
from sluice.actors.policies.policy_records import (
    CHANGES,
    MOST_CHANGES,
    PERMISSIONS,
    changes_in,
    forget_topic,
    of_namespace,
    revise,
    tell_changed,
)
from sluice.actors.policies.policy_records import of_topic as record_of_topic
from sluice.storage.errors import Invalid, NotFound, Unavailable
from tests.sim.world import World

SPACE = of_namespace("public/default")
WISH = of_topic("produce", "orders")


def test_a_grant_replaces_what_the_role_had_there() -> None:
    async def scenario(world: World) -> None:
        said = Permissions(world.client("tool").meta)
        await said.grant(SPACE, "till", ["produce", "consume", "produce"])
        await said.grant(SPACE, "other", ["functions"])
        assert (await said.read(SPACE)).roles == {"till": ["consume", "produce"], "other": ["functions"]}
        await said.grant(SPACE, "till", ["consume"])
        await said.revoke(SPACE, "other")
        await said.revoke(SPACE, "other")
        assert await said.read(SPACE) == Grants({"till": ["consume"]})
        for actions in ([], ["fly"], ["produce", "Consume"]):
            with pytest.raises(Invalid, match="actions are some of produce, consume"):
                await said.grant(SPACE, "till", actions)
        for role in ("", " ", "x" * 257, "a\nb"):
            with pytest.raises(Invalid, match="a role is a name"):
                await said.grant(SPACE, role, ["produce"])

    World(1).play(scenario)


def test_subscriptions_have_roles_of_their_own() -> None:
    async def scenario(world: World) -> None:
        said = Permissions(world.client("tool").meta)
        await said.grant_subscription("public/default", "billing", ["a", "b"])
        await said.revoke_subscription("public/default", "billing", "a")
        assert (await said.read(SPACE)).subscriptions == {"billing": ["b"]}
        await said.revoke_subscription("public/default", "billing", "b")
        assert await said.read(SPACE) == Grants()
        with pytest.raises(NotFound, match="has no roles"):
            await said.revoke_subscription("public/default", "billing", "b")

    World(1).play(scenario)


def test_a_tenant_has_roles() -> None:
    async def scenario(world: World) -> None:
        spaces = Namespaces(world.client("tool").meta)
        await spaces.create_tenant("sales", ("chief",))
        assert (await spaces.tenant("sales")).admin_roles == ("chief",)
        await spaces.change_tenant("public", check_roles(["b", "a", "b", ""]))
        assert (await spaces.tenant("public")).admin_roles == ("a", "b")
        with pytest.raises(NotFound):
            await spaces.change_tenant("none", ())
        for wrong in ("a", [1], ["x"] * 1_001):
            with pytest.raises(Invalid, match="roles are a list"):
                check_roles(wrong)

    World(1).play(scenario)


def test_a_topic_that_is_no_more_has_no_permissions() -> None:
    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        await Permissions(meta).grant(record_of_topic("orders"), "till", ["produce"])
        cache = PermissionCache(world.client("gateway"), Authorization())
        await cache.check(("till",), WISH)
        await forget_topic(meta, "orders")
        await cache.refresh()
        with pytest.raises(Forbidden):
            await cache.check(("till",), WISH)

    World(1).play(scenario)


def test_deleting_a_namespace_removes_grants_for_its_topics() -> None:
    """Also for topics that were never made: the next namespace of this name belongs to others."""

    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        said = Permissions(meta)
        topics = ("sales..eu..orders", "sales..eu2..orders", "orders")
        for topic in topics:
            await said.grant(record_of_topic(topic), "till", ["produce"])
        cache = PermissionCache(world.client("gateway"), Authorization())
        for topic in topics:
            await cache.check(("till",), of_topic("produce", topic))
        await said.forget_space("sales/eu")
        await cache.refresh()
        with pytest.raises(Forbidden):
            await cache.check(("till",), of_topic("produce", topics[0]))
        for topic in topics[1:]:
            await cache.check(("till",), of_topic("produce", topic))

    World(1).play(scenario)


@pytest.mark.parametrize("what", ["topic", "namespace", "tenant"])
def test_a_removal_that_ended_halfway_is_told_at_last(what: str) -> None:
    """The record could not be counted as changed, so it is asked for again; gateways must not keep what they know."""

    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        said, spaces = Permissions(meta), Namespaces(meta)
        wish = of_topic("produce", "sales..eu..orders")
        await spaces.create_tenant("sales", ("till",) if what == "tenant" else ())
        name = {"topic": record_of_topic("sales..eu..orders"), "namespace": of_namespace("sales/eu")}.get(what)
        if name is not None:
            await said.grant(name, "till", ["produce"])
        cache = PermissionCache(world.client("gateway"), Authorization())
        await cache.check(("till",), wish)

        async def remove() -> None:
            if what == "topic":
                await forget_topic(meta, "sales..eu..orders")
            elif what == "namespace":
                await said.forget_space("sales/eu")
            else:
                await spaces.remove_tenant("sales")

        world.meta.trouble.refused[f"create {CHANGES}"] = Unavailable
        with pytest.raises(Unavailable):
            await remove()
        world.meta.trouble.refused.clear()
        await remove()
        await cache.refresh()
        with pytest.raises(Forbidden):
            await cache.check(("till",), wish)

    World(1).play(scenario)


def test_only_so_many_changes_are_named() -> None:
    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        for number in range(MOST_CHANGES + 5):
            await tell_changed(meta, f"permission/topic/{number}")
        found = await meta.read(CHANGES)
        assert found is not None
        names = changes_in(found.value)
        assert (found.number, len(names)) == (MOST_CHANGES + 5, MOST_CHANGES)
        assert names[0] == f"permission/topic/{MOST_CHANGES + 4}"
        assert changes_in(b"{") == [], "any may have changed"

    World(1).play(scenario)


@pytest.mark.parametrize("missed", [1, MOST_CHANGES + 5])
def test_a_change_is_seen_at_the_next_look(missed: int) -> None:
    """Also by who has missed more changes than the record names."""

    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        said, cache = Permissions(meta), PermissionCache(world.client("gateway"), Authorization())
        await said.grant(SPACE, "till", ["produce"])
        await cache.check(("till",), WISH)
        await said.revoke(SPACE, "till")
        for number in range(missed - 1):
            await tell_changed(meta, f"permission/topic/{number}")
        assert await cache.still(("till",), WISH), "nothing was looked at yet"
        await cache.refresh()
        assert not await cache.still(("till",), WISH)
        with pytest.raises(Forbidden):
            await cache.check(("till",), WISH)

    World(1).play(scenario)


def test_stale_cache_admits_no_client() -> None:
    async def scenario(world: World) -> None:
        said, ports = Permissions(world.client("tool").meta), world.client("gateway")
        cache = PermissionCache(ports, Authorization(("root",)))
        await said.grant(SPACE, "till", ["produce"])
        await cache.check(("till",), WISH)
        world.meta.trouble.refused["read"] = Unavailable
        await cache.check(("till",), WISH)
        await ports.clock.sleep(FRESH_MS + 1)
        with pytest.raises(Unavailable):
            await cache.check(("till",), WISH)
        await cache.check(("root",), WISH)
        assert await cache.still(("till",), WISH)

    World(1).play(scenario)


def test_unreadable_rights_are_judged_later() -> None:
    """The store goes away between the news of a change and what it says."""

    async def scenario(world: World) -> None:
        said, ports = Permissions(world.client("tool").meta), world.client("gateway")
        cache, heard = PermissionCache(ports, Authorization()), list[bool | None]()

        async def changed(keys: Collection[str] | None) -> bool:
            try:
                heard.append(await cache.still(("till",), WISH))
            except Unavailable:
                heard.append(None)
            return heard[-1] is not None

        await said.grant(SPACE, "till", ["produce"])
        await cache.check(("till",), WISH)
        await said.revoke(SPACE, "till")
        world.meta.trouble.refused[f"read {PERMISSIONS}"] = Unavailable
        ports.spawn(cache.run(changed), "look")
        await ports.clock.sleep(4 * LOOK_MS)
        assert heard
        assert set(heard) == {None}
        world.meta.trouble.refused.clear()
        await ports.clock.sleep(2 * LOOK_MS)
        assert heard[-1] is False

    World(1).play(scenario)


def test_a_change_that_nobody_told_of_is_seen_later() -> None:
    """The writer died after it wrote the record, and before it told of the change."""

    async def scenario(world: World) -> None:
        meta, ports = world.client("tool").meta, world.client("gateway")
        cache, heard = PermissionCache(ports, Authorization()), list[str]()

        async def changed(keys: Collection[str] | None) -> bool:
            heard.extend(keys or ())
            return True

        await Permissions(meta).grant(SPACE, "till", ["produce"])
        await cache.check(("till",), WISH)
        await revise(meta, PERMISSIONS + SPACE, lambda _: b"{}", "they are")
        ports.spawn(cache.run(changed), "look")
        await ports.clock.sleep(OLD_MS + 4 * LOOK_MS)
        assert PERMISSIONS + SPACE in heard
        assert not await cache.still(("till",), WISH)

    World(1).play(scenario)


def test_cache_of_rights_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission_cache, "MOST_KNOWN", 20)

    async def scenario(world: World) -> None:
        cache = PermissionCache(world.client("gateway"), Authorization())
        for number in range(50):
            with pytest.raises(Forbidden):
                await cache.check(("till",), of_topic("produce", f"topic-{number}"))
        assert len(cache._known) == 20

    World(1).play(scenario)


@pytest.mark.parametrize("damage", ["another form", "a flipped byte"])
def test_a_damaged_record_of_changes_keeps_nobody_out(damage: str) -> None:
    """Any record may have changed then; and the next change mends it."""

    async def scenario(world: World) -> None:
        meta = world.client("tool").meta
        said, cache = Permissions(meta), PermissionCache(world.client("gateway"), Authorization())
        for role in ("till", "shop"):
            await said.grant(SPACE, role, ["produce"])
        await cache.check(("till",), WISH)
        await revise(meta, PERMISSIONS + SPACE, lambda _: msgspec.json.encode(Grants({"shop": ["produce"]})), "it is")
        await revise(meta, CHANGES, lambda _: b"?", "they are")
        if damage == "a flipped byte":
            world.meta.damaged[CHANGES] = len(world.meta.records[CHANGES])
        await cache.refresh()
        await cache.check(("shop",), WISH)
        assert not await cache.still(("till",), WISH)
        await said.revoke(SPACE, "shop")
        await cache.refresh()
        assert not await cache.still(("shop",), WISH)

    World(1).play(scenario)
