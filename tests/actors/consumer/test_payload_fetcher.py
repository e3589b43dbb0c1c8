"""Parts that wait for their payload: how many bytes of them are here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.consumer import payload_fetcher as module
from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.payload_fetcher import PayloadFetcher
from sluice.actors.consumer.unacked_messages import LazyBatch, Received
from sluice.actors.messages import Part
from sluice.actors.ports.wire import Blob
from sluice.storage.format.position import Positions
from tests.actors.consumer.test_payload import part_of
from tests.sim.world import World

SIZE = 1_000


class Fetched:
    """Payloads of one message each, of SIZE bytes. blobs: which parts brought theirs."""

    def __init__(self) -> None:
        self.blobs: list[bool] = []

    def expect(self, parts: Iterable[Part]) -> None:
        """Nothing is asked for together."""

    async def resolve(self, part: Part, epoch: int, session: int) -> list[LazyBatch]:
        self.blobs.append(part.blob is not None)
        rows = pa.record_batch({"payload": [b"x" * SIZE]})
        positions = np.array([(part.ledger << 32) + part.first_entry], np.int64)
        zeros = np.zeros(1, np.int64)
        columns = {"positions": positions, "dispatch": zeros, "redeliveries": zeros.astype(np.uint8)}
        return [LazyBatch([(rows, None)], partition=0, deliver_at=zeros, epoch=epoch, session=session, **columns)]


def played(scenario: object) -> None:
    World(0).play(scenario)  # type: ignore[arg-type]


def opened(world: World) -> tuple[PayloadFetcher, Fetched, list[list[Received]]]:
    """An inbox that fetches, and what came of it, each time."""
    came: list[list[Received]] = []

    def on_came(messages: Sequence[Received], trimmed: Positions) -> None:
        came.append(list(messages))

    ports, fetched = world.client("reader"), Fetched()
    inbox = PayloadFetcher(ports, cast(Payloads, fetched), on_came)
    return inbox, fetched, came


def parts(count: int, size: int = 0) -> list[Part]:
    return [part_of([0], Blob(b"x" * size) if size else None, ledger=number + 1) for number in range(count)]


def test_payloads_that_find_no_room_are_asked_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INBOX_BYTES", 10 * SIZE)

    async def scenario(world: World) -> None:
        inbox, fetched, _ = opened(world)
        inbox.hold(True)
        inbox.add(parts(15, SIZE), 1, 1)
        inbox.add(parts(5, SIZE), 1, 1)
        inbox.hold(False)
        await world.client("reader").clock.sleep(10)
        assert fetched.blobs == [True] * 10 + [False] * 10
        inbox.add(parts(5, SIZE), 1, 1)
        await world.client("reader").clock.sleep(10)
        assert fetched.blobs[20:] == [True] * 5, "there is room again"

    played(scenario)


def test_fetch_of_joined_parts_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOIN_BYTES", 10 * SIZE)

    async def scenario(world: World) -> None:
        inbox, fetched, came = opened(world)
        inbox.add(parts(35), 1, 1)
        await world.client("reader").clock.sleep(10)
        assert [sum(len(part) for part in together) for together in came] == [10, 10, 10, 5]
        assert len(fetched.blobs) == 35

    played(scenario)


def test_nothing_is_fetched_while_the_consumer_has_enough() -> None:
    async def scenario(world: World) -> None:
        inbox, fetched, came = opened(world)
        inbox.hold(True)
        inbox.add(parts(3), 1, 1)
        await world.client("reader").clock.sleep(10)
        assert (len(inbox), fetched.blobs, came) == (3, [], [])
        inbox.hold(False)
        await world.client("reader").clock.sleep(10)
        assert (len(inbox), len(fetched.blobs)) == (0, 3)

    played(scenario)
