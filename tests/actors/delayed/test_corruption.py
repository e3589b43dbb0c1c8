"""Bad input: objects that are damaged, foreign, misplaced or missing are named, and delivery goes on (B3, BD-31)."""

from collections.abc import Callable

import numpy as np
import pytest

from sluice.storage.delayed.entries import Entries
from sluice.storage.delayed.manifest import decode_manifest
from sluice.storage.delayed.queue import SortedRun
from sluice.storage.errors import Corrupt
from tests.actors.delayed.broker import KEY, PREFIX, Broker, Log, bucket_settings
from tests.actors.delayed.world import World
from tests.sim.loop import simulated

SETTINGS = bucket_settings(min_count=5, cap=3)
END = 60_000

Damage = Callable[[World, str], None]


def truncate(world: World, name: str) -> None:
    world.objects[name] = world.objects[name][:-1]


def behead(world: World, name: str) -> None:
    world.objects[name] = world.objects[name][:10]


def flip_header(world: World, name: str) -> None:
    data = bytearray(world.objects[name])
    data[40] ^= 1
    world.objects[name] = bytes(data)


def flip_segment(world: World, name: str) -> None:
    data = bytearray(world.objects[name])
    data[-1] ^= 1
    world.objects[name] = bytes(data)


def foreign_version(world: World, name: str) -> None:
    data = bytearray(world.objects[name])
    data[4] = 77
    world.objects[name] = bytes(data)


def empty(world: World, name: str) -> None:
    world.objects[name] = b""


def missing(world: World, name: str) -> None:
    del world.objects[name]


def swap(world: World, name: str) -> None:
    other = next(one for one in sorted(world.objects) if one != name)
    world.objects[name] = world.objects[other]


HEADER_DAMAGES: list[Damage] = [behead, flip_header, foreign_version, empty, missing, swap]
SEGMENT_DAMAGES: list[Damage] = [truncate, flip_segment, missing, empty]


async def written(world: World, log: Log) -> None:
    """A first life writes some buckets and ends."""
    for ledger in range(1, 7):
        log.publish(ledger, [10_000 + ledger * 100 + entry * 7 for entry in range(5)])
    broker = Broker(world, log, SETTINGS, 1)
    await broker.start()
    broker.read()
    await world.settle()
    assert len(world.objects) == 5
    await broker.end()


async def everything_comes(broker: Broker, log: Log) -> None:
    """All messages are delivered, and the alarm was raised with the name of one object."""
    await broker.run_until(END, acknowledge=True)
    assert sorted(broker.delivered) == sorted(log.due)
    stats = broker.tracker.stats()
    assert stats["lost_buckets"] == 1
    losses = [fields for event, fields in broker.life.events if event == "delayed_bucket_lost"]
    assert [str(fields["bucket"]).startswith(PREFIX) for fields in losses] == [True]
    broker.recount()


@pytest.mark.parametrize("damage", HEADER_DAMAGES)
@simulated
async def test_a_damaged_header_is_found_at_recovery(damage: Damage) -> None:
    world, log = World(), Log()
    await written(world, log)
    name = sorted(world.objects)[2]
    damage(world, name)
    broker = Broker(world, log, SETTINGS, 2)
    await broker.start()
    recovery = broker.tracker.stats()["recovery"]
    assert (recovery["restored"], recovery["lost"]) == (4, 1)
    assert broker.tracker.stats()["pending_rescans"] == 1
    broker.read()
    await everything_comes(broker, log)
    await broker.end()


@pytest.mark.parametrize("damage", SEGMENT_DAMAGES)
@simulated
async def test_a_damaged_segment_is_found_when_it_is_loaded(damage: Damage) -> None:
    world, log = World(), Log()
    await written(world, log)
    broker = Broker(world, log, SETTINGS, 2)
    await broker.start()
    broker.read()
    name = sorted(world.objects)[2]
    damage(world, name)
    await everything_comes(broker, log)
    await broker.end()


@simulated
async def test_a_damaged_object_is_kept_until_its_range_is_done() -> None:
    world, log = World(), Log()
    await written(world, log)
    name = sorted(world.objects)[2]
    flip_header(world, name)
    broker = Broker(world, log, SETTINGS, 2)
    await broker.start()
    broker.read()
    await world.settle()
    assert name in world.objects
    damaged = [record for record in decode_manifest(world.records[KEY][-1], KEY).buckets if record.damaged]
    assert len(damaged) == 1
    await broker.end()
    again = Broker(world, log, SETTINGS, 3)
    await again.start()
    again.read()
    assert again.tracker.stats()["recovery"]["buckets"] == 4 + 1, "the rescanned ledgers were sealed again"
    assert again.tracker.stats()["lost_buckets"] == 0
    await again.run_until(END, acknowledge=True)
    assert sorted(again.delivered) == sorted(log.due)
    await world.advance(END)
    assert world.objects == {}
    await again.end()


@simulated
async def test_loaded_entries_of_a_lost_bucket_stay_tracked() -> None:
    world, log = World(), Log()
    await written(world, log)
    broker = Broker(world, log, SETTINGS, 2, look_ahead_ms=100_000)
    await broker.start()
    broker.read()
    await world.settle()
    await broker.run_until(10_100)
    truncated = sorted(world.objects)[0]
    behead(world, truncated)
    await broker.run_until(END)
    assert sorted(broker.delivered) == sorted(log.due)
    await broker.end()


@simulated
async def test_a_damaged_source_stops_a_merge_and_nothing_else() -> None:
    world, log = World(), Log()
    await written(world, log)
    flip_segment(world, sorted(world.objects)[1])
    broker = Broker(world, log, bucket_settings(min_count=5, cap=3, max_buckets=2), 2)
    await broker.start()
    broker.read()
    await world.settle()
    await everything_comes(broker, log)
    await broker.end()


@simulated
async def test_buckets_out_of_reach_at_recovery_are_rescanned() -> None:
    world, log = World(), Log()
    await written(world, log)
    name = sorted(world.objects)[2]
    broker = Broker(world, log, SETTINGS, 2, lambda n, what, called: "lost_before" if called == name else "ok")
    await broker.start()
    assert broker.tracker.stats()["recovery"]["unreachable"] == 1
    broker.read()
    await broker.run_until(world.now + 1)
    assert broker.tracker.count() == len(log.due)
    assert name in world.objects
    await broker.end()
    again = Broker(world, log, SETTINGS, 3)
    await again.start()
    again.read()
    await again.run_until(END, acknowledge=True)
    assert sorted(again.delivered) == sorted(log.due)
    await world.advance(END)
    assert world.objects == {}
    await again.end()


@simulated
async def test_delivered_message_of_a_lost_bucket_stays_untracked() -> None:
    """A column may still name the message when the bucket that held it as well is lost."""
    world, log = World(), Log()
    log.publish(1, [10_000 + entry for entry in range(5)])
    broker = Broker(world, log, SETTINGS, 1)
    await broker.start()
    broker.read()
    log.publish(2, [20_000 + entry for entry in range(5)])
    broker.read()
    await world.settle()
    bucket_set, core = broker.tracker._bucket_set, broker.tracker._core
    bucket = bucket_set.buckets[0]
    held = [place for place in log.due if bucket.start <= place <= bucket.end]
    places = np.array(held, np.int64)
    times = np.array([log.due[place] for place in held], np.int64)
    core.add_loose(SortedRun(Entries(times, places, (places & 0xFFFF).astype(np.uint32))))
    core.untrack(places[:2])
    counted = broker.tracker.count()
    bucket_set.lose(bucket, Corrupt("damaged"))
    assert core.index.contains(places).tolist() == [False, False, True, True, True]
    assert broker.tracker.count() == counted
    await broker.end()
