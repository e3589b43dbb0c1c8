"""The crash matrix: a life ends, or a store lies, at every single call of every flow; then a new life takes over.

A flow seals, merges, loads, trims, recovers and deletes. It first runs undisturbed to count its calls. Then, for each
call and each fault, it runs again with that fault, and a second owner recovers and finishes. Afterwards every message
was delivered, none twice within one life or after its acknowledgement was durable, none early, no object is left over
after the collector ran, and every counter equals a recount. The pairs (a second fault while the second owner recovers)
run when DELAYED_PAIRS is set; a stride through them runs always.
"""

import os
from collections.abc import Callable

import pytest

from tests.actors.delayed.broker import Broker, Log, bucket_settings
from tests.actors.delayed.world import Fault, World
from tests.sim.loop import run, simulated

FAULTS: tuple[Fault, ...] = ("crash_before", "crash_after", "lost_before", "lost_after", "late")
LEDGERS, PER_LEDGER = 9, 4
END = 3_000
QUIET = 120_000
SEED = 3
STARTED = 3
"""Calls until the first collection is over."""
PAIR_STRIDE = 1 if os.environ.get("DELAYED_PAIRS") else 199


def new_log() -> Log:
    log = Log()
    for ledger in range(1, LEDGERS + 1):
        log.publish(ledger, [(ledger * 7 + entry * 5) % 29 * 60 + 40 for entry in range(PER_LEDGER)])
    return log


async def flow(broker: Broker) -> None:
    """Seal, merge, deliver a part with loads, trim, and go on sealing."""
    if not await broker.start():
        return
    broker.read()
    await broker.run_until(broker.world.now + 1)
    await broker.run_until(700, acknowledge=True)
    await broker.run_until(1200)


async def last_owner(world: World, log: Log, epoch: int) -> None:
    """Nothing fails any more: deliver everything, and look at what is left."""
    broker = Broker(world, log, SETTINGS, epoch)
    assert await broker.start()
    before = dict(log.acknowledged)
    broker.read()
    await broker.run_until(world.now + END, acknowledge=True)
    assert not [place for place in broker.delivered if place in before], "an acknowledged message came again"
    assert sorted(log.acknowledged) == sorted(log.due), "a message is missing"
    await world.advance(QUIET)
    broker.recount()
    assert broker.tracker.count() == 0
    assert broker.tracker.stats()["lost_buckets"] == 0
    assert broker.tracker._bucket_set.named == {}
    assert world.objects == {}, "objects are left over"
    await broker.end()


SETTINGS = bucket_settings(min_count=5, cap=3, max_buckets=2)


async def one_life(world: World, log: Log, epoch: int, at: int | None, fault: Fault) -> int:
    """Run the flow with one fault; returns how many calls it made."""

    def script(n: int, what: str, name: str) -> Fault:
        return fault if n == at else "ok"

    broker = Broker(world, log, SETTINGS, epoch, script)
    await flow(broker)
    if not broker.life.dead:
        broker.recount()
    calls = len(broker.life.calls)
    await broker.end()
    return calls


def calls_of_a_life() -> int:
    """How many there are without a fault; as a seed replays exactly, the n-th is the same one in every run."""

    async def life() -> int:
        return await one_life(World(), new_log(), 1, None, "ok")

    return run(SEED, life)


def play(*faults: tuple[int, Fault]) -> None:
    """A life with each of these faults, and then the last owner."""

    async def lives() -> None:
        world, log = World(), new_log()
        for epoch, (at, fault) in enumerate(faults, 1):
            await one_life(world, log, epoch, at, fault)
        await last_owner(world, log, len(faults) + 1)

    run(SEED, lives)


@simulated
async def test_the_flow_touches_everything() -> None:
    world = World()
    broker = Broker(world, new_log(), SETTINGS, 1)
    await flow(broker)
    kinds = {what for what, _ in broker.life.calls}
    assert kinds == {"read", "create", "put", "get", "names", "delete"}
    operations = broker.tracker.stats()["pulsar_delayed_message_index_bucket_op_count"]
    assert all(operations[kind]["succeed"] > 0 for kind in ("create", "load", "delete", "merge"))
    await broker.end()
    await last_owner(world, broker.log, 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_single_fault(fault: Fault) -> None:
    calls = calls_of_a_life()
    assert calls > 25
    for at in range(calls):
        play((at, fault))


@pytest.mark.parametrize("fault", FAULTS)
def test_pairs_of_faults(fault: Fault) -> None:
    calls = calls_of_a_life()
    pairs = [(first, second, other) for first in range(calls) for second in range(calls) for other in FAULTS]
    for first, second, other in pairs[FAULTS.index(fault) * 211 % PAIR_STRIDE :: PAIR_STRIDE]:
        play((first, fault), (second, other))


@pytest.mark.parametrize("what", ["put", "get", "create", "names", "delete", "read"])
@simulated
async def test_a_store_that_is_away_for_a_while(what: str) -> None:
    world, log = World(), new_log()

    def script(n: int, called: str, name: str) -> Fault:
        return "lost_after" if called == what and n > STARTED and world.now < 10_000 else "ok"

    await away_and_back(world, log, script)


@pytest.mark.parametrize("what", ["put", "get", "create", "names", "delete", "read"])
@simulated
async def test_a_store_that_refuses_its_owner_for_a_while(what: str) -> None:
    world, log = World(), new_log()

    def script(n: int, called: str, name: str) -> Fault:
        return "refused" if called == what and n > STARTED and world.now < 10_000 else "ok"

    broker = await away_and_back(world, log, script)
    assert "credentials" in broker.tracker.stats()["last_error"]


async def away_and_back(world: World, log: Log, script: Callable[[int, str, str], Fault]) -> Broker:
    """Everything is delivered and collected although a store did not serve for a while."""
    broker = Broker(world, log, SETTINGS, 1, script)
    await flow(broker)
    await broker.run_until(QUIET, acknowledge=True)
    assert sorted(log.acknowledged) == sorted(log.due)
    await world.advance(QUIET)
    broker.recount()
    assert world.objects == {}
    await broker.end()
    return broker


@simulated
async def test_an_old_owner_wakes_up_and_is_fenced() -> None:
    world, log = World(), new_log()
    old = Broker(world, log, SETTINGS, 1)
    await old.start()
    old.read()
    await world.settle()
    new = Broker(world, log, SETTINGS, 2)
    await new.start()
    new.read()
    await world.settle()
    named = dict(new.tracker._bucket_set.named)
    old.tracker.trim(max(log.due))
    await world.advance(1)
    assert old.tracker.failed is not None
    assert old.signals > 0
    assert old.take() == []
    assert new.tracker._bucket_set.named == named
    assert all(new.tracker._objects.name(key) in world.objects for key in named)
    await old.end()
    await new.run_until(END, acknowledge=True)
    assert sorted(log.acknowledged) == sorted(log.due)
    await world.advance(QUIET)
    assert world.objects == {}
    await new.end()
