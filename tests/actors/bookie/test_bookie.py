"""The bookie's answers: storing, repeating, reading, fencing, deleting, restarting."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from sluice.actors import messages
from sluice.actors.ports.wire import owned, pack, unpack
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid
from sluice.storage.format.checked_payload import CHECKED_FROM, CheckedPayload
from sluice.storage.format.frame import MAX_HEAD_BYTES, decode_head
from tests.actors.bookie.world import World, add, payload_of, read
from tests.sim.loop import simulated


@simulated
async def test_a_stored_run_is_read_back() -> None:
    bookie = await World().started()
    request = add(1, 0, count=3)
    assert await bookie.handle(request) == messages.Done()
    frame = await read(bookie, 1, 0)
    assert frame is not None
    assert bytes(frame.payload) == payload_of(request)
    assert await read(bookie, 1, 1) is None
    assert await read(bookie, 2, 0) is None


@simulated
async def test_large_run_is_read_as_it_was_verified() -> None:
    bookie = await World().started()
    request = add(1, 0, count=2, payload_bytes=CHECKED_FROM)
    await bookie.handle(request)
    reply = await bookie.handle(messages.ReadRun(ledger=1, run=0))
    packed = pack(reply).copied()
    read = unpack(messages.RunRead, packed.head, packed.attachments, packed.handles)
    assert read.payload is not None
    assert read.payload.data is not None
    assert bytes(read.payload.data) == payload_of(request)
    found = CheckedPayload.shown_by(read.payload.data)
    assert found is not None
    assert found.crc == decode_head(request.head).crc
    assert owned(read.payload.data) is read.payload.data


@simulated
async def test_a_repetition_is_done_and_other_contents_conflict() -> None:
    bookie = await World().started()
    await bookie.handle(add(1, 0))
    assert await bookie.handle(add(1, 0)) == messages.Done()
    with pytest.raises(Conflict):
        await bookie.handle(add(1, 0, seed=77))
    results = await asyncio.gather(
        bookie.handle(add(1, 1)), bookie.handle(add(1, 1)), bookie.handle(add(1, 1, seed=78)), return_exceptions=True
    )
    assert [type(result) for result in results] == [messages.Done, messages.Done, Conflict]


@simulated
async def test_a_fence_refuses_older_epochs_and_survives_a_crash() -> None:
    world = World()
    bookie = await world.started()
    await bookie.handle(add(1, 0, epoch=4, last_confirmed=-1))
    await bookie.handle(add(1, 1, epoch=4, last_confirmed=0))
    state = await bookie.handle(messages.FenceLedger(ledger=1, epoch=5))
    assert state == messages.FenceState(last_confirmed=0, last_run=1)
    await world.kill()
    world.disk.crash()
    bookie = await world.started()
    with pytest.raises(Fenced):
        await bookie.handle(add(1, 2, epoch=4))
    with pytest.raises(Fenced):
        await bookie.handle(messages.FenceLedger(ledger=1, epoch=4))
    assert await read(bookie, 1, 1, fence_epoch=6) is not None
    with pytest.raises(Fenced):
        await bookie.handle(add(1, 2, epoch=5))
    assert await bookie.handle(add(1, 2, epoch=6, recovery=True)) == messages.Done()


@simulated
async def test_a_restart_keeps_what_was_answered() -> None:
    world = World()
    bookie = await world.started()
    requests = [add(ledger, run, count=2, last_confirmed=run * 2 - 1) for run in range(20) for ledger in (1, 2, 9)]
    await asyncio.gather(*(bookie.handle(request) for request in requests))
    await bookie.handle(messages.DeleteLedgers(ledgers=[2]))
    await world.kill()
    world.disk.crash()
    bookie = await world.started()
    for ledger in (1, 9):
        index = await bookie.handle(messages.DescribeLedger(ledger=ledger))
        assert isinstance(index, messages.LedgerIndex)
        assert index.runs.tolist() == list(range(20))
        assert index.first_entries.tolist() == list(range(0, 40, 2))
        assert index.counts.tolist() == [2] * 20
        assert index.last_confirmed == 37
    assert await bookie.handle(messages.ListLedgers()) == messages.LedgerList(ledgers=[1, 9])


@simulated
async def test_many_heads_come_in_one_answer() -> None:
    """In the order in which they were asked for; what is not here is left empty."""
    world = World()
    bookie = await world.started()
    requests = [add(1, run) for run in range(3)]
    for request in requests:
        await bookie.handle(request)
    wanted = messages.ReadHeads(ledger=1, runs=np.array([2, 7, 0], np.uint32))
    assert await bookie.handle(wanted) == messages.HeadsRead(heads=[requests[2].head, b"", requests[0].head])
    with pytest.raises(Invalid, match="257 heads"):
        await bookie.handle(messages.ReadHeads(ledger=1, runs=np.arange(257, dtype=np.uint32)))


@simulated
async def test_a_head_is_read_without_its_payload() -> None:
    """However large that is; damage in the head is seen, damage behind it is the business of who reads the rest."""
    world = World()
    bookie = await world.started()
    request = add(1, 0, payload_bytes=300_000)
    await bookie.handle(request)
    pieces: list[int] = []
    read_disk = world.disk.read

    async def counting(name: str, offset: int, length: int) -> bytes:
        piece = await read_disk(name, offset, length)
        pieces.append(len(piece))
        return piece

    world.disk.read = counting  # type: ignore[method-assign]
    reply = await bookie.handle(messages.ReadRun(ledger=1, run=0, part="head"))
    assert reply == messages.RunRead(head=request.head)
    assert sum(pieces) <= MAX_HEAD_BYTES
    assert await bookie.handle(messages.ReadRun(ledger=1, run=1, part="head")) == messages.RunRead()
    journal = world.disk.files["journal-00000001"].data
    at = bytes(journal).index(request.head)
    journal[at + len(request.head) + 1000] ^= 1
    assert await bookie.handle(messages.ReadRun(ledger=1, run=0, part="head")) == reply
    journal[at + len(request.head) - 1] ^= 1
    with pytest.raises(Corrupt):
        decode_head(bytes(journal[at:]))
    with pytest.raises(Corrupt):
        await bookie.handle(messages.ReadRun(ledger=1, run=0, part="head"))
    heads = messages.ReadHeads(ledger=1, runs=np.array([0, 1], np.uint32))
    assert await bookie.handle(heads) == messages.HeadsRead(heads=[b"", b""])
    with pytest.raises(Invalid, match="all or head"):
        await bookie.handle(messages.ReadRun(ledger=1, run=0, part="columns"))
