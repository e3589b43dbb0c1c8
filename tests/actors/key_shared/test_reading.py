"""RR, RS-3 to RS-13, CL-3, SD-1, SD-2, FT-5: the dispatcher's passes and reads, and the moments without any.

Upstream reads for a redelivery as well as for new messages, so it has to cancel a parked read of new ones when a
message waits. Here waiting messages are in memory: a pass sends them during any read, and at most one read is under
way. The real actors do it, in virtual time.
"""

from __future__ import annotations

from typing import Any

import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.dispatcher.delivery.reader import RETRY_MOST
from sluice.actors.messages import Attach, Poll, ReadIndex
from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.storage.errors import Conflict, Corrupt, Fenced, Overloaded, SluiceError, Unavailable
from tests.actors.key_shared.driver import keys_by_owners
from tests.scenarios.key_shared.broker import CONTROLLER, KEYS, Broker, Client, play

FIVE = KEYS[:5]
OWNERS = keys_by_owners(("c1",), ("c2",))
MOVED, STAYED = OWNERS["c1", "c2"], OWNERS["c1", "c1"]


async def dispatcher(broker: Broker) -> Dispatcher:
    """Return the dispatcher itself."""
    process = broker.world.at(await broker.address())
    assert process is not None
    assert isinstance(process.actor, Dispatcher)
    return process.actor


async def processes(broker: Broker) -> tuple[str, str]:
    """Return the names of the processes of the topic and of the dispatcher."""
    topic = await broker.directory.topic("orders", 0)
    return tuple(address.partition("/")[2].rpartition(".")[0] for address in (topic, await broker.address()))  # type: ignore[return-value]


class Passes:
    """The times at which the dispatcher heard of done messages (ms), and its passes: (ms, messages sent)."""

    def __init__(self, broker: Broker, actor: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[int] = []
        self.seen: list[tuple[int, int]] = []
        core, loop = actor.parts.context.core, broker.world.loop
        route, acknowledge = core.route, core.acknowledge_soon

        def routed(now: int) -> Any:
            sent = route(now)
            self.seen.append((loop.now, sum(len(share.positions) for share in sent.shares)))
            return sent

        def acknowledged(*report: Any, **when: Any) -> None:
            self.heard.append(loop.now)
            acknowledge(*report, **when)

        monkeypatch.setattr(core, "route", routed)
        monkeypatch.setattr(core, "acknowledge_soon", acknowledged)


async def parked(broker: Broker) -> tuple[Client, Client]:
    """Return c1, which holds three messages, and c2, which owns the hashes of two of them by now.

    One more message of each of the two hashes waits, and so does a read at the end.
    """
    first = await broker.join("c1", acking=False)
    await broker.publish(MOVED[0], MOVED[1], STAYED[0])
    await broker.until(lambda: len(first.got) == 3)
    second = await broker.join("c2")
    await broker.publish(MOVED[0], MOVED[1])
    await broker.quiet(100)
    assert second.got == []
    assert (await broker.stats())["pendingRead"]
    return first, second


def reads(broker: Broker) -> int:
    """Return how many reads were begun so far."""
    return broker.world.network.calls["ReadIndex"]


def test_rr_1_without_an_interval_it_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        first, second = await parked(broker)
        passes = Passes(broker, await dispatcher(broker), monkeypatch)
        first.ack()
        await broker.until(lambda: len(second.got) == 2)
        assert passes.seen[0] == (passes.heard[0], 2)

    play(scenario, unblocking_interval_ms=0)


def test_rr_2_and_rr_6_an_interval_is_looked_at_once_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: Broker) -> None:
        first, second = await parked(broker)
        passes = Passes(broker, await dispatcher(broker), monkeypatch)
        second.acking = False
        for message in list(first.got):
            first.ack(message)
            await broker.quiet(30)
        await broker.until(lambda: len(second.got) == 2)
        assert len(passes.heard) == 3, "three reports"
        assert passes.heard[2] - passes.heard[0] < 100
        assert passes.seen[0] == (passes.heard[0] + 100, 2), "one look"
        await broker.quiet(100)
        assert not {at for at, _ in passes.seen} & {at + 100 for at in passes.heard[1:]}, "and none for the others"
        second.ack()
        await broker.until(lambda: len(passes.heard) == 4)
        looked = len(passes.seen)
        await broker.quiet(150)
        assert [at for at, _ in passes.seen[looked:]] == [passes.heard[3] + 100], "the next report begins the next one"

    play(scenario, unblocking_interval_ms=100)


def test_rr_3_what_waits_goes_out_past_a_parked_read() -> None:
    async def scenario(broker: Broker) -> None:
        first, second = await parked(broker)
        before = reads(broker)
        first.ack(first.got[0])
        await broker.until(lambda: len(second.got) == 1, 100)
        assert reads(broker) == before, "nothing had to be read for it"
        assert (await broker.stats())["pendingRead"], "and the parked read stays"

    play(scenario)


def test_rr_4_when_nothing_waits_a_parked_read_is_left_alone() -> None:
    async def scenario(broker: Broker) -> None:
        first, _ = await parked(broker)
        before = reads(broker)
        first.ack(first.got[2])
        await broker.quiet(300)
        assert reads(broker) == before
        generation = (await dispatcher(broker)).parts.reader.generation
        await broker.publish(STAYED[1])
        await broker.until(lambda: len(first.got) == 4, 100)
        assert (await dispatcher(broker)).parts.reader.generation == generation, "the answer of the parked read counted"

    play(scenario)


def test_rr_5_a_read_answered_meanwhile_is_followed_by_one_more() -> None:
    async def scenario(broker: Broker) -> None:
        first, second = await parked(broker)
        before = reads(broker)
        first.ack(first.got[0], first.got[1])
        await broker.publish(STAYED[1])
        await broker.until(lambda: (len(first.got), len(second.got)) == (4, 2), 200)
        await broker.quiet(100)
        assert reads(broker) == before + 1
        assert (await broker.stats())["pendingRead"]

    play(scenario)


def test_rs_1_when_shared_redelivery_needs_no_read() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", acking=False)
        await broker.publish(*FIVE)
        await broker.until(lambda: len(client.got) == 5)
        await broker.quiet(100)
        before = reads(broker)
        await client.nack(*client.got[:2])
        await broker.until(lambda: len(client.got) == 7, 100)
        assert [message.again for message in client.got[5:]] == [1, 1]
        assert reads(broker) == before
        assert (await broker.stats())["pendingRead"]
        await broker.publish(*FIVE)
        await broker.until(lambda: len(client.got) == 12, 100)
        await broker.quiet(50)
        assert reads(broker) == before + 1, "the parked one was answered, and the next one is parked"

    play(scenario, type="shared")


def test_rs_3_reads_of_new_and_of_lost_exclude_each_other() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", queue=20)
        actor = await dispatcher(broker)
        under_way: list[int] = []
        most: list[int] = []
        topic = broker.world.at(await broker.directory.topic("orders", 0))
        assert topic is not None
        answer = topic.actor.on_read_index  # type: ignore[union-attr]

        async def watched(request: ReadIndex) -> Reply:
            under_way.append(request.start)
            most.append(len(under_way))
            try:
                reply: Reply = await answer(request)
                return reply
            finally:
                under_way.remove(request.start)

        topic.actor.on_read_index = watched  # type: ignore[union-attr]
        await broker.publish(*KEYS[:100], delay=60_000)
        await broker.quiet(500)
        for turn in range(20):
            actor.parts.reader._rescans.append((0, actor.parts.reader.position - 1))
            await broker.publish(*KEYS[turn * 5 : turn * 5 + 5])
            assert (await broker.stats())["pendingRead"]
            await broker.quiet(37)
        await broker.until(lambda: len(client.got) == 100)
        await broker.until(lambda: not actor.parts.reader._rescans)
        assert len(most) > 40
        assert max(most) == 1

    play(scenario)


async def refusing(broker: Broker, error: SluiceError, times: int) -> None:
    """Refuse the next reads."""
    topic = broker.world.at(await broker.directory.topic("orders", 0))
    assert topic is not None
    answer = topic.actor.on_read_index  # type: ignore[union-attr]
    left = [times]

    async def refused(request: ReadIndex) -> Reply:
        if left[0]:
            left[0] -= 1
            raise error
        reply: Reply = await answer(request)
        return reply

    topic.actor.on_read_index = refused  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [Unavailable, Overloaded, Fenced, Conflict, Corrupt])
def test_rs_4_and_rs_6_a_read_and_a_controller_that_refuse(error: type[SluiceError]) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*FIVE)
        await refusing(broker, error("once more"), 3)
        controller = broker.world.process("controller").actor
        suspected: list[str] = []

        async def no_time(request: Request[Any]) -> Reply:
            suspected.append(type(request).__name__)
            raise Unavailable("the metadata store is away")

        controller.on_suspect = no_time  # type: ignore[union-attr]
        client = await broker.join("c1")
        await broker.until(lambda: len(client.got) == 5, 60_000)
        assert bool(suspected) == (error is Fenced), "dealing with the failure failed, too"

    play(scenario)


def test_rs_12_a_read_lost_while_it_waits_needs_no_push() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", taking=False)
        await broker.publish(*FIVE)
        await broker.until(lambda: len(client.got) == 5)
        await broker.quiet(100)
        assert (await broker.stats())["pendingRead"]
        topic, _ = await processes(broker)
        broker.world.crash(topic)  # the answer to the read is lost with it
        await broker.publish(*FIVE)
        await broker.until(lambda: len(client.got) == 10, 30_000)

    play(scenario)


async def failing(broker: Broker) -> tuple[Client, int]:
    """Let one read after another fail. Return the consumer and the number of reads begun so far."""
    client = await broker.join("c1")
    await broker.publish(*FIVE)
    await broker.until(lambda: len(client.got) == 5)
    await refusing(broker, Unavailable("out of reach"), 1_000_000)
    before = reads(broker)
    await broker.quiet(20 * RETRY_MOST)
    assert reads(broker) > before + 10, "it tries again and again"
    return client, reads(broker)


def test_rs_13_a_failed_read_of_a_replaced_owner_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: Broker) -> None:
        # A host may let an actor that has stopped live on for a while.
        monkeypatch.setattr(broker.world, "stopping", lambda process: None)
        await failing(broker)
        broker.world.stop(CONTROLLER)  # nobody starts another owner, whose reads would be counted as well
        (await dispatcher(broker)).end("there is a newer owner")
        await broker.quiet(RETRY_MOST)
        before = reads(broker)
        await broker.quiet(20 * RETRY_MOST)
        assert reads(broker) == before
        await broker.world.restart("controller")

    play(scenario)


@pytest.mark.parametrize("policy", ["read_position", "last_sent_position", "draining_hashes"])
def test_cl_3_a_failed_read_without_consumers_is_not_repeated(policy: str) -> None:
    async def scenario(broker: Broker) -> None:
        client, _ = await failing(broker)
        await client.close()
        await broker.quiet(RETRY_MOST)
        before = reads(broker)
        await broker.quiet(20 * RETRY_MOST)
        assert reads(broker) == before
        assert not (await broker.stats())["pendingRead"]

    play(scenario, policy=policy)


def test_sd_1_a_closed_dispatcher_turns_consumers_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(broker.world, "stopping", lambda process: None)
        address, actor = await broker.address(), await dispatcher(broker)
        refusals: list[str] = []

        async def attach(name: str) -> None:
            reply = await broker.ports.net.call(address, Attach(consumer=name, incarnation=f"{name}.0"), 5_000)
            assert isinstance(reply, Unknown)
            refusals.append(name)

        broker.world.meta.trouble.faults.delay_ms = (200, 200)
        broker.world.background(attach("under-way"), "attach")
        await broker.quiet(100)
        assert actor.parts.context.state.membership.get("under-way.0"), "it waits until its membership is durable"
        actor.end("it is closed")
        await attach("late")
        await broker.until(lambda: len(refusals) == 2)
        assert sorted(refusals) == ["late", "under-way"]
        assert (actor.parts.context.core.consumers(), actor.parts.context.sessions.all()) == ([], [])
        assert actor.parts.context.state.membership.get("late.0") is None

    play(scenario)


def test_sd_2_of_a_read_only_what_is_delivered_counts() -> None:
    """Upstream has markers of its own among the messages. Here the dispatcher skips delayed and acknowledged ones."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", queue=100, acking=False, taking=False)
        await broker.publish(*KEYS[:6], delay=[0, 0, 60_000, 0, 0, 0])
        await broker.until(lambda: len(client.got) == 5)
        await broker.quiet(200)
        row = (await broker.consumer_stats())["c1"]
        assert (row["msgOutCounter"], row["unackedMessages"], row["availablePermits"]) == (5, 5, 95)
        stats = await broker.stats()
        assert (stats["msgDelayed"], stats["msgBacklog"], stats["msgInReplay"]) == (1, 6, 0)

    play(scenario)


def test_ft_5_permits_of_a_refused_poll_count_for_nothing() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c1", queue=10, acking=False, taking=False)
        await broker.quiet(100)
        address, actor = await broker.address(), await dispatcher(broker)
        session = actor.parts.context.sessions.all()[0]
        late = Poll(session=session.number, turn=session.turn - 1, granted=1_000_000)
        with pytest.raises(Conflict):
            await broker.ports.net.call(address, late, 1_000)
        assert (await broker.consumer_stats())["c1"]["availablePermits"] == 10
        await client.close()
        await broker.join("c2", queue=10, called="c1", acking=False, taking=False)
        with pytest.raises(Fenced):
            await broker.ports.net.call(address, Poll(session=session.number, turn=99, granted=1_000_000), 1_000)
        await broker.quiet(100)
        rows = (await broker.stats())["consumers"]
        assert [(row["consumerName"], row["availablePermits"]) for row in rows] == [("c1", 10)]

    play(scenario)
