"""BO, RS, BC-1, CL-1, ST-1, ST-3: when the log is read, how often, and what the statistics say of it."""

from __future__ import annotations

from itertools import pairwise

from sluice.actors.dispatcher.delivery.reader import RETRY_FIRST, RETRY_MOST
from tests.scenarios.key_shared.broker import KEYS, Broker, Client, play

FIVE = KEYS[:5]


async def _topic(broker: Broker) -> str:
    address = await broker.directory.topic("orders", 0)
    return address.partition("/")[2].rpartition(".")[0]


def test_bo_1_nothing_is_read_without_permits() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("a", queue=1, acking=False, taking=False)
        await broker.publish(*FIVE)
        await broker.until(lambda: len(client.got) == 1)
        await broker.quiet(100)
        before = broker.calls["ReadIndex"]
        await broker.quiet(10_000)
        assert broker.calls["ReadIndex"] == before
        client.taking = client.acking = True
        client.parts[0].taken(client.got[0].part)
        client.ack()
        await broker.until(lambda: broker.seen() == 5, 1_000)

    play(scenario)


def test_bo_1_pauses_grow_in_silence_and_begin_small_again() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("a")
        await broker.publish(*FIVE)
        await broker.until(lambda: len(client.got) == 5)
        machine = broker.world.process(await _topic(broker)).machine
        assert (await broker.address()).partition("/")[0] == machine, "it is the loopback that has to be cut"
        for _ in range(2):
            heal = broker.world.partition([machine], [machine])
            began = broker.world.loop.now
            await broker.quiet(120_000)
            gaps = [later - earlier for earlier, later in pairwise([at for at in broker.reads if at > began])]
            assert 3 < len(gaps) < 120_000 // RETRY_FIRST // 10, "it goes on trying, and not like mad"
            assert max(gaps) >= RETRY_MOST
            heal()
            seen = broker.seen()
            await broker.publish(*FIVE)
            await broker.until(lambda seen=seen: broker.seen() == seen + 5, 30_000)  # type: ignore[misc]

    play(scenario)


def test_rs_2_an_answer_from_before_a_seek_counts_for_nothing() -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.join("a")
        await broker.publish(*FIVE)
        await broker.until(lambda: len(client.got) == 5)
        await broker.quiet(200)
        assert (await broker.stats())["pendingRead"], "one long read waits at the end of the topic"
        await broker.admin("seek", message_id="earliest")
        # Dispatch begins again when the old session's lease is over at the latest.
        await broker.until(lambda: len(client.got) == 10, 5_000)
        assert [message.position for message in client.got[:5]] == [message.position for message in client.got[5:]]

    play(scenario)


def test_rs_4_a_read_that_fails_once_needs_no_other_push() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*FIVE)
        broker.world.crash(await _topic(broker))
        client = await broker.join("a")
        await broker.until(lambda: len(client.got) == 5, 60_000)

    play(scenario)


def test_rs_8_nothing_is_read_when_nobody_listens() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*FIVE)
        for _ in range(10):
            assert (await broker.stats())["msgBacklog"] == 5
        await broker.quiet(5_000)
        assert broker.calls["ReadIndex"] == 0
        client = await broker.join("a")
        await broker.until(lambda: len(client.got) == 5)
        await client.close()
        await broker.quiet(3_000)
        before = broker.calls["ReadIndex"]
        await broker.quiet(10_000)
        assert broker.calls["ReadIndex"] == before

    play(scenario)


def test_bc_1_what_is_sent_again_comes_from_memory() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*KEYS[:100])
        client: Client | None = None
        for turn in range(5):
            client = await broker.join(f"c{turn}", acking=turn == 4)
            await broker.until(lambda client=client: len(client.got) == 100)  # type: ignore[misc]
            await client.close()
        assert client is not None
        assert broker.calls["ReadRun"] == 0, "no bookie was asked"

    play(scenario)


def test_cl_1_the_look_ahead_limit_stops_the_fast_consumer_too() -> None:
    async def scenario(broker: Broker) -> None:
        slow = await broker.join("slow", queue=1, acking=False, taking=False)
        fast = await broker.join("fast")
        mine: dict[str, str] = {}
        for key in KEYS[:40]:
            owned = (await broker.admin("owner", key=key))["owner"]
            mine.setdefault(owned.partition("#")[0], key)
        for _ in range(3):
            await broker.publish(mine["slow"])
        await broker.until(lambda: len(slow.got) == 1)
        await broker.quiet(200)
        assert (await broker.stats())["msgInReplay"] == 2
        await broker.publish(mine["fast"])
        await broker.quiet(5_000)
        assert fast.got == [], "the limit is reached"
        slow.taking = True
        slow.parts[0].taken(slow.got[0].part)
        slow.ack(slow.got[0])
        await broker.until(lambda: len(fast.got) == 1, 5_000)
        assert (await broker.stats())["msgInReplay"] < 2

    play(scenario, look_ahead_per_consumer=2, look_ahead_per_subscription=2)


def test_st_1_draining_is_told_by_hash_and_adds_up() -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.join("c1", acking=False)
        await broker.publish(*KEYS[:50])
        await broker.until(lambda: len(first.got) == 50)
        await broker.join("c2")
        await broker.publish(*KEYS[:50])
        await broker.quiet(300)
        stats = await broker.stats()
        row = next(row for row in stats["consumers"] if row["consumerName"] == "c1")
        assert 0 < row["drainingHashesCount"] == stats["drainingHashesCount"] == len(row["drainingHashes"])
        assert all(entry["unackMsgs"] == 1 and entry["blockedAttempts"] >= 1 for entry in row["drainingHashes"])
        assert stats["drainingHashesUnackedMessages"] == sum(entry["unackMsgs"] for entry in row["drainingHashes"])
        first.acking = True
        first.ack()
        await broker.until(lambda: broker.seen() == 100)
        after = await broker.stats()
        assert (after["drainingHashesCount"], after["drainingHashesUnackedMessages"]) == (0, 0)
        assert after["drainingHashesClearedTotal"] == stats["drainingHashesCount"]
        assert sum(each["drainingHashesClearedTotal"] for each in after["consumers"]) == stats["drainingHashesCount"]

    play(scenario)


def test_st_3_a_read_is_pending_exactly_when_there_is_room() -> None:
    async def scenario(broker: Broker) -> None:
        assert not (await broker.stats())["pendingRead"]
        client = await broker.join("a", queue=5, acking=False, taking=False)
        await broker.quiet(100)
        assert (await broker.stats())["pendingRead"]
        await broker.publish(*FIVE)
        await broker.until(lambda: len(client.got) == 5)
        await broker.quiet(100)
        stats = await broker.stats()
        assert not stats["pendingRead"], "no permits, no read"
        assert stats["readPosition"].endswith(":5")

    play(scenario)
