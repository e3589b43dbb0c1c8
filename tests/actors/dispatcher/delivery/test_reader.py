"""The state that the reader leaves behind when the log brings nothing new."""

from __future__ import annotations

import pytest

from sluice.actors.messages import Compact, CompactionStatus, Explain, FindBacklog, ReadEnds, shown
from sluice.actors.ports import Unknown
from tests.scenarios.key_shared.broker import TOPIC, Broker, play


def test_a_run_finished_before_it_was_read_again_is_not_kept() -> None:
    """A returning consumer reports to a new owner that everything is done. The read under way ends later."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 2)
        first = client.parts[0].epoch
        (topic,) = broker.world.alive("topic-")
        broker.world.pause(topic)
        broker.world.crash(next(name for name in broker.world.alive("dispatcher-")))
        await broker.until(lambda: client.parts[0].epoch > first)
        client.ack(*client.got)
        await broker.until(lambda: client.parts[0].acknowledgements.heard == client.parts[0].acknowledgements.said)
        broker.world.resume(topic)
        await broker.quiet(10_000)  # virtual: the read is answered long before
        stats = await broker.stats()
        assert (stats["msgBacklog"], stats["runsHeld"]) == (0, 0)

    play(scenario)


def test_one_stuck_message_keeps_no_later_run() -> None:
    """The dispatcher's memory follows the open messages, and the stuck message can be sent again."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", acking=False)
        await broker.publish("stuck")
        for key in range(100):
            await broker.publish(str(key))
        await broker.until(lambda: len(client.got) == 101)
        stuck = client.got[0]
        client.ack(*client.got[1:])
        await broker.until(lambda: client.parts[0].acknowledgements.heard == client.parts[0].acknowledgements.said)
        stats = await broker.stats()
        assert (stats["unackedMessages"], stats["runsHeld"]) == (1, 1)
        await client.nack(stuck)
        await broker.until(lambda: len(client.got) == 102)
        client.ack(client.got[-1])
        await broker.until(lambda: client.parts[0].acknowledgements.heard == client.parts[0].acknowledgements.said)
        assert (await broker.stats())["runsHeld"] == 0

    play(scenario)


def test_runs_of_messages_that_are_not_due_for_long_are_not_kept() -> None:
    """The dispatcher asks the topic for their payload when they are due."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a", delay=60_000)
        await broker.publish("b", delay=5_000)
        await broker.until(lambda: broker.calls["ReadIndex"] > 2)
        assert (await broker.stats())["runsHeld"] == 1
        await broker.until(lambda: len(client.got) == 2, 70_000)
        assert client.came() == ["b", "a"]
        await broker.quiet(1_000)
        assert (await broker.stats())["runsHeld"] == 0

    play(scenario)


@pytest.mark.parametrize("close", [True, False])
def test_compacted_reader_waits_for_no_read_at_the_end(close: bool) -> None:
    """The dispatcher first looks at the messages read before the consumer came.

    The read that waits at the end may take minutes.
    """

    async def scenario(broker: Broker) -> None:
        first = await broker.join("first", acking=False, read_compacted=True)
        await broker.publish("a", "b")
        await broker.until(lambda: len(first.got) == 2)
        await broker.quiet(10_000)
        if close:
            await first.close()
        else:
            broker.world.crash("first")
            await broker.quiet(10_000)
        second = await broker.join("second", read_compacted=True)
        await broker.until(lambda: len(second.got) == 2, 1_000)

    play(scenario, type="exclusive", lease_ms=3_000)


@pytest.mark.parametrize("read_before", [False, True])
def test_nothing_goes_out_behind_what_is_not_durably_passed_over(read_before: bool) -> None:
    """The next owner does not know of it: a reader of the whole log would get it behind later messages (promise 3)."""

    async def scenario(broker: Broker) -> None:
        await broker.publish("k", "k", "k")
        topic, done = await broker.directory.topic(TOPIC, 0), CompactionStatus()
        while not done.done:
            answer = await broker.ports.net.call(topic, Compact(ask=not done.asked), 5_000)
            assert not isinstance(answer, Unknown)
            done = answer
            await broker.quiet(100)
        if read_before:
            early = await broker.join("early", queue=1, acking=False, taking=False)
            await broker.until(lambda: len(early.got) == 1)
            early.crash()
            await broker.quiet(10_000)
        first = await broker.join("first", acking=False, read_compacted=True)
        broker.world.meta.trouble.cut["broker"] = 1
        await broker.quiet(2_000)
        assert first.got == [], "it is not durable that those before it need not come"
        why = await broker.ask(Explain(key=b"k"))
        assert "not_durable" in [reason["gate"] for reason in shown(why)["reasons"]]
        first.crash()
        broker.world.crash(broker.world.alive("dispatcher-")[0])
        broker.world.meta.trouble.cut.clear()
        whole = await broker.join("whole")
        await broker.until(lambda: len(whole.got) == 3, 60_000)
        assert [message.number for message in whole.got] == [0, 1, 2]

    play(scenario, type="exclusive", lease_ms=3_000)


def test_a_backlog_begins_at_the_first_message_of_an_idle_topic() -> None:
    """The subscription existed before the topic's first ledger, and has no consumer for which it would read."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.quiet(1_000)
        await client.close()
        await broker.quiet(1_000)
        await broker.publish("a")
        topic = await broker.directory.topic(TOPIC, 0)
        ends = await broker.ports.net.call(topic, ReadEnds(), 5_000)
        assert not isinstance(ends, Unknown)
        assert (await broker.ask(FindBacklog(start=-1))).position == ends.last

    play(scenario)
