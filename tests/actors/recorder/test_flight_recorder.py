"""The flight recorder writes a ring of files in a simulated process, and a replay of it makes equal decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sluice.actors.dispatcher.delivery.hot_keys import FEWEST, HELD_BACK_MS
from sluice.actors.dispatcher.takeover import ProcessRecorder
from sluice.actors.key_shared import NEW_OWNER, History
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ports import DiskFailed, InCommon, Ports
from sluice.actors.recorder import flight_recorder
from sluice.actors.recorder.flight_file import (
    EVERY_MS,
    NUMBERS,
    RecordedCalls,
    RecordedSubscription,
    assemble,
    pack,
    unpack,
)
from sluice.actors.recorder.flight_recorder import FlightRecorder
from sluice.actors.recorder.replay import replay
from sluice.actors.recorder.timeline import explain_at, timeline, waits
from sluice.storage.errors import Unavailable
from sluice.storage.format.hashing import masked_hash
from tests.scenarios.key_shared.broker import Broker, play

MEGABYTE = 1 << 20
LEASE_MS = 3_000


async def chunks_of(ports: Ports) -> list[RecordedCalls]:
    """Read all chunks on the recorder's disk."""
    disk = ports.disk
    assert disk is not None
    found: list[RecordedCalls] = []
    for name in await disk.names():
        found += unpack(await disk.read(name, 0, await disk.size(name)), name, whole=False)
    return found


def opened(broker: Broker, limit: int = 64 * MEGABYTE) -> Ports:
    """Let the next dispatcher's process have a recorder; its ports."""
    for name in broker.world.alive("dispatcher-"):
        broker.world.crash(name)
    ports = replace(broker.world.client("recorder"), disk=broker.world.disk("recorder"))
    broker.world.hosts["broker"] = InCommon()
    recorder = FlightRecorder()
    recorder.open(ports, limit)
    broker.world.hosts["broker"].of(ProcessRecorder).recorder = recorder
    return ports


def test_recording_of_a_process_replays_to_equal_decisions() -> None:
    async def scenario(broker: Broker) -> None:
        ports = opened(broker)
        first = await broker.join("first", queue=5, acking=False)
        for _ in range(4):
            await broker.publish(*(str(key) for key in range(20)))
        await broker.join("second", queue=5)
        await broker.quiet(1_000)
        first.ack()
        await broker.until(lambda: broker.seen() == 80)
        await first.nack(*first.held()[:3])
        await broker.quiet(4 * EVERY_MS)
        (found,) = replay(await chunks_of(ports)).values()
        assert (found.difference, found.gaps, found.missing) == (None, 0, 0)
        assert found.decisions >= 80
        assert found.violations == []

    play(scenario)


def test_recorder_that_is_closed_has_written_what_it_kept() -> None:
    async def scenario(broker: Broker) -> None:
        ports = opened(broker)
        only = await broker.join("only", queue=100)
        await broker.publish("1")
        await broker.until(lambda: len(only.got) == 1)
        recorder = broker.world.hosts["broker"].of(ProcessRecorder).recorder
        assert recorder is not None
        began = ports.clock.monotonic()
        await recorder.close()
        assert ports.clock.monotonic() - began < EVERY_MS
        assert not recorder.on
        (found,) = replay(await chunks_of(ports)).values()
        assert (found.difference, found.gaps, found.missing) == (None, 0, 0)
        assert found.decisions >= 1

    play(scenario)


def test_dead_owner_is_named_for_what_waits_for_the_next_one() -> None:
    async def scenario(broker: Broker) -> None:
        ports = opened(broker)
        only = await broker.join("only", queue=100)
        await broker.publish("1")
        await broker.until(lambda: len(only.got) == 1)
        await broker.quiet(3 * EVERY_MS)
        ports = opened(broker)
        await broker.publish(*(str(key) for key in range(50)))
        await broker.until(lambda: len(only.got) >= 51)
        await broker.quiet(3 * EVERY_MS)
        sums = waits(await chunks_of(ports), 0, ports.clock.now())
        assert sums.by_reason.most_common(1)[0][0] == NEW_OWNER
        assert sum(sums.by_reason.values()) == sums.whole

    play(scenario)


def test_a_full_ring_keeps_its_bytes_and_can_be_replayed() -> None:
    async def scenario(broker: Broker) -> None:
        ports = opened(broker, 64 * 1024)
        await broker.join("only")
        for _ in range(150):
            await broker.publish(*(str(key) for key in range(100)))
            await broker.quiet(EVERY_MS)
        disk = ports.disk
        assert disk is not None
        names = await disk.names()
        assert names[0] != "flight-00000001", "the oldest went"
        assert sum([await disk.size(name) for name in names]) <= 2 * 64 * 1024
        (found,) = replay(await chunks_of(ports)).values()
        assert found.difference is None
        assert found.decisions > 0

    play(scenario)


def test_alarm_and_its_end_are_remarks_without_the_key() -> None:
    async def scenario(broker: Broker) -> None:
        ports = opened(broker)
        slow = await broker.join("slow", queue=10, acking=False, taking=False)
        await broker.publish(*["secret"] * 2 * FEWEST, "cold")
        await broker.until(lambda: len(slow.got) == 10)
        await broker.quiet(2 * HELD_BACK_MS)

        async def remarks() -> list[str]:
            (found,) = replay(await chunks_of(ports)).values()
            return [text for _, text in found.remarks]

        (alarm,) = await remarks()
        assert alarm.startswith("alarm: ")
        assert str(int(masked_hash(b"secret"))) in alarm
        assert "secret" not in alarm
        slow.taking = slow.acking = True
        for part in {message.part for message in slow.got}:
            slow.parts[0].taken(part)
        slow.ack()
        await broker.until(lambda: broker.seen() == 2 * FEWEST + 1)
        await broker.quiet(2 * LEASE_MS)
        assert await remarks() == [alarm, "the alarm is over"]

    play(scenario, lease_ms=LEASE_MS)


def test_many_dispatchers_then_a_new_file_asks_some_in_turn() -> None:
    async def scenario(broker: Broker) -> None:
        ports = opened(broker, 8 * 40_000)
        recorder = broker.world.hosts["broker"].of(ProcessRecorder).recorder
        assert recorder is not None
        made = [
            recorder.decisions(
                ("t", number, "s", 1), SubscriptionSettings(), partition=number, first_consumer=1, history=History(1)
            )
            for number in range(2 * flight_recorder._SNAPSHOTS)
        ]
        snapshots = []
        for turn in range(60):
            for each in made:
                each.route(turn)
            await broker.quiet(2 * EVERY_MS)
            disk = ports.disk
            assert disk is not None
            newest = (await disk.names())[-1]
            chunks = unpack(await disk.read(newest, 0, await disk.size(newest)), newest)
            snapshots.append({chunk.of for chunk in chunks if any(call.name == "snapshot" for call in chunk)})
        asked = [each for each in snapshots if each]
        assert max(map(len, asked)) == flight_recorder._SNAPSHOTS
        assert len(set().union(*asked)) == len(made)

    play(scenario)


@pytest.mark.parametrize(("call", "error"), [("append", DiskFailed), ("names", Unavailable)])
def test_a_failed_disk_ends_the_recorder_and_no_delivery(call: str, error: type[Exception]) -> None:
    async def scenario(broker: Broker) -> None:
        ports = opened(broker)
        only = await broker.join("only")
        await broker.publish("1")
        disk = ports.disk
        assert disk is not None

        async def fails(*_: object, **__: object) -> int:
            raise error("broken")

        setattr(disk, call, fails)
        await broker.quiet(3 * EVERY_MS)
        await broker.publish("2")
        await broker.until(lambda: len(only.got) == 2)
        recorder = broker.world.hosts["broker"].of(ProcessRecorder).recorder
        assert isinstance(recorder, FlightRecorder)
        assert not recorder.on

    play(scenario)


def test_a_key_that_drained_is_explained_afterwards() -> None:
    async def scenario(broker: Broker) -> None:
        ports = opened(broker)
        keys = [str(key) for key in range(30)]
        slow = await broker.join("slow", acking=False)
        await broker.publish(*keys)
        await broker.until(lambda: len(slow.got) == 30)
        other = await broker.join("other")
        began = ports.clock.now()
        await broker.publish(*keys)
        await broker.quiet(2_000)
        at = ports.clock.now()
        await broker.quiet(500)
        slow.ack()
        await broker.until(lambda: broker.seen() == 60)
        await broker.quiet(3 * EVERY_MS)
        chunks, end = await chunks_of(ports), ports.clock.now()
        moved = next(message.key for message in other.got)
        hashed = masked_hash(moved.encode())
        answer = explain_at(chunks, hashed, at)
        assert answer["verdict"] == "draining"
        texts = [line.text for line in timeline(chunks, hashed, 0, end)]
        story = "\n".join(texts)
        assert "delivered to slow#" in story
        assert "waits: draining" in story
        assert "acknowledged by slow#" in story
        assert "delivered to other#" in story
        assert "ms of draining" in story
        assert story.index("waits: draining") < story.index("delivered to other#")
        sums = waits(chunks, began, end)
        assert next(iter(sums.by_reason.most_common()))[0] == "draining"
        assert sum(sums.by_reason.values()) == sums.whole >= sum(sums.by_consumer.values()) > 2_000
        assert next(iter(sums.by_holder)).startswith("slow#")

    play(scenario)


@pytest.mark.parametrize("high", [2, 1 << 32])
def test_chunk_of_many_hashes_is_kept_whole_in_few_bytes(high: int) -> None:
    hashes = np.random.default_rng(1).integers(0, high, 20_000).astype(np.uint32)
    call = (NUMBERS["append"], (np.arange(20_000), hashes), None, None, "")
    made = pack(RecordedCalls(RecordedSubscription("t", 0, "s", 1), 7, 9, [call]))
    assert len(made) < (hashes.nbytes + 200 if high > 2 else hashes.nbytes // 4)
    (chunk,) = unpack(assemble([made]), "a file")
    (found,) = chunk
    positions, read = found.arguments
    assert (chunk.first, found.name, positions.tolist()) == (7, "append", list(range(20_000)))
    assert np.array_equal(read, hashes)
