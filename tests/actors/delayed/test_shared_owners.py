"""Views of subscriptions whose dispatchers overtake each other, and the owner that opens the index."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.delayed.buckets import BucketTracker
from sluice.actors.delayed.manifest import manifest_key
from sluice.actors.delayed.owner import UNWANTED_MS, IndexOwner
from sluice.actors.delayed.shared import NAME, SharedIndex, SharedView
from sluice.actors.dispatcher import Dispatcher
from sluice.actors.messages import DeleteTopic
from sluice.actors.topic.topic import Topic
from sluice.storage.delayed.manifest import Manifest, encode_manifest
from sluice.storage.errors import Conflict
from sluice.storage.format.position import position
from tests.actors.delayed.world import Life, World
from tests.scenarios.key_shared.broker import TOPIC, Broker, play
from tests.sim.loop import simulated

KEY = manifest_key("orders", 0, NAME)


def due_at(index: SharedIndex, view: SharedView, entry: int) -> None:
    place = np.array([position(1, entry)], np.int64)
    assert view.add(place, place.astype(np.uint32), np.array([100]), 0).all()


def test_an_overtaken_dispatcher_takes_nothing_from_a_newer_one() -> None:
    index = SharedIndex()
    now = index.view("newer", lambda: None)
    due_at(index, now, 1)
    late = index.view("overtaken", lambda: None)
    late.pop_due(10, 100)
    assert now.pop_due(10, 100)[0].tolist() == [position(1, 1)]
    index.leave("overtaken")
    due_at(index, now, 2)
    assert now.pop_due(10, 100)[0].tolist() == [position(1, 2)]


def test_a_dispatcher_without_a_view_leaves_that_of_another() -> None:
    """One that lost the race for the record of its subscription ends under the epoch that the other one has."""
    index = SharedIndex()
    there = index.view("winner", lambda: None)
    index.leave("loser")
    due_at(index, there, 1)
    assert there.pop_due(10, 100)[0].tolist() == [position(1, 1)]


def test_a_remade_subscription_has_a_view_beside_the_old_one() -> None:
    index = SharedIndex()
    index.view("of the deleted one", lambda: None)
    again = index.view("of the one made again", lambda: None)
    due_at(index, again, 1)
    index.leave("of the deleted one")
    assert again.pop_due(10, 100)[0].tolist() == [position(1, 1)]
    index.leave("of the one made again")
    assert not index.views


def begun(life: Life, index: SharedIndex, epoch: int) -> IndexOwner:
    owner = IndexOwner(life.ports, index, "orders", 0)
    owner.enable(epoch, lambda: -1)
    return owner


@simulated
async def test_an_index_that_nobody_wants_costs_nothing() -> None:
    world, index = World(), SharedIndex()
    life = Life(world)
    owner = begun(life, index, 1)
    await world.advance(2 * UNWANTED_MS)
    assert (life.tasks, life.calls, owner.stats()) == ([], [], None)
    index.view("one", lambda: None)
    await index.opened()
    assert isinstance(index.tracker, BucketTracker)
    assert owner.stats() is not None
    await life.end()


@simulated
async def test_an_owner_that_comes_behind_the_view_opens_it() -> None:
    world, index = World(), SharedIndex()
    life = Life(world)
    view = index.view("one", lambda: None)
    due_at(index, view, 1)
    begun(life, index, 1)
    await view.recovered()
    assert isinstance(index.tracker, BucketTracker)
    assert view.pop_due(10, 100)[0].tolist() == [position(1, 1)]
    await life.end()


@simulated
async def test_manifest_of_an_earlier_owner_opens_unwanted_index() -> None:
    world, index = World(), SharedIndex()
    life, later = Life(world), Life(world)
    begun(life, index, 2)
    await world.advance(UNWANTED_MS)
    assert (life.calls, life.tasks[0].done(), world.records) == ([("read", KEY)], True, {})
    await life.end()
    world.records[KEY] = [encode_manifest(Manifest(2))]
    begun(later, index, 3)
    await world.advance(UNWANTED_MS)
    await index.opened()
    assert isinstance(index.tracker, BucketTracker)
    await later.end()


@simulated
async def test_only_the_newest_owner_that_is_there_opens_the_index() -> None:
    world, index = World(), SharedIndex()
    older, newer = Life(world), Life(world)
    begun(newer, index, 3)
    begun(older, index, 2)
    index.view("one", lambda: None)
    await index.opened()
    assert newer.calls
    await world.advance(UNWANTED_MS // 2)
    assert older.calls == []
    await older.end()
    await newer.end()


@simulated
async def test_an_owner_that_has_ended_is_not_told() -> None:
    world, index = World(), SharedIndex()
    gone, following = Life(world), Life(world)
    owner = begun(gone, index, 1)
    owner.release()
    owner.release()
    index.view("one", lambda: None)
    await world.settle()
    assert gone.tasks == []
    begun(following, index, 2)
    owner.release()
    await index.opened()
    assert following.calls
    await following.end()


@simulated
async def test_an_index_without_owner_and_readers_is_forgotten() -> None:
    """A topic that was closed, or has gone elsewhere, leaves nothing of it in the process."""
    world, index = World(), SharedIndex()
    life, later = Life(world), Life(world)
    owner = begun(life, index, 1)
    one, two = index.view("one", lambda: None), index.view("two", lambda: None)
    await one.recovered()
    due_at(index, one, 1)
    await one.close()
    owner.release()
    assert two.count() == 1, "what it has left to the index is there"
    await two.close()
    await life.end()
    assert (index.tracker.count(), index.wanted) == (0, False)
    again = index.view("one", lambda: None)
    restored = later.spawn(again.recovered(), "view")
    await world.settle()
    assert not restored.done(), "it waits for the index of the next owner"
    begun(later, index, 2)
    await restored
    assert isinstance(index.tracker, BucketTracker)
    due_at(index, again, 1)
    assert again.pop_due(10, 100)[0].tolist() == [position(1, 1)]
    await later.end()


@simulated
async def test_an_index_stays_while_its_owner_is_there() -> None:
    world, index = World(), SharedIndex()
    life = Life(world)
    owner = begun(life, index, 1)
    view = index.view("one", lambda: None)
    await view.recovered()
    due_at(index, view, 1)
    await view.close()
    assert index.tracker.count() == 1
    owner.release()
    assert index.tracker.count() == 0
    await life.end()


def test_a_dispatcher_that_failed_holds_no_view() -> None:
    """The process releases a failed dispatcher and does not call it any more. A view would keep the index untrimmed."""

    async def scenario(broker: Broker) -> None:
        index = broker.shared.get_or_create(TOPIC, 0)
        await broker.join("c")
        failed = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        assert isinstance(failed, Dispatcher)
        assert list(index.views) == [failed.ports.me]
        failed.release()
        assert not index.views

    play(scenario, delayed_delivery_shared_index_enabled=True)


def test_an_index_is_opened_again_where_its_topic_stays() -> None:
    """A subscription has come while the index was being deleted: the topic is not."""

    async def scenario(broker: Broker) -> None:
        index = broker.shared.get_or_create(TOPIC, 0)
        topic = broker.world.process(broker.world.alive("topic-")[0]).actor
        assert isinstance(topic, Topic)
        index.view("reader", lambda: None)
        await index.opened()
        deleted, delete = index.tracker, topic._delayed.delete
        topic._maintenance.marks.clear()

        async def deletes(epoch: int) -> None:
            await delete(epoch)
            topic._maintenance.marks["late"] = -1

        topic._delayed.delete = deletes  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            await broker.ports.net.call(topic.ports.me, DeleteTopic(), 10_000)
        await broker.until(lambda: index.tracker is not deleted)
        assert isinstance(index.tracker, BucketTracker)

    play(scenario, delayed_delivery_shared_index_enabled=True)
