"""The owner reports the keys that consumers hold longest, and names a key that holds a partition back, but no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.unacked_messages import LazyBatch
from sluice.actors.dispatcher.delivery.hot_keys import FEWEST, HELD_BACK_MS
from sluice.actors.key_shared.dispatch import KeySharedDispatcher
from sluice.actors.messages import Alive, Part, Ping, SubscriptionSettings
from sluice.actors.messages.limits import KEPT_MS
from tests.scenarios.key_shared.broker import Broker, play

LEASE_MS = 3_000


async def problem(broker: Broker) -> str:
    """Return the problem that the dispatcher reports to the controller."""
    reply = await broker.ask(Ping())
    assert isinstance(reply, Alive)
    return reply.problem


def test_a_key_that_holds_a_partition_back_is_named() -> None:
    async def scenario(broker: Broker) -> None:
        slow = await broker.join("slow", queue=10, acking=False, taking=False)
        await broker.publish(*["hot"] * 2 * FEWEST, "cold")
        await broker.until(lambda: len(slow.got) == 10)
        await broker.quiet(HELD_BACK_MS // 2)
        assert await problem(broker) == ""
        await broker.quiet(HELD_BACK_MS)
        line = await problem(broker)
        assert "key 'hot' holds billing back on partition 0 of orders" in line
        assert f"{2 * FEWEST} of {2 * FEWEST + 1} unfinished messages are its, and slow#" in line
        assert "\n" not in line
        stats = await broker.stats()
        assert (stats["heldBackByKey"], stats["heldBackBy"]) == (1, "'hot'")
        slow.taking = slow.acking = True
        for part in {message.part for message in slow.got}:
            slow.parts[0].taken(part)
        slow.ack()
        await broker.until(lambda: broker.seen() == 2 * FEWEST + 1)
        actor = broker.world.process(broker.world.alive("dispatcher-")[0]).actor
        assert actor is not None
        await broker.until(lambda: actor.figures is not None)
        assert await problem(broker) == line, "all is done, and nobody has looked since"
        blamed = actor.figures
        await broker.quiet(LEASE_MS)
        assert await problem(broker) == ""
        assert actor.figures != blamed, "what was shown of it does not hold any more"
        assert (await broker.stats())["heldBackByKey"] == 0

    play(scenario, lease_ms=LEASE_MS)


@pytest.mark.parametrize("leap_ms", [3_600_000, -3_600_000])
def test_a_clock_that_leaps_blames_nobody_sooner_or_later(leap_ms: int) -> None:
    async def scenario(broker: Broker) -> None:
        slow = await broker.join("slow", queue=10, acking=False, taking=False)
        await broker.publish(*["hot"] * 2 * FEWEST, "cold")
        await broker.until(lambda: len(slow.got) == 10)
        await broker.quiet(HELD_BACK_MS // 4)
        broker.world.skews["broker"] = leap_ms
        await broker.quiet(HELD_BACK_MS // 4)
        assert await problem(broker) == ""
        await broker.quiet(HELD_BACK_MS)
        assert "key 'hot' holds billing back" in await problem(broker)

    play(scenario, lease_ms=LEASE_MS)


@pytest.mark.parametrize("kind", ["flows", "few", "even", "paused"])
def test_no_key_is_blamed_for_what_it_does_not_do(kind: str) -> None:
    """The key makes up most of a flowing stream, has few messages, is one among many, or is held back by a pause."""

    async def scenario(broker: Broker) -> None:
        flows = kind == "flows"
        one = await broker.join("one", queue=10_000 if flows else 10, acking=False, taking=flows)
        if kind == "paused":
            await broker.admin("pause")
        keys = [str(number) for number in range(5)] if kind == "even" else ["hot"]
        for _ in range(12):
            before = one.held() if flows else []  # its consumer has some always, and none for long
            await broker.publish(*keys * (4 if kind == "few" else FEWEST))
            await broker.quiet(HELD_BACK_MS // 5)
            if before:
                one.ack(*before)
            assert await problem(broker) == ""

    play(scenario, lease_ms=LEASE_MS)


def test_the_key_that_is_held_longest_is_not_the_one_with_most() -> None:
    async def scenario(broker: Broker) -> None:
        one = await broker.join("one", acking=False)
        for _ in range(10):
            await broker.publish("slow", *["slower"] * 3, *["fast"] * 20)
            await broker.until(lambda: broker.seen() == sum(broker._numbers.values()))
            one.ack(*[message for message in one.held() if message.key == "fast"])
            await broker.quiet(LEASE_MS // 2)
        told: dict[str, Any] = await broker.admin("hot_keys", top=2)
        assert told["messages"][0]["key"] == "fast"
        assert [row["key"] for row in told["held"]] == ["slower", "slow"]
        assert told["held"][0]["millis"] == 3 * told["held"][1]["millis"] > 0
        assert told["held"][0]["millis"] <= told["held"][0]["millisAtMost"] <= told["heldMillis"]
        assert told["memoryBytes"] < 20_000

    play(scenario, lease_ms=LEASE_MS)


def test_names_of_many_keys_are_read_in_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question a key would cost the topic's owner many, for each partition that an operator asks about.

    A repetition soon after costs the topic's owner no question.
    """
    asked: list[int] = []
    resolve = Payloads.resolve

    async def counted(payloads: Payloads, part: Part, *others: int) -> list[LazyBatch]:
        asked.append(len(part.rows))
        return await resolve(payloads, part, *others)

    async def scenario(broker: Broker) -> None:
        await broker.join("one", acking=False)
        keys = [f"k{number}" for number in range(20)]
        for start in range(0, 20, 5):  # several runs
            await broker.publish(*keys[start : start + 5])
        await broker.until(lambda: broker.seen() == 20)
        monkeypatch.setattr(Payloads, "resolve", counted)
        for waits in (0, 1_000, KEPT_MS):
            await broker.world.client("waits").clock.sleep(waits)
            told: dict[str, Any] = await broker.admin("hot_keys", top=20)
            assert sorted(row["key"] for row in told["messages"]) == sorted(keys)
        assert asked == [20, 20], "they are read again when one of the keys may have been erased"

    play(scenario, lease_ms=LEASE_MS)


@pytest.mark.parametrize("seed", range(20))
def test_the_heaviest_is_who_has_more_than_half(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    keys = rng.choice(np.array([7, 9, 400_000], np.uint32), count, p=rng.dirichlet((1, 1, 1)))
    core = KeySharedDispatcher(SubscriptionSettings())
    number = core.join("one", now=0)
    core.grant(number, int(rng.integers(0, count + 1)))
    core.append(np.arange(count), keys)
    sent = [position for assignment in core.route(5) for position in assignment.positions.tolist()]
    found = core.heaviest()
    distinct, each = np.unique(keys, return_counts=True)
    most = int(np.argmax(each))
    if 2 * each[most] <= count:
        assert found is None
        return
    assert found is not None
    mine = np.flatnonzero(keys == distinct[most])
    held = np.isin(mine, sent)
    assert (found.key, found.unfinished, found.of) == (int(distinct[most]), int(each[most]), count)
    assert (found.position, found.waiting) == (int(mine[0]), int(np.count_nonzero(~held)))
    assert (found.holder, found.held_since) == ((number, 5) if held.any() else (0, 0))
