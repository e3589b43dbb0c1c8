"""Moving a subscription: the end of a skip, and the state after an outage during a seek or a clear."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.dispatcher.delivery.reader import READ_WAIT
from sluice.actors.dispatcher.operator.seek import behind, check_time, named_position
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    DeleteSubscription,
    Ends,
    Explain,
    Progress,
    SubscriptionSettings,
    TopicSettings,
    request_of,
    shown,
)
from sluice.actors.ports import Address
from sluice.actors.ports.wire import Request
from sluice.actors.runtime.waiting import Signal
from sluice.actors.topic.topic import Topic
from sluice.storage.errors import Conflict, Fenced, Invalid, SluiceError, Unavailable
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import parse, position, show
from tests.actors.dispatcher.late_topic import begun_and_waiting
from tests.scenarios.key_shared.broker import Broker, play
from tests.sim.world import Process, World
from tests.sim.worlds.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Course, Size
from tests.sim.worlds.clients import Traffic


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.sets(st.integers(0, 23)),
    st.integers(1, 30),
)
def test_a_skip_counts_open_messages_over_ledger_ends(counts: list[int], done: set[int], messages: int) -> None:
    """For any ledgers, empty ones too, and any acknowledgements, a skip takes the wanted number or all there are."""
    every = [position(ledger * 2 + 1, entry) for ledger, count in enumerate(counts) for entry in range(count)]
    chain: list[tuple[int, int | None]] = [(ledger * 2 + 1, count - 1) for ledger, count in enumerate(counts)]
    chain[-1] = (chain[-1][0], None)
    cursor = Cursor()
    cursor.chain(chain, complete=True)
    acknowledged = [every[index] for index in sorted(done) if index < len(every)]
    cursor.acknowledge(np.array(acknowledged, np.int64))
    end = position(chain[-1][0], counts[-1])
    ends = Ends(first=position(1, 0), last=every[-1] if every else -1, next=end, ledgers=chain)
    target = behind(cursor, ends, messages)
    open_ones = [at for at in every if at not in set(acknowledged)]
    assert len([at for at in open_ones if at < target]) == min(messages, len(open_ones))
    assert target <= end or not every


KEPT = Ends(first=position(3, 2), last=position(8, 9), next=position(8, 10), ledgers=[(3, 7), (5, -1), (8, None)])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("earliest", position(3, 2)), ("latest", position(8, 10)), ("1:4", position(3, 2)), ("3:0", position(3, 2)),
        ("3:7", position(3, 7)), ("3:8", position(3, 8)), ("5:0", position(5, 0)), ("8:4", position(8, 4)),
        ("8:10", position(8, 10)),
    ],
)  # fmt: skip
def test_a_place_in_the_topic_is_found(wanted: str, found: int) -> None:
    """A trimmed position means the oldest kept one. The place behind a ledger's last message is valid."""
    assert named_position(wanted, KEPT) == found


@pytest.mark.parametrize("wanted", ["4:0", "99:0", "3:9", "5:2", "8:11", "2147483647:4294967295", "", "5", "x:y"])
def test_a_place_that_never_was_is_refused(wanted: str) -> None:
    """The request does not silently mean the end of the topic."""
    with pytest.raises(Invalid):
        named_position(wanted, KEPT)


def test_a_time_in_nanoseconds_is_refused() -> None:
    """A time in another unit is milliseconds of the far future, and no place to go."""
    now = 1_800_000_000_000
    check_time(now + 30_000, now)
    for time in (now * 1000, now * 1_000_000, now + 3_600_000):
        with pytest.raises(Invalid, match="milliseconds since 1970"):
            check_time(time, now)


@pytest.mark.parametrize(
    ("verb", "arguments"), [("seek", {"message_id": "earliest"}), ("clear_backlog", {})], ids=["seek", "clear"]
)
def test_an_outage_of_the_store_leaves_nothing_half_done(verb: str, arguments: dict[str, Any]) -> None:
    """The operator gets an error. Afterwards every message that is not done is delivered (L1, L3)."""
    settings = SubscriptionSettings(
        initial_position="earliest", delayed_tracker="bucket", delayed_delivery_min_index_count_per_bucket=5
    )
    traffic = Traffic(
        TOPIC, 1, SUBSCRIPTION, settings, CONTROLLER, sends=60, delayed=0.3, delay_ms=2_000, negative=0.0, think_ms=30
    )
    topic = TopicSettings(partitions=1, ensemble=1, write_quorum=1, ack_quorum=1, retention_ms=3_600_000)
    world = World(7)
    size = Size(1, topic, traffic, producers=1, consumers=2, trouble_ms=8_000, dense=False)
    course = Course(world, [], {}, size)
    course.excused |= {"unexplained_redelivery", "acked_redelivered", "lost"}

    def cut_when_told(caller: Process, to: str, request: Request[Any], outcome: object) -> None:
        """Cut the store off as soon as the topic has noted the seek."""
        if isinstance(request, Progress) and request.firm:
            world.meta.trouble.cut["broker-0"] = 1

    async def interrupt() -> None:
        await world.loop.pause(3_000)
        ports = world.client("operator")
        address = await Directory(ports, CONTROLLER).dispatcher(TOPIC, 0, SUBSCRIPTION, settings)
        if verb == "seek":
            world.witness = cut_when_told
        else:
            world.meta.trouble.cut["broker-0"] = 1
        with pytest.raises(Unavailable):
            await ports.net.call(address, request_of(verb, arguments), 20_000)
        del world.meta.trouble.cut["broker-0"]
        if verb == "clear_backlog":
            course.past.finish([(send[2], send[3]) for send in course.past.sends])
        course.counters["interrupted"] = 1

    course.begun = lambda: world.background(interrupt(), "an outage")
    world.play(lambda _: course.run())
    assert course.counters["interrupted"] == 1
    assert course.counters["messages"] > 100


@pytest.mark.parametrize("verb", ["clear_backlog", "skip", "expire", "seek"])
@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_goes_out_behind_a_skip_that_is_not_durable(verb: str, replaced: bool) -> None:
    """The next owner does not know of the skip: its messages would come behind later ones of their key (promise 3)."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False, taking=False)
        await broker.publish("k", "k", "k")
        await broker.until(lambda: len(client.got) == 1)
        address, told = await broker.address(), Signal()
        before = broker.ports.clock.now() + 1
        arguments: dict[str, dict[str, Any]] = {
            "skip": {"messages": 9}, "expire": {"before": before}, "seek": {"message_id": "latest"}
        }  # fmt: skip

        async def ask() -> None:
            with contextlib.suppress(SluiceError):
                await broker.ports.net.call(address, request_of(verb, arguments.get(verb, {})), 60_000)
            told.set()

        broker.world.meta.trouble.cut["broker"] = 1
        broker.ports.spawn(ask(), "skip")
        await broker.quiet(200)
        await broker.publish("k")
        client.taking = client.acking = True
        client.ack(client.got[0])
        client.parts[0].taken(client.got[0].part)
        await broker.quiet(500)
        assert len(client.got) == 1, "it is not durable that those before it need not come"
        why = await broker.ask(Explain(key=b"k"))
        assert "not_durable" in [reason["gate"] for reason in shown(why)["reasons"]]
        if replaced:
            broker.world.crash(broker.world.alive("dispatcher-")[0])
        broker.world.meta.trouble.cut.clear()
        await broker.until(lambda: 3 in [message.number for message in client.got], 60_000)
        await told.wait(broker.ports)
        came = sorted({message.number for message in client.got})
        assert came == ([0, 1, 2, 3] if replaced else [0, 3])

    play(scenario, lease_ms=20_000)


@pytest.mark.parametrize("pause", range(0, 1_500, 75))
def test_target_of_a_confirmed_seek_is_not_trimmed(pause: int) -> None:
    """The message at the answered position comes, whenever the topic hears of the subscription's progress."""

    async def scenario(world: World) -> None:
        broker = Broker(world, 1, SubscriptionSettings(initial_position="earliest"))
        broker.topic = msgspec.structs.replace(broker.topic, roll_entries=2)
        await broker.open()
        client = await broker.join("c")
        for key in "abcdefgh":
            await broker.publish(key)
        await broker.until(lambda: len(client.got) == 8)
        await broker.quiet(pause)
        sought = await broker.admin("seek", message_id=show(client.got[3].position))
        await broker.publish("last")
        await broker.until(lambda: client.came()[-1:] == ["last"])
        assert client.got[8].position == max(parse(sought["position"]), client.got[3].position)

    World(pause).play(scenario)


def test_no_statement_from_before_a_seek_is_sent_behind_it() -> None:
    """The progress becomes durable, then an operator seeks back, then the topic's report is due."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish(*"abcd")
        await broker.until(lambda: len(client.got) == 4)
        actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        topic = broker.world.process(broker.world.alive("topic-")[0]).actor
        assert isinstance(actor, Dispatcher)
        assert isinstance(topic, Topic)
        context, waiting = actor.parts.context, Signal()
        owner = context.topic.owner

        async def slow() -> Address:
            address = await owner()
            if context.store.settled and not context.reporter.reported():
                waiting.set()
                await broker.quiet(300)
            return address

        context.topic.owner = slow  # type: ignore[method-assign]
        client.ack()
        await waiting.wait(broker.ports)
        context.topic.owner = owner  # type: ignore[method-assign]
        at = client.got[0].position
        client.acking = False
        await broker.admin("seek", message_id=show(at))
        assert topic._maintenance.marks[SUBSCRIPTION] == at - 1
        for _ in range(200):
            await broker.quiet(5)
            assert topic._maintenance.marks[SUBSCRIPTION] == at - 1

    play(scenario)


def test_a_seek_does_not_wait_for_the_read_at_the_end() -> None:
    """A read that waits for new messages is void at once: the sought messages come long before its end."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish(*"abcd")
        await broker.until(lambda: len(client.got) == 4)
        for first in (1, 0, 2):
            await broker.quiet(50)  # the read waits again
            before = len(client.got)
            await broker.admin("seek", message_id=show(client.got[first].position))
            await broker.until(lambda count=before + 4 - first: len(client.got) == count, READ_WAIT // 2)  # type: ignore[misc]
            assert client.came()[before:] == list("abcd")[first:]

    play(scenario)


def test_a_seek_that_waited_does_not_undo_a_later_one() -> None:
    """The first seek waits for the topic while a second one is answered. The second one holds."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish(*"abcd")
        await broker.until(lambda: len(client.got) == 4)
        actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        assert isinstance(actor, Dispatcher)
        reporter, waits, answered = actor.parts.context.reporter, Signal(), Signal()
        secure = reporter.secure

        async def late(target: int) -> int:
            waits.set()
            await answered.wait(broker.ports)
            return await secure(target)

        async def first() -> None:
            with pytest.raises(Conflict, match="asked for later"):
                await broker.admin("seek", message_id=show(client.got[3].position))
            refused.set()

        refused = Signal()
        reporter.secure = late  # type: ignore[method-assign]
        broker.ports.spawn(first(), "first")
        await waits.wait(broker.ports)
        reporter.secure = secure  # type: ignore[method-assign]
        await broker.admin("seek", message_id=show(client.got[1].position))
        answered.set()
        await refused.wait(broker.ports)
        await broker.until(lambda: len(client.got) == 7)
        assert client.came()[4:] == list("bcd")

    play(scenario)


@pytest.mark.parametrize("waits", ["seek", "clear_backlog"])
def test_a_seek_and_a_clear_hold_in_the_order_of_asking(waits: str) -> None:
    """The first request waits for the topic while the other one is answered. The answered one holds."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish(*"abcd")
        await broker.until(lambda: len(client.got) == 4)
        requests = {"seek": {"message_id": show(client.got[2].position)}, "clear_backlog": {}}
        refused = Signal()

        async def first() -> None:
            with pytest.raises(Conflict, match="asked for later"):
                await broker.admin(waits, **requests[waits])
            refused.set()

        answered = await begun_and_waiting(broker, first())
        (other,) = {*requests} - {waits}
        await broker.admin(other, **requests[other])
        answered.set()
        await refused.wait(broker.ports)
        await broker.quiet(1_000)
        assert (await broker.stats())["msgBacklog"] == (2 if other == "seek" else 0)

    play(scenario)


@pytest.mark.parametrize(("verb", "arguments"), [("clear_backlog", {}), ("skip", {"messages": 3})])
def test_message_published_after_a_clear_stays(verb: str, arguments: dict[str, Any]) -> None:
    """An earlier request waited for the topic. Its caller gave up and cleared the backlog."""

    async def scenario(broker: Broker) -> None:
        await broker.publish(*"abcd")
        told = list[Any]()

        async def first() -> None:
            told.append(await broker.admin(verb, **arguments))

        answered = await begun_and_waiting(broker, first())
        cleared = await broker.admin("clear_backlog")
        assert cleared["skipped"] == 4
        await broker.publish("e")
        answered.set()
        await broker.until(lambda: bool(told))
        assert told == [{**cleared, "skipped": 0}]
        client = await broker.join("c")
        await broker.until(lambda: client.came() == ["e"])

    play(scenario)


@pytest.mark.parametrize("meanwhile", ["acknowledge", "seek"])
def test_message_done_meanwhile_did_not_expire(meanwhile: str) -> None:
    """Before an expiry is durable, messages are acknowledged or reopened. Neither changes how many expired."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish(*"ab")
        before = broker.ports.clock.now() + 1
        await broker.quiet(10)
        await broker.publish(*"cde")
        await broker.until(lambda: len(client.got) == 5)
        actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        assert isinstance(actor, Dispatcher)
        store, expired = actor.parts.context.store, Signal()
        barrier = store.barrier

        async def late() -> None:
            store.barrier = barrier  # type: ignore[method-assign]
            if meanwhile == "seek":
                await broker.admin("seek", message_id="earliest")
            else:
                client.ack(*client.got[2:])
                await broker.quiet(500)
            await barrier()

        async def expire() -> None:
            answers.append(await broker.admin("expire", before=before))
            expired.set()

        answers: list[Any] = []
        store.barrier = late  # type: ignore[method-assign]
        broker.ports.spawn(expire(), "expire")
        await expired.wait(broker.ports)
        assert answers[0]["skipped"] == 2
        assert (await broker.stats())["totalMsgExpired"] == 2

    play(scenario)


def test_messages_reopened_by_a_seek_are_durable_with_it() -> None:
    """No version of the record with the new place still calls the messages behind it cancelled."""

    async def scenario(broker: Broker) -> None:
        await broker.join("c")
        actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        assert isinstance(actor, Dispatcher)
        store, changed = actor.parts.context.store, actor.parts.context.changed_delays
        changed.cancel(np.array([position(1, 5)]))
        barrier, seen = store.barrier, []

        async def looked_at() -> None:
            seen.append(len(changed.now.cancelled.contains(np.array([position(1, 5)])).nonzero()[0]))
            await barrier()

        store.barrier = looked_at  # type: ignore[method-assign]
        await broker.admin("seek", message_id="earliest")
        assert seen[0] == 0

    play(scenario)


def test_an_owner_that_was_replaced_deletes_no_record() -> None:
    """A deletion awaits one store after another. An owner that takes over meanwhile keeps its record."""

    async def scenario(broker: Broker) -> None:
        await broker.join("c")
        actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        assert isinstance(actor, Dispatcher)
        reporter = actor.parts.context.reporter
        gone = reporter.gone

        async def replaced() -> None:
            await gone()
            actor.end("there is a newer owner")

        reporter.gone = replaced  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            await actor.on_delete_subscription(DeleteSubscription(force=True))
        assert await broker.ports.meta.read(actor.identity.key) is not None

    play(scenario)
