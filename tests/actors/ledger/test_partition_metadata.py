"""The partition's record: one owner at a time, lost answers looked up, ids never given twice."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from sluice.actors.ledger.partition_metadata import PartitionMetadata
from sluice.actors.ledger.record import (
    LedgerState,
    PartitionRecord,
    decode_record,
    encode_record,
    record_key,
    unpack_record,
)
from sluice.actors.messages import TopicSettings
from sluice.actors.ownership.ids import BLOCK, LEDGER_IDS, LedgerIds, stay_above
from sluice.storage.errors import Corrupt, Fenced, InvariantViolation, Unavailable
from tests.actors.ledger.fakes import Lab, make_ledger
from tests.sim.loop import simulated

SETTINGS = TopicSettings()


def metadata(lab: Lab, me: str) -> tuple[PartitionMetadata, list[str]]:
    lost: list[str] = []
    return PartitionMetadata(lab.make_ports(me), "t", 0, lost.append), lost


def trimmed(record: PartitionRecord) -> PartitionRecord:
    return msgspec.structs.replace(record, trimmed_before=record.trimmed_before + 1)


@simulated
async def test_each_owner_has_the_next_epoch_and_recovers_open_ledgers() -> None:
    lab = Lab()
    first, _ = metadata(lab, "one")
    assert (await first.acquire(SETTINGS)).epoch == 1
    await first.update(lambda record: record.with_new_ledger(make_ledger(state=LedgerState.OPEN)))
    second, _ = metadata(lab, "two")
    taken = await second.acquire(SETTINGS)
    assert (taken.epoch, taken.owner, taken.ledgers[0].state) == (2, "two", LedgerState.IN_RECOVERY)


@simulated
async def test_the_old_owner_loses_its_next_write_and_every_one_after() -> None:
    lab = Lab()
    old, lost = metadata(lab, "one")
    await old.acquire(SETTINGS)
    new, _ = metadata(lab, "two")
    await new.acquire(SETTINGS)
    for _ in range(2):
        with pytest.raises(Fenced):
            await old.update(trimmed)
    assert lost
    assert old.record.trimmed_before == new.record.trimmed_before == 0


@simulated
@pytest.mark.parametrize("states", [(LedgerState.OPEN, 8), (LedgerState.CLOSED, 7)], ids=["open", "descending"])
async def test_broken_chain_is_never_saved(states: tuple[LedgerState, int]) -> None:
    state, second = states
    owner, _ = metadata(Lab(), "one")
    await owner.acquire(SETTINGS)
    before = owner.record
    ledgers = make_ledger(ledger_id=7, state=state), make_ledger(ledger_id=second, state=LedgerState.OPEN)
    with pytest.raises(InvariantViolation, match=f"ledger {second} cannot follow 7"):
        await owner.update(lambda record: msgspec.structs.replace(record, ledgers=ledgers))
    assert owner.record is before


@simulated
async def test_an_idle_old_owner_notices_when_it_looks() -> None:
    lab = Lab()
    old, lost = metadata(lab, "one")
    await old.acquire(SETTINGS)
    await old.verify()
    new, _ = metadata(lab, "two")
    await new.acquire(SETTINGS)
    with pytest.raises(Fenced):
        await old.verify()
    assert lost


@pytest.mark.parametrize("call", ["create", "read"])
@simulated
async def test_damaged_record_ends_ownership(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner cannot know the record's content. The next owner begins with what it finds once the record is
    mended.
    """
    lab = Lab()
    owner, lost = metadata(lab, "one")
    await owner.acquire(SETTINGS)

    async def damaged(*_: object) -> None:
        raise Corrupt("the metadata file is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(lab.meta, call, damaged)
        with pytest.raises(Fenced, match="the metadata file is damaged"):
            await (owner.update(trimmed) if call == "create" else owner.verify())
    assert lost
    next_owner, _ = metadata(lab, "two")
    assert (await next_owner.acquire(SETTINGS)).epoch == 2


@simulated
async def test_a_write_whose_answer_was_lost_is_recognised_as_ones_own() -> None:
    lab = Lab()
    owner, lost = metadata(lab, "one")
    lab.meta.fail = ["after"]
    await owner.acquire(SETTINGS)
    lab.meta.fail = ["after", "before", "after"]
    await owner.update(trimmed)
    await owner.update(trimmed)
    assert lost == []
    version = await lab.meta.read(record_key("t", 0))
    assert version is not None
    assert unpack_record(version.value).trimmed_before == 2
    assert version.number == 3


@simulated
async def test_one_of_two_new_owners_is_fenced() -> None:
    lab = Lab()
    first, _ = metadata(lab, "one")
    second, _ = metadata(lab, "two")
    tasks = []

    async def take(which: PartitionMetadata, into: list[str]) -> None:
        try:
            await which.acquire(SETTINGS)
            into.append("owner")
        except Fenced:
            into.append("fenced")

    outcomes: list[str] = []
    tasks = [lab.ports.spawn(take(which, outcomes), "take") for which in (first, second)]
    assert len(tasks) == 2
    await lab.settle()
    assert sorted(outcomes) == ["fenced", "owner"]


@simulated
async def test_a_deleted_topic_comes_back_empty_at_a_higher_epoch() -> None:
    lab = Lab()
    owner, _ = metadata(lab, "one")
    await owner.acquire(SETTINGS)
    await owner.update(lambda record: msgspec.structs.replace(record, deleted=True, ever_subscribed=True))
    again, _ = metadata(lab, "two")
    record = await again.acquire(SETTINGS)
    assert (record.epoch, record.deleted, record.ever_subscribed) == (2, False, False)


@simulated
async def test_ledger_ids_are_never_given_twice() -> None:
    lab = Lab()
    lab.meta.fail = ["", "after", "before"]
    givers = [(LedgerIds(), lab.make_ports(name)) for name in "xy"]
    taken: list[int] = []
    for _ in range(20 * BLOCK + 3):
        for giver, ports in givers:
            while True:
                try:
                    taken.append(await giver.allocate(ports, 0))
                    break
                except Unavailable:
                    continue
    assert len(set(taken)) == len(taken)
    assert min(taken) == 1
    assert taken[::2] == sorted(taken[::2])


@simulated
async def test_ledger_ids_stay_above_what_a_disk_knows() -> None:
    lab = Lab()
    assert await LedgerIds().allocate(lab.ports, 0) == 1
    assert not await stay_above(lab.meta, "b", BLOCK)
    assert await stay_above(lab.meta, "b", 1000)
    assert not await stay_above(lab.meta, "b", 1000)
    assert 1000 < await LedgerIds().allocate(lab.make_ports("y"), 0) < 1000 + 3 * BLOCK


@simulated
async def test_a_thousand_owners_share_a_few_blocks() -> None:
    lab = Lab()
    giver = LedgerIds()
    taken = await asyncio.gather(*(giver.allocate(lab.make_ports(f"owner{number}"), 0) for number in range(1_000)))
    assert sorted(taken) == list(range(1, 1_001))
    newest = await lab.meta.read(LEDGER_IDS)
    assert newest is not None
    assert newest.number <= 6, "a block is twice the one before it"
    assert not await stay_above(lab.meta, "b", 1_000)


@simulated
async def test_an_id_is_above_what_the_partition_had() -> None:
    lab = Lab()
    here, there = LedgerIds(), LedgerIds()
    assert await here.allocate(lab.ports, 0) == 1
    late = await there.allocate(lab.ports, 0)
    assert await here.allocate(lab.ports, 0) == 2
    moved = await here.allocate(lab.ports, late)
    assert moved > late
    assert await there.allocate(lab.ports, moved) > moved
    assert await here.allocate(lab.ports, 0) == moved + 1, "who needs none that is higher takes the next one"


@simulated
async def test_an_id_is_new_where_the_highest_is_not_known() -> None:
    lab = Lab()
    here, there = LedgerIds(), LedgerIds()
    assert await here.allocate(lab.ports, 0) == 1
    given = [await there.allocate(lab.ports, 0) for _ in range(3 * BLOCK)]
    assert await here.allocate(lab.ports, None) > max(given)
    assert await here.allocate(lab.ports, None) > max(given) + 1, "another block: the last one was asked for before"


@simulated
async def test_an_asker_that_ended_stops_nobody() -> None:
    lab = Lab()
    giver = LedgerIds()
    first = asyncio.ensure_future(giver.allocate(lab.make_ports("a"), 0))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(giver.allocate(lab.make_ports("b"), 0))
    await asyncio.sleep(0)
    first.cancel()
    assert await second >= 1


def test_a_record_goes_through_bytes_and_damage_is_corrupt() -> None:
    record = PartitionRecord(
        topic="t", partition=3, epoch=4, owner="o", settings=SETTINGS, ledgers=(make_ledger(),), subscriptions={"s": -1}
    )
    assert decode_record(encode_record(record)) == record
    with pytest.raises(Corrupt):
        decode_record({"topic": 3})
    with pytest.raises(Corrupt):
        unpack_record(b"\xc1")
    with pytest.raises(Corrupt, match="format 9"):
        decode_record({**encode_record(record), "format": 9})


def test_only_one_ledger_may_be_open_and_ids_ascend() -> None:
    record = PartitionRecord(topic="t", partition=0, settings=SETTINGS, ledgers=(make_ledger(state=LedgerState.OPEN),))
    with pytest.raises(InvariantViolation):
        record.with_new_ledger(make_ledger(ledger_id=8))
    closed = record.with_ledger(make_ledger(state=LedgerState.CLOSED))
    with pytest.raises(InvariantViolation):
        closed.with_new_ledger(make_ledger(ledger_id=7))
    assert [ledger.id for ledger in closed.with_new_ledger(make_ledger(ledger_id=8)).ledgers] == [7, 8]
