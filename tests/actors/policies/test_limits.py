"""Limits as records: whose word holds, and what is none."""

from __future__ import annotations

import pytest

from sluice.actors.policies.limits import NONE, LimitRecords, Limits, Rate
from sluice.actors.policies.policy_records import LIMITS, of_namespace, of_topic
from sluice.storage.errors import Invalid
from tests.kit.meta import MemoryMeta

SPACE, TOPIC = of_namespace("public/default"), of_topic("orders")


async def test_each_limit_of_a_topic_comes_first() -> None:
    said = LimitRecords(MemoryMeta())
    assert said.that_hold("orders") == NONE
    await said.change(SPACE, publish_rate=Rate(10), producers=3)
    await said.change(TOPIC, producers=0, consumers=1)
    assert said.any
    assert said.that_hold("orders") == Limits(publish_rate=Rate(10), producers=0, consumers=1)
    assert said.that_hold("others") == Limits(publish_rate=Rate(10), producers=3)
    assert said.that_hold("sales..eu..orders") == NONE
    await said.change(TOPIC, producers=None)
    assert said.that_hold("orders").producers == 3


async def test_limits_set_elsewhere_hold_after_a_look() -> None:
    meta = MemoryMeta()
    here, there = LimitRecords(meta), LimitRecords(meta)
    await there.change(TOPIC, consumers=2)
    assert here.that_hold("orders") == NONE
    await here.refresh()
    assert here.that_hold("orders").consumers == 2


def test_invalid_limits_are_refused() -> None:
    for wrong in (-2, 1 << 51):
        with pytest.raises(Invalid):
            Rate(messages=wrong)
        with pytest.raises(Invalid):
            Rate(bytes=wrong)
    for period in (0, 3_601):
        with pytest.raises(Invalid):
            Rate(period_s=period)
    with pytest.raises(Invalid):
        Limits(producers=-1)


async def test_a_damaged_record_is_no_answer_for_the_others() -> None:
    """The last known limits of the damaged record stay in force, and a change of other limits works."""
    meta = MemoryMeta()
    here, there = LimitRecords(meta), LimitRecords(meta)
    await there.change(TOPIC, consumers=2)
    assert await here.refresh() == []
    meta.records[LIMITS + TOPIC].append(b"{")
    await there.change(of_topic("other"), consumers=3)
    for limits in (here, there):
        (damage,) = await limits.refresh()
        assert "the limits of topic/orders" in str(damage)
        assert (limits.that_hold("orders").consumers, limits.that_hold("other").consumers) == (2, 3)
