"""The answers to operators' questions about waiting messages."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.messages import Explain, FindBacklog, shown
from sluice.storage.format.position import position, show
from tests.scenarios.key_shared.broker import Broker, play

LEASE_MS = 3_000


async def explained(broker: Broker, key: str) -> dict[str, Any]:
    """Return why the messages of a key wait."""
    return await asked(broker, Explain(key=key.encode()))


async def asked(broker: Broker, question: Explain) -> dict[str, Any]:
    """Return the answer to a question."""
    told = await broker.ask(question)
    found: dict[str, Any] = shown(told)
    return found


def dispatcher(broker: Broker) -> Dispatcher:
    """Return the dispatcher of the first partition."""
    actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
    assert isinstance(actor, Dispatcher)
    return actor


def test_explain_tells_when_the_lease_of_a_frozen_holder_ends() -> None:
    async def scenario(broker: Broker) -> None:
        keys = [str(key) for key in range(40)]
        frozen = await broker.join("frozen", acking=False)
        await broker.publish(*keys)
        await broker.until(lambda: len(frozen.got) == len(keys))
        broker.world.pause("frozen")
        await broker.join("other", acking=False)
        await broker.publish(*keys)
        await broker.quiet(1_000)
        answers = [await explained(broker, key) for key in keys]
        waits = [answer for answer in answers if answer["verdict"] == "draining"]
        assert 0 < len(waits) < len(keys), "its keys that belong to the other one now wait for it"
        for answer in waits:
            (holds,) = answer["reasons"][0]["held"]
            assert holds["consumer"].startswith("frozen#")
            assert 0 < holds["lease_ends_in_ms"] <= LEASE_MS - 900
            assert f"in {holds['lease_ends_in_ms']} ms" in answer["reasons"][0]["unblocks"]
            assert 900 <= holds["heard_ms_ago"] == LEASE_MS - holds["lease_ends_in_ms"]
        await broker.quiet(2 * LEASE_MS)
        assert not [key for key in keys if (await explained(broker, key))["verdict"] == "draining"]

    play(scenario, lease_ms=LEASE_MS)


def test_explain_tells_a_hanging_application_from_a_frozen_one() -> None:
    """The process of a hanging application still polls, so its lease never ends."""

    async def scenario(broker: Broker) -> None:
        hangs = await broker.join("hangs", acking=False, taking=False)
        await broker.publish("a")
        await broker.until(lambda: len(hangs.got) == 1)
        await broker.quiet(3 * LEASE_MS)
        answer = await explained(broker, "a")
        (holds,) = answer["reasons"][0]["held"]
        assert answer["verdict"] == "delivered"
        assert holds["age_ms"] >= 3 * LEASE_MS > LEASE_MS > holds["heard_ms_ago"]

    play(scenario, lease_ms=LEASE_MS)


@pytest.mark.parametrize("tracker", ["memory", "bucket"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("policy", ["pass", "block_key"])
def test_a_due_message_waits_for_permits_and_not_for_time(tracker: str, shared: bool, policy: str) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False, taking=False)
        await broker.publish("a", "b", delay=[0, 2_000])
        await broker.until(lambda: len(client.got) == 1)
        delayed = client.got[0].position + 1
        answer = await asked(broker, Explain(position=delayed))
        assert (answer["verdict"], "T" in answer["reasons"][0]["text"]) == ("delayed", True), "it says until when"
        await broker.quiet(4_000)
        answer = await asked(broker, Explain(position=delayed))
        assert [reason["gate"] for reason in answer["reasons"]] == ["no_permits"]
        client.taking = client.acking = True
        client.ack(client.got[0])
        client.parts[0].taken(client.got[0].part)
        await broker.until(lambda: client.came() == ["a", "b"])

    play(
        scenario,
        delayed_tracker=tracker,
        delay_key_policy=policy,
        delayed_delivery_shared_index_enabled=shared,
    )


def test_message_read_during_explain_shows_its_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer once said that the message was not due, although nothing had looked at its due time."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a")
        await broker.until(lambda: client.came() == ["a"])
        parts, hold = dispatcher(broker).parts, contextlib.ExitStack()
        hold.enter_context(parts.reader.held())
        await broker.publish("b", delay=[5_000])

        async def read_first() -> None:
            hold.close()
            await broker.until(lambda: parts.context.tracker.count() == 1)

        monkeypatch.setattr(parts.reader, "know_end", read_first)
        answer = await parts.inspection.explain(Explain(position=client.got[0].position + 1))
        assert answer["reasons"][0]["text"].startswith("it is not due before ")

    play(scenario)


@pytest.mark.parametrize("shared", [False, True])
def test_message_lost_by_the_delayed_index_is_explained(shared: bool) -> None:
    """The answer once called such a message acknowledged, or not due, while no consumer was attached."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a")
        await broker.publish(*"bcd", delay=[60_000] * 3)
        await broker.publish("e", "f", delay=[90_000, 0])
        await broker.until(lambda: client.came() == ["a", "f"])
        await broker.quiet(500)
        await client.close()
        objects = broker.world.objects.objects
        assert objects, "a bucket was written"
        objects.clear()
        await broker.quiet(60_000)
        answer = await asked(broker, Explain(position=client.got[0].position + 1))
        assert answer["verdict"] == "not_read"
        assert "lost" in answer["reasons"][0]["text"]
        (reason,) = [each for each in (await explained(broker, "b"))["reasons"] if each["gate"] == "not_read"]
        assert "lost" in reason["text"]
        last = await broker.join("d")
        await broker.until(lambda: len(last.came()) == 4, 60_000)
        assert (await explained(broker, "b"))["verdict"] == "nothing_to_deliver"

    settings = {"delayed_delivery_shared_index_enabled": shared, "delayed_delivery_min_index_count_per_bucket": 2}
    play(scenario, topic={"roll_entries": 4}, **settings)


def test_delivered_message_does_not_wait_for_others() -> None:
    """The pause of the subscription holds back only the messages behind it."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False)
        await broker.publish("a")
        await broker.until(lambda: len(client.got) == 1)
        await broker.admin("pause")
        await broker.publish("b")
        held, waits = [await explained(broker, key) for key in "ab"]
        assert [reason["gate"] for reason in held["reasons"]] == ["delivered", "paused"]
        assert (held["verdict"], waits["verdict"]) == ("delivered", "paused")

    play(scenario)


def test_blocked_keys_name_what_holds_the_whole_back() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1)
        await broker.admin("pause")
        await broker.publish("a")
        await broker.quiet(500)
        (row,) = await broker.admin("blocked_keys")
        assert [reason["gate"] for reason in row["reasons"]] == ["paused"]
        assert [reason["gate"] for reason in (await explained(broker, "a"))["reasons"]] == ["paused"]
        await broker.admin("resume")
        await broker.until(lambda: client.came() == ["a"])

    play(scenario)


def test_a_problem_of_reading_holds_nothing_back_that_was_read() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c", queue=1, acking=False, taking=False)
        await broker.publish("a", "b")
        await broker.until(lambda: len(client.got) == 1)
        reader = dispatcher(broker).parts.reader
        reader.problem = "no bookie has it"
        last = client.got[0].position + 1
        with reader.held():
            await broker.publish("c")
            answers = [await asked(broker, Explain(position=at)) for at in (last, last + 1)]
        assert [answer["verdict"] for answer in answers] == ["no_permits", "not_read"]
        assert "no bookie has it" in answers[1]["reasons"][0]["text"]

    play(scenario)


def test_a_key_with_delayed_messages_alone_is_explained() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a", "b", delay=[0, 5_000])
        await broker.until(lambda: len(client.got) == 1)
        await broker.quiet(500)
        gates = [reason["gate"] for reason in (await explained(broker, "b"))["reasons"]]
        assert (gates[0], gates[-1]) == ("nothing_to_deliver", "delayed")
        await broker.until(lambda: len(client.got) == 2)
        await broker.quiet(500)
        assert "delayed" not in [reason["gate"] for reason in (await explained(broker, "b"))["reasons"]]

    play(scenario)


def test_a_key_whose_messages_were_not_read_waits_for_a_consumer() -> None:
    """The answer once was that there was nothing to deliver and a publish would help, although two messages waited."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish("a")
        await broker.until(lambda: client.came() == ["a"])
        await broker.quiet(500)
        nothing = (await explained(broker, "a"))["reasons"]
        assert [reason["gate"] for reason in nothing] == ["nothing_to_deliver"], "and nothing is to be read"
        await client.close()
        with dispatcher(broker).parts.reader.held():
            await broker.publish("a", "a", "b")
            waits = await explained(broker, "a")
        assert (waits["verdict"], [each["gate"] for each in waits["reasons"]]) == ("no_owner", ["no_owner", "not_read"])
        assert waits["reasons"][1]["text"].startswith("3 messages of the partition were not read yet")

    play(scenario)


def test_a_message_that_is_not_there_waits_for_nothing() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        empty = await asked(broker, Explain(position=1 << 40))
        assert empty["reasons"][0]["text"] == "there is no such message: the partition is empty"
        await broker.publish("a")
        await broker.until(lambda: client.came() == ["a"])
        last = client.got[0].position
        answer = await asked(broker, Explain(position=last + 1))
        assert [reason["gate"] for reason in answer["reasons"]] == ["nothing_to_deliver"]
        assert answer["reasons"][0]["text"] == f"there is no such message: the partition ends at {show(last)}"

    play(scenario)


def test_a_new_owners_backlog_begins_behind_what_was_trimmed() -> None:
    """The ledger in the owner's record is done and trimmed, and without a consumer the owner does not read."""

    async def scenario(broker: Broker) -> None:
        client = await broker.join("c")
        await broker.publish(*"abcde")
        await broker.until(lambda: len(client.got) == 5)
        await client.close()
        await broker.quiet(10_000)  # virtual: the ledger is closed and trimmed long before
        await broker.publish("f")
        found = await broker.ask(FindBacklog(start=-1))
        assert found.position == position(2, 0)
        broker.world.crash(next(name for name in broker.world.alive("dispatcher-")))
        assert (await broker.ask(FindBacklog(start=-1))).position == found.position
        assert (await broker.stats())["msgBacklog"] == 1

    play(scenario, topic={"roll_entries": 5})
