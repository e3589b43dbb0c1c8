"""A producer whose partition has a damaged record, and a producer with a damaged message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.actors.producer import producer
from sluice.storage.errors import Corrupt, SluiceError
from sluice.storage.format.batch import StoredBatch
from sluice.storage.format.frame import Run, make_run
from tests.scenarios.key_shared.broker import Broker, play

DAMAGED_MS = 20_000


@pytest.mark.parametrize(
    "calls", [("create partition/",), ("read partition/",), ("create partition/", "read partition/")]
)
def test_messages_wait_until_their_record_is_mended(calls: tuple[str, ...]) -> None:
    """And are stored then, once; who comes meanwhile is told what is wrong."""

    async def scenario(broker: Broker) -> None:
        await broker.publish("a")
        outcomes: list[list[SluiceError]] = []

        async def offer() -> None:
            for number in range(20):
                outcomes.append(await broker.offer(f"late-{number}"))
                await broker.quiet(500)

        broker.world.meta.trouble.refused.update(dict.fromkeys(calls, Corrupt))
        broker.world.background(offer(), "offer")
        await broker.quiet(DAMAGED_MS)
        broker.world.meta.trouble.refused.clear()
        await broker.until(lambda: len(outcomes) == 20, 60_000)
        assert outcomes == [[]] * 20
        client = await broker.join("c")
        await broker.until(lambda: len(client.got) == 21)
        await broker.quiet(1_000)
        assert client.came() == ["a", *(f"late-{number}" for number in range(20))]

    play(scenario, topic={"roll_entries": 3})


def test_a_message_damaged_before_it_is_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish("a")

        def damaged(batch: StoredBatch, compression: str | None = None) -> Run:
            run = make_run(batch, compression)
            return replace(run, crc=run.crc ^ 1)

        monkeypatch.setattr(producer, "make_run", damaged)
        (error,) = await broker.world.within(DAMAGED_MS, broker.offer("b"), "it is sent for ever")
        assert isinstance(error, Corrupt)

    play(scenario)
