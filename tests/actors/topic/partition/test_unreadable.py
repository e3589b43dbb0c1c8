"""A run that nobody can read: it is named, it can be given up, and everything else of its partition goes on."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from sluice.actors.bookie import Bookie
from sluice.actors.bookie.journal import segment_name
from sluice.actors.messages import AcceptLoss, Explain, FindTime, Ping, ReadPayload, ReadRowIndex, Stats
from sluice.actors.ports import Address, Unknown
from sluice.actors.topic.partition.unreadable import ALARM_MS
from sluice.storage.errors import Fenced, Invalid, NotFound, Unavailable
from sluice.storage.format.position import entry_of, ledger_of, show
from tests.scenarios.key_shared.broker import TOPIC, Broker, play
from tests.sim.world import World


def damage(world: World, ledger: int, run: int) -> None:
    """The only copy of a run rots on its disk: a later read finds its checksum wrong."""
    (bookie,) = [actor for name in world.names() if isinstance(actor := world.process(name).actor, Bookie)]
    row = bookie.store.index._tail[ledger][run]
    world.disk(bookie.bookie_id).files[segment_name(row.segment)].data[row.offset + row.size - 3] ^= 255


async def owner(broker: Broker) -> Address:
    return await broker.directory.topic(TOPIC, 0)


async def ask(broker: Broker, request: Any) -> Any:
    """The topic's answer; waits for its owner."""
    told = ""
    for _ in range(50):
        try:
            reply = await broker.ports.net.call(await owner(broker), request, 5_000)
        except (Unavailable, Fenced) as error:
            told = str(error)
            await broker.quiet(100)
            continue
        if not isinstance(reply, Unknown):
            return reply
        await broker.directory.suspect(await owner(broker))
    raise AssertionError(f"{type(request).__name__} is not answered: {told}")


def topic_process(broker: Broker) -> Any:
    from sluice.actors.topic.topic import Topic

    return next(
        broker.world.process(name)
        for name in broker.world.names()
        if isinstance(broker.world.process(name).actor, Topic) and broker.world.is_up(name)
    )


async def new_owner(broker: Broker) -> None:
    """The topic's owner dies, and the next one has nothing in memory."""
    address = await owner(broker)
    broker.world.crash(topic_process(broker).name)
    await broker.directory.suspect(address)


async def three_runs(broker: Broker) -> list[int]:
    """Runs a b, c d, e f of one ledger; their positions."""
    for keys in ("ab", "cd", "ef"):
        await broker.publish(*keys)
    stats = json.loads((await ask(broker, Stats())).json)
    ledger = stats["ledgers"][0]["ledgerId"]
    return [(ledger << 32) + entry for entry in range(6)]


async def other_losses_are_refused(broker: Broker, at: list[int]) -> None:
    """Check that a loss is refused for runs that can be read, and for runs that do not exist."""
    ledger = ledger_of(at[0])
    for wrong in (at[0], at[5]):
        with pytest.raises(Invalid, match="can be read"):
            await ask(broker, AcceptLoss(ledger=ledger, entry=entry_of(wrong)))
    for place in ((ledger, 6), (ledger + 1, 0)):
        with pytest.raises(NotFound):
            await ask(broker, AcceptLoss(ledger=place[0], entry=place[1]))


def test_an_unreadable_run_is_given_up_and_the_others_come() -> None:
    async def scenario(broker: Broker) -> None:
        at = await three_runs(broker)
        ledger = ledger_of(at[0])
        damage(broker.world, ledger, 1)
        await new_owner(broker)
        await ask(broker, Stats())
        consumer = await broker.join("c", acking=False)  # so that nothing is trimmed
        await broker.until(lambda: len(consumer.got) == 2)
        await broker.quiet(ALARM_MS + 2_000)
        assert [message.key for message in consumer.got] == ["a", "b"]

        alive = await broker.ports.net.call(await owner(broker), Ping(), 1_000)
        assert not isinstance(alive, Unknown)
        assert f"2 messages from {show(at[2])} on cannot be read" in alive.problem
        assert f"accept-loss {TOPIC} --run {show(at[2])}" in alive.problem
        told = json.loads((await broker.ask(Explain(position=at[4]))).json)
        assert told["verdict"] == "not_read"
        assert f"run 1 of ledger {ledger} cannot be read" in told["reasons"][0]["text"]
        (row,) = json.loads((await ask(broker, Stats())).json)["unreadableRuns"]
        assert (row["run"], row["messages"]) == (show(at[2]), 2)

        await other_losses_are_refused(broker, at)
        await ask(broker, AcceptLoss(ledger=ledger, entry=3, dry_run=True))
        assert not json.loads((await ask(broker, Stats())).json)["givenUpRuns"]
        for _ in range(2):  # a repetition says the same
            given = json.loads((await ask(broker, AcceptLoss(ledger=ledger, entry=3))).json)
            assert (given["firstEntry"], given["lastEntry"], given["partition"]) == (2, 3, 0)
        await broker.until(lambda: len(consumer.got) == 4)
        assert [message.key for message in consumer.got] == ["a", "b", "e", "f"]
        await broker.quiet(1_000)
        assert (await broker.stats())["msgBacklog"] == 4

        for _ in range(2):  # also from the record, at the next owner
            with pytest.raises(NotFound, match=r"entries 2 to 3 of ledger .* were given up"):
                await ask(broker, ReadPayload(ledger=ledger, entry=2))
            rows = await ask(broker, ReadRowIndex(positions=np.array(at)))
            assert rows.positions.tolist() == [*at[:2], *at[4:]]
            assert (await ask(broker, FindTime(time=1 << 42))).position >= at[5]
            stats = json.loads((await ask(broker, Stats())).json)
            assert [lost["run"] for lost in stats["givenUpRuns"]] == [show(at[2])]
            await new_owner(broker)

    play(scenario)


def test_delivered_run_given_up_later_is_done() -> None:
    async def scenario(broker: Broker) -> None:
        at = await three_runs(broker)
        ledger = ledger_of(at[0])
        holder = await broker.join("c", acking=False)
        await broker.until(lambda: len(holder.got) == 6)
        damage(broker.world, ledger, 1)
        await new_owner(broker)
        holder.crash()
        await broker.until(lambda: not broker.world.is_up("c"))
        other = await broker.join("d")
        await broker.quiet(15_000)
        assert len(other.got) <= 2
        await ask(broker, AcceptLoss(ledger=ledger, entry=2))
        await broker.until(lambda: [message.key for message in other.got] == ["a", "b", "e", "f"], 30_000)
        await broker.quiet(1_000)
        stats = await broker.stats()
        assert (stats["msgBacklog"], stats["unackedMessages"]) == (0, 0)

    play(scenario, shared_from=0)  # every payload is asked of the topic


@pytest.mark.parametrize("silent", [0, 20_000])
def test_a_recovery_waits_for_a_damaged_run_until_it_is_given_up(silent: int) -> None:
    """silent: ms until its producer says something again; what it sent may be trimmed by then."""

    async def scenario(broker: Broker) -> None:
        at = await three_runs(broker)
        ledger = ledger_of(at[0])
        damage(broker.world, ledger, 2)
        address = await owner(broker)
        broker.world.crash(topic_process(broker).name)
        await broker.directory.suspect(address)
        await broker.quiet(ALARM_MS + 6_000)
        alive = await broker.ports.net.call(await owner(broker), Ping(), 1_000)
        assert not isinstance(alive, Unknown)
        assert alive.problem.startswith("the recovery waits: run 2 of ledger")
        assert f"which begins at {show(at[4])}" in alive.problem
        with pytest.raises(Unavailable, match="is being recovered, which waits: run 2"):
            await broker.ports.net.call(await owner(broker), Stats(), 10_000)
        given = await broker.ports.net.call(await owner(broker), AcceptLoss(ledger=ledger, entry=4), 10_000)
        assert not isinstance(given, Unknown)
        consumer = await broker.join("c")
        await broker.quiet(silent)
        await broker.world.within(60_000, broker.publish("g"), "nothing can be published")
        await broker.until(lambda: [message.key for message in consumer.got] == ["a", "b", "c", "d", "g"], 20_000)

    play(scenario)


def test_a_bookie_that_is_away_may_have_a_copy() -> None:
    async def scenario(broker: Broker) -> None:
        at = await three_runs(broker)
        await new_owner(broker)
        await ask(broker, Stats())
        bookie = next(n for n in broker.world.names() if isinstance(broker.world.process(n).actor, Bookie))
        broker.world.pause(bookie)
        with pytest.raises(Unavailable, match=r"may have a copy|not found now"):
            await broker.ports.net.call(await owner(broker), AcceptLoss(ledger=ledger_of(at[0]), entry=2), 60_000)
        broker.world.resume(bookie)
        consumer = await broker.join("c")
        await broker.until(lambda: len(consumer.got) == 6, 30_000)

    play(scenario)


def test_a_record_of_what_was_given_up_goes_with_its_ledger() -> None:
    from sluice.actors.ledger.record import Fragment, GivenUp, LedgerRecord, LedgerState, PartitionRecord
    from sluice.actors.messages import TopicSettings

    ledger = LedgerRecord(
        id=3, state=LedgerState.CLOSED, ensemble=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, 0, ("b",)),)
    )
    record = PartitionRecord(topic="t", partition=0, settings=TopicSettings(), ledgers=(ledger,))
    lost = GivenUp(3, 1, 2, 2, 99)
    given = record.with_given_up(lost).with_given_up(lost)
    assert given.given_up == (lost,)
    assert given.with_given_up(GivenUp(4, 0, 0, 1, 0)).given_up == (lost,)
    assert msgspec.convert(msgspec.to_builtins(given), PartitionRecord) == given
    assert given.without_ledgers([3]).given_up == ()
    assert given.without_ledgers([3]).ever_given_up, "its producers know of more than the topic does"
