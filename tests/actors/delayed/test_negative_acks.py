"""Messages that are given back, beside delayed ones over buckets (NA-1, NA-2).

A message is an entry, so there is no index within a batch: any row of what was published together can be given back
alone. The client counts no time-out for acknowledgements; "everything" below is what one would ask for when it rings.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.actors.delayed.desk import LATE_MS, STRAY_MS, Desk, serve

SMALL: dict[str, Any] = {
    "delayed_delivery_min_index_count_per_bucket": 5,
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment": 3,
}
AT_REST = ("msgBacklog", "msgDelayed", "unackedMessages", "msgInReplay", "msgDelayedRedelivery")
COUNT = 60


async def at_rest(desk: Desk) -> None:
    """Nothing is left, and nothing more comes."""
    came = len(desk.came())
    await desk.quiet(STRAY_MS)
    assert len(desk.came()) == came
    assert {name: await desk.count(name) for name in AT_REST} == dict.fromkeys(AT_REST, 0)


@pytest.mark.parametrize(("way", "delay"), [("each", 0), ("each", 300), ("everything", 0)])
@pytest.mark.parametrize("kind", ["shared", "key_shared", "exclusive", "failover"])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("rows", [1, 20])
def test_na_1_what_is_given_back_comes_once_more(way: str, delay: int, kind: str, partitions: int, rows: int) -> None:
    async def scenario(desk: Desk) -> None:
        # Of two who share, the second would give back again what the first gave back, if each gives back everything.
        two = kind == "key_shared" or (kind == "shared" and way == "each")
        customers = [await desk.consume(name, acking=False) for name in ("one", "two")[: 1 + two]]
        for start in range(0, COUNT, rows):
            keys = [str(number % 7) for number in range(start, start + rows)]
            await desk.publish(*keys, delay=[200 * (number % 3 == 0) for number in range(start, start + rows)])
        await desk.until(lambda: len(desk.came()) == COUNT)
        assert {arrival.message.again for arrival in desk.came()} == {0}
        if kind in ("shared", "key_shared"):
            operations = (await desk.stats())["bucketDelayedIndexStats"]["pulsar_delayed_message_index_bucket_op_count"]
            assert operations["create"]["all"] > 0
        given = desk.world.loop.now
        for customer, held in [(customer, customer.held()) for customer in customers]:
            await (customer.redeliver_all() if way == "everything" else customer.nack(*held, delay=delay))
        await desk.until(lambda: len(desk.came()) == 2 * COUNT)
        again = desk.came()[COUNT:]
        assert {arrival.message.again for arrival in again} == {1}
        assert len({arrival.name for arrival in again}) == COUNT
        assert min(arrival.at for arrival in again) >= given + delay
        assert await desk.count("unackedMessages") == COUNT
        for customer in customers:
            customer.ack()
        await at_rest(desk)

    serve(scenario, partitions=partitions, type=kind, topic={"roll_entries": 10}, **SMALL)


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
def test_na_2_a_batch_is_given_back_whole_or_row_by_row(kind: str) -> None:
    async def scenario(desk: Desk) -> None:
        customer = await desk.consume("one", acking=False)
        await desk.publish(*(str(number) for number in range(10)))
        await desk.until(lambda: len(customer.got) == 10)
        part = customer.got[0].part
        assert len(part) == 10, "they were published together and came together"
        await customer.parts[0].negative_acknowledge(part, None, 0)
        await desk.until(lambda: len(customer.got) == 20)
        assert sorted((int(m.key), m.again) for m in customer.got[10:]) == [(key, 1) for key in range(10)]
        some = [message for message in customer.got[10:] if message.key in "258"]
        start = desk.world.loop.now
        await customer.nack(*some, delay=1_000)
        await desk.quiet(900)
        assert len(customer.got) == 20
        await desk.until(lambda: len(customer.got) == 23)
        assert desk.world.loop.now <= start + 1_000 + LATE_MS
        assert sorted((int(m.key), m.again) for m in customer.got[20:]) == [(2, 2), (5, 2), (8, 2)]
        for message in customer.got[:10]:
            assert not message.part.open[message.row]
        customer.ack(*(message for message in customer.got[10:] if message not in some))
        await at_rest(desk)

    serve(scenario, type=kind, topic={"roll_entries": 50}, **SMALL)
