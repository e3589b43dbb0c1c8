"""Between machines the wanted rows travel; what cannot be cut goes as it is."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.consumer.payload import Payloads
from sluice.actors.lookup.cutting import cut_delivery
from sluice.actors.messages import Delivery, Part
from sluice.actors.ports.wire import Blob
from sluice.storage.format.batch import make_batch
from sluice.storage.format.frame import make_run
from sluice.storage.format.position import positions_of

COUNT = 100
RUN = make_run(
    make_batch(
        pa.record_batch(
            {"key": [f"k{row}" for row in range(COUNT)], "payload": [f"{row:0100d}" for row in range(COUNT)]}
        ),
        now=9,
        producer="p",
    )
)


class Machine:
    """Ports of both sides: what was shared here can be had as long as it is not gone, and no topic answers."""

    def __init__(self) -> None:
        self.net = self.clock = self
        self.gone = False
        self.pauses = 0

    async def fetch(self, blob: Blob) -> memoryview | None:
        return None if self.gone else blob.data if blob.data is not None else memoryview(cast(bytes, blob.handle))

    async def sleep(self, milliseconds: int) -> None:
        self.pauses += 1

    def monotonic(self) -> int:
        return 0


def part_of(rows: list[int], blob: Blob | None, crc: int = RUN.crc) -> Part:
    """Some messages of the run."""
    return Part(
        ledger=1,
        first_entry=50,
        count=COUNT,
        delayed=False,
        shape=RUN.shape,
        crc=crc,
        dispatch=7,
        rows=np.array(rows, np.uint32),
        blob=blob,
    )


def sent(part: Part, least: int = 1, machine: Machine | None = None) -> Part:
    """The part as it travels."""
    original = Delivery(turn=3, parts=[part], confirmed=2)
    delivery = asyncio.run(cut_delivery(cast(Any, machine or Machine()), original, least))
    assert (delivery.turn, delivery.confirmed) == (3, 2)
    assert original.parts == [part], "what was delivered stays as it was decided"
    return delivery.parts[0]


def shown(part: Part) -> list[int]:
    """Return the values that a consumer sees of a part, without a request."""
    machine = cast(Any, Machine())
    (got,) = asyncio.run(Payloads(machine, machine, "t", 0).resolve(part, 1, 1))
    assert got.positions.tolist() == positions_of(1, part.rows.astype(np.int64) + 50).tolist()
    return [int(value) for value in got.rows.column("payload").to_pylist()]


@pytest.mark.parametrize("blob", [Blob(RUN.payload), Blob(handle=bytes(RUN.payload), size=len(RUN.payload))], ids=repr)
def test_the_rows_of_a_consumer_travel_alone(blob: Blob) -> None:
    part = sent(part_of([3, 17, 99], blob))
    assert part.blob is not None
    assert part.blob.handle is None
    assert part.blob.size < len(RUN.payload) // 10
    assert part.rows.tolist() == part.cut.tolist() == [3, 17, 99]
    assert shown(part) == [3, 17, 99]


def test_rows_taken_back_on_the_way_are_left_out() -> None:
    """The inbox gives some of the rows back before they are looked at."""
    part = sent(part_of([3, 17, 20, 99], Blob(RUN.payload)))
    part.rows = np.array([17, 99], np.uint32)
    assert shown(part) == [17, 99]


@pytest.mark.parametrize(
    ("part", "least"),
    [
        (part_of([3], Blob(RUN.payload)), len(RUN.payload) + 1),
        (part_of(list(range(COUNT)), Blob(RUN.payload)), 1),
        (part_of(list(range(COUNT * 6 // 10)), Blob(RUN.payload)), 1),
        (part_of([3], None), 1),
        (part_of([3], Blob(RUN.payload), crc=RUN.crc ^ 1), 1),
    ],
    ids=["small", "all of it", "most of it", "not here", "damaged"],
)
def test_uncut_part_goes_as_it_is(part: Part, least: int) -> None:
    assert sent(part, least) is part


def test_a_payload_that_is_gone_is_the_consumers_to_ask_for() -> None:
    machine = Machine()
    machine.gone = True
    part = part_of([3], Blob(handle=b"", size=len(RUN.payload)))
    assert sent(part, machine=machine) is part


def test_others_have_their_turn_between_large_runs() -> None:
    machine = Machine()
    large = Blob(handle=bytes(RUN.payload), size=3 * 1024 * 1024)
    parts = [part_of([1], large) for _ in range(4)]
    asyncio.run(cut_delivery(cast(Any, machine), Delivery(turn=1, parts=parts), 1))
    assert machine.pauses == 2
