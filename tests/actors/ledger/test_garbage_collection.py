"""Garbage collection of ledgers: only what certainly no record names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sluice.actors.ledger.garbage_collection import collect_garbage, noted_released
from sluice.actors.messages import ListLedgers
from sluice.actors.ports.wire import Request
from sluice.storage.errors import Corrupt, Unavailable
from tests.actors.ledger.fakes import Lab
from tests.actors.ledger.test_replication import stocked
from tests.sim.loop import simulated


async def released(lab: Lab, *ledgers: int) -> None:
    """A partition that has let these ledgers go, beside the one that it names."""
    keeper, _ = await stocked(lab)
    await keeper.update(lambda record: record.with_released(ledgers))


@simulated
async def test_collection_deletes_only_released_ledgers() -> None:
    lab = Lab("abcdef")
    await released(lab, 99)
    lab.put("a", 98, 0, 0)
    lab.put("a", 99, 0, 0)
    lab.put("e", 99, 0, 0)
    assert (await collect_garbage(lab.ports, await lab.list_bookies())).deleted == {"a": [99], "e": [99]}
    assert (await collect_garbage(lab.ports, await lab.list_bookies())).deleted == {}
    assert lab.wire.holders(7, 0) != []
    assert lab.wire.holders(98, 0) == ["a"], "nobody has released this one"
    assert list(await noted_released(lab.ports)) == [99]


@simulated
async def test_an_empty_metadata_store_collects_nothing() -> None:
    lab = Lab("abcd")
    await stocked(lab)
    for key in await lab.meta.keys(""):
        await lab.meta.remove(key)
    assert (await collect_garbage(lab.ports, await lab.list_bookies())).deleted == {}
    assert lab.wire.holders(7, 0) != []


@simulated
async def test_ledger_without_a_record_is_reported_and_stays() -> None:
    """A bookie that holds more than the metadata knows is the only sign of an older metadata store."""
    lab = Lab("abcdef")
    await released(lab, 99)
    lab.put("a", 98, 0, 0)
    lab.put("a", 99, 0, 0)
    lab.put("e", 97, 0, 0)
    collected = await collect_garbage(lab.ports, await lab.list_bookies())
    assert collected.unknown == {"a": [98], "e": [97]}, "what is named or was released is known"
    assert lab.wire.holders(98, 0) == ["a"]
    keeper, _ = await stocked(lab)
    await keeper.update(lambda record: record.with_released([97, 98]))
    assert (await collect_garbage(lab.ports, await lab.list_bookies())).unknown == {}


@simulated
async def test_released_ledger_is_known_after_the_record_forgot_it() -> None:
    lab = Lab("abcd")
    keeper, _ = await stocked(lab)
    await keeper.update(lambda record: record.with_released([99]))
    await collect_garbage(lab.ports, await lab.list_bookies())
    await keeper.update(lambda record: msgspec.structs.replace(record, released=()))
    lab.put("a", 99, 0, 0)
    assert (await collect_garbage(lab.ports, await lab.list_bookies())).deleted == {"a": [99]}


@simulated
async def test_a_record_that_cannot_be_read_ends_the_collection() -> None:
    lab = Lab("abc")
    lab.put("a", 99, 0, 0)
    await lab.meta.create("partition/t/1", 1, b"\xc1")
    with pytest.raises((Corrupt, Unavailable)):
        await collect_garbage(lab.ports, await lab.list_bookies())
    assert lab.wire.holders(99, 0) == ["a"]


@simulated
async def test_bookies_are_asked_before_the_records_are_read() -> None:
    lab = Lab("abcd")
    await stocked(lab)
    read = lab.meta.keys

    async def keys(prefix: str) -> list[str]:
        # A ledger that appears at a bookie only now is in a record by now as well; it must not be judged.
        lab.put("a", 50, 0, 0)
        return await read(prefix)

    lab.meta.keys = keys  # type: ignore[method-assign]
    assert (await collect_garbage(lab.ports, await lab.list_bookies())).deleted == {}
    assert lab.wire.holders(50, 0) == ["a"]


@simulated
async def test_a_bookie_that_refuses_or_is_silent_stops_no_other() -> None:
    lab = Lab("abcd")
    await released(lab, 99)
    for bookie in "abcd":
        lab.put(bookie, 99, 0, 0)

    def rule(bookie: str, request: Request[Any]) -> str | None:
        if isinstance(request, ListLedgers):
            return "refuse" if bookie == "a" else None
        return {"b": "refuse", "c": "lose"}.get(bookie)

    lab.wire.rules.append(rule)
    assert (await collect_garbage(lab.ports, await lab.list_bookies())).deleted == {"d": [99]}
    lab.wire.rules.clear()
    assert (await collect_garbage(lab.ports, await lab.list_bookies())).deleted == {"a": [99], "b": [99], "c": [99]}
