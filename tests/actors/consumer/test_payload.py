"""From a delivered part to its rows: what is handed on is the consumer's own, and keeps no shared memory."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.consumer.payload import (
    GONE_MS,
    DecodedRun,
    DecodedRuns,
    Payloads,
    published_run,
)
from sluice.actors.consumer.unacked_messages import JOINED_BYTES, LazyBatch, join
from sluice.actors.lookup.cutting import cut_read
from sluice.actors.messages import Part, PayloadRead, ReadPayload
from sluice.actors.messages.limits import KEPT_MS
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import NotFound, Unavailable
from sluice.storage.format.batch import make_batch
from sluice.storage.format.checked_payload import NO_SUMS, behind_another
from sluice.storage.format.frame import make_run

RUN = make_run(
    make_batch(pa.record_batch({"key": ["a", "b", "c"], "payload": ["1", "22", "333"]}), now=9, producer="p")
)


class Machine:
    """Ports of a consumer whose payloads lie in memory that others need for something else."""

    def __init__(self) -> None:
        self.shared: list[bytearray] = []
        self.asked = self.fetched = 0
        self.time = 0
        self.again = False
        self.least = 0
        self.net = self.clock = self

    def share(self) -> Blob:
        self.shared.append(bytearray(RUN.payload))
        return Blob(self.shared[-1])

    async def topic(self, *_: object) -> str:
        return "broker-0/topic"

    def monotonic(self) -> int:
        return self.time

    def rows_from(self, to: str) -> int:
        return self.least

    async def fetch(self, blob: Blob) -> memoryview | None:
        self.fetched += blob.data is None
        return blob.data

    async def call(self, to: str, request: ReadPayload, timeout: int) -> PayloadRead:
        self.asked += 1
        self.again = request.again
        return PayloadRead(count=3, delayed=False, shape=RUN.shape, crc=RUN.crc, first_entry=0, payload=self.share())

    def reuse(self) -> None:
        """Raises BufferError if somebody still looks into it."""
        for memory in self.shared:
            memory.clear()


def part_of(rows: list[int], blob: Blob | None, ledger: int = 1) -> Part:
    """Some messages of the run."""
    return Part(
        ledger=ledger,
        first_entry=0,
        count=3,
        delayed=False,
        shape=RUN.shape,
        crc=RUN.crc,
        dispatch=7,
        rows=np.array(rows, np.uint32),
        blob=blob,
    )


@pytest.mark.parametrize("delayed", [True, False])
def test_locally_published_run_is_read_without_a_request(delayed: bool) -> None:
    """And nobody is asked for it."""
    columns = {"key": ["a", "b"], "payload": ["1", "2"]} | ({"deliver_at": [0, 77]} if delayed else {})
    batch = make_batch(pa.record_batch(columns), now=9, producer="p")
    machine, decoded = Machine(), DecodedRuns(lambda: 0)
    decoded.add(published_run(1, 0, make_run(batch), batch))
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0, decoded)
    part = part_of([1], None)
    (got,) = asyncio.run(payloads.resolve(part, 1, 1))
    assert got.rows.column("payload").to_pylist() == [b"2"]
    assert got.deliver_at.tolist() == [77 if delayed else 0]
    assert machine.asked == 0


def test_locally_published_run_keeps_no_memory_of_others() -> None:
    every = make_batch(pa.record_batch({"payload": [b"x" * 100] * 1_000}), now=9, producer="p")
    part = every.slice(7, 9)
    kept = published_run(1, 0, make_run(part), part)
    assert kept.rows.equals(part.rows)
    assert kept.rows.get_total_buffer_size() < 10_000 < every.rows.get_total_buffer_size()


def test_lazy_rows_keep_no_memory_of_others() -> None:
    machine = Machine()
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0, lazy=True)
    (got,) = asyncio.run(payloads.resolve(part_of([0, 2], machine.share()), 1, 1))
    machine.reuse()
    assert got.rows.column("payload").to_pylist() == [b"1", b"333"]


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2]], ids=["whole", "piece"])
@pytest.mark.parametrize("sent", [True, False], ids=["sent along", "asked for"])
def test_resolved_rows_outlive_the_memory_in_which_they_came(rows: list[int], sent: bool) -> None:
    """A whole run, which is not copied to take rows out of it, and a piece; with the part, and from the topic."""
    machine = Machine()
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0)
    (got,) = asyncio.run(payloads.resolve(part_of(rows, machine.share() if sent else None), 1, 1))
    machine.reuse()
    assert got.rows.column("payload").to_pylist() == [[b"1", b"22", b"333"][row] for row in rows]
    assert got.dispatch.tolist() == list(range(7, 7 + len(rows)))
    assert machine.asked == (not sent)


def test_a_run_that_was_asked_for_is_asked_for_once() -> None:
    """Messages fall due a few at a time; one that was sent along comes along again."""
    machine = Machine()
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0)

    async def twice() -> None:
        for row in (0, 2):
            (got,) = await payloads.resolve(part_of([row], None), 1, 1)
            machine.reuse()
            assert got.rows.column("payload").to_pylist() == [[b"1", b"22", b"333"][row]]

    asyncio.run(twice())
    assert machine.asked == 1


class Slow(Machine):
    """The topic takes its time, and does not know the first ones that are asked for."""

    def __init__(self, trimmed: int = 0) -> None:
        super().__init__()
        self.trimmed = trimmed

    def log(self, what: str, **facts: object) -> None:
        """Discard the entry."""

    async def call(self, to: str, request: ReadPayload, timeout: int) -> PayloadRead:
        reply = await super().call(to, request, timeout)
        asked = self.asked
        await asyncio.sleep(0)
        if asked <= self.trimmed:
            raise NotFound("trimmed")
        return reply


@pytest.mark.parametrize(("trimmed", "asked"), [(0, 1), (1, 2)])
def test_consumers_of_one_process_ask_once_for_what_all_want(trimmed: int, asked: int) -> None:
    """At the same time, and later; who waits for another's answer that does not help asks for himself."""
    machine, decoded = Slow(trimmed), DecodedRuns(lambda: 0)
    every = [Payloads(cast(Any, machine), cast(Any, machine), "t", 0, decoded) for _ in range(3)]

    async def take(row: int, payloads: Payloads) -> list[bytes]:
        found = await payloads.resolve(part_of([row], None), 1, 1)
        return [one for got in found for one in got.rows.column("payload").to_pylist()]

    async def scenario() -> list[list[bytes]]:
        return [*await asyncio.gather(take(0, every[0]), take(2, every[1])), await take(1, every[2])]

    assert asyncio.run(scenario()) == [[] if trimmed else [b"1"], [b"333"], [b"22"]]
    assert machine.asked == asked
    assert not decoded.coming


def test_blobs_of_a_dead_process_are_not_asked_for_one_by_one() -> None:
    """Each would take a second; what others shared later, and what it shares itself again, is."""
    machine = Machine()
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0)

    async def take(ledger: int, blob: Blob) -> int:
        (got,) = await payloads.resolve(part_of([1], blob, ledger), 1, 1)
        assert got.rows.column("payload").to_pylist() == [b"22"]
        return machine.fetched

    async def scenario() -> list[int]:
        gone = Blob(handle="gone", size=len(RUN.payload))
        seen = [await take(5, gone), await take(5, gone), await take(4, gone)]
        seen += [await take(5, machine.share()), await take(6, gone)]
        machine.time = GONE_MS + 1
        return [*seen, await take(3, gone)]

    assert asyncio.run(scenario()) == [1, 1, 1, 1, 2, 3]
    assert not machine.again  # the new owner has a copy of its own, which all may use


def test_damage_is_never_handed_on() -> None:
    """The topic is asked instead (S18)."""
    machine = Machine()
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0)
    damaged = machine.share()
    machine.shared[0][-1] ^= 1
    (got,) = asyncio.run(payloads.resolve(part_of([0, 1, 2], damaged), 1, 1))
    assert got.rows.column("payload").to_pylist() == [b"1", b"22", b"333"]
    assert (machine.asked, machine.again) == (1, True)


class Topic(Machine):
    """Ten runs of three messages, which come along when they are wanted next."""

    def __init__(self, along: int = 99) -> None:
        super().__init__()
        self.along = along
        self.wanted: list[list[int]] = []
        self.rng = random.Random(1)

    def log(self, what: str, **facts: object) -> None:
        """Discard the entry."""

    async def sleep(self, milliseconds: int) -> None:
        """At once."""

    async def call(self, to: str, request: ReadPayload, timeout: int) -> PayloadRead:
        self.asked += 1
        self.wanted.append(request.ahead.tolist())
        firsts = sorted({entry // 3 * 3 for entry in request.ahead.tolist()})[: self.along]
        reply = self.read(request.entry // 3 * 3)
        reply.ahead = [self.read(first) for first in firsts]
        return reply

    def read(self, first: int) -> PayloadRead:
        """The run that begins there."""
        return PayloadRead(
            count=3, delayed=False, shape=RUN.shape, crc=RUN.crc, first_entry=first, payload=self.share()
        )


def due(rows: list[int]) -> Part:
    """Messages that fell due, of runs that the dispatcher has forgotten."""
    part = part_of(rows, None)
    part.count = 0
    return part


async def resolved(payloads: Payloads, parts: list[Part]) -> list[int]:
    """Return the entries that the parts resolve to, in order, with their contents checked."""
    payloads.expect(parts)
    entries: list[int] = []
    for part in parts:
        for got in await payloads.resolve(part, 1, 1):
            here = (got.positions & 0xFFFFFFFF).tolist()
            assert got.rows.column("payload").to_pylist() == [[b"1", b"22", b"333"][entry % 3] for entry in here]
            entries += here
    return entries


def test_messages_due_in_many_runs_come_with_one_answer() -> None:
    """One message of each of ten runs, in two parts: without it, each would wait for the answer before it."""
    topic = Topic()
    payloads = Payloads(cast(Any, topic), cast(Any, topic), "t", 0)
    rows = [3 * run + run % 3 for run in range(10)]
    assert asyncio.run(resolved(payloads, [due(rows[:4]), due(rows[4:])])) == rows
    assert topic.wanted == [rows[1:]]


def test_runs_that_did_not_come_along_are_asked_for() -> None:
    topic = Topic(along=2)
    payloads = Payloads(cast(Any, topic), cast(Any, topic), "t", 0)

    async def scenario() -> None:
        assert await resolved(payloads, [due([0, 3, 4, 6, 9])]) == [0, 3, 4, 6, 9]
        assert await resolved(payloads, [due([1, 5, 12])]) == [1, 5, 12]

    asyncio.run(scenario())
    assert topic.wanted == [[3, 4, 6, 9], [], []]


def test_a_second_try_asks_for_nothing_more() -> None:
    """Unreachable runs may be among those wanted next: they must not hold up the wanted one."""
    topic = Topic()
    payloads = Payloads(cast(Any, topic), cast(Any, topic), "t", 0)
    answer = topic.call

    async def refuse_once(to: str, request: ReadPayload, timeout: int) -> PayloadRead:
        reply = await answer(to, request, timeout)
        if topic.asked == 1:
            raise Unavailable("a bookie is frozen")
        return reply

    topic.call = refuse_once  # type: ignore[method-assign]
    assert asyncio.run(resolved(payloads, [due([0, 3])])) == [0, 3]
    assert topic.wanted == [[3], [], []]


LARGE = make_run(
    make_batch(
        pa.record_batch({"key": [f"k{row}" for row in range(90)], "payload": [f"{row}" * 9 for row in range(90)]}),
        now=9,
        producer="p",
    )
)


class Far(Machine):
    """The topic is on another machine. It has runs of 90 messages, in one ledger, and cuts them."""

    def __init__(self) -> None:
        super().__init__()
        self.least = 1
        self.requests: list[ReadPayload] = []

    def run(self, number: int) -> PayloadRead:
        payload = Blob(bytes(LARGE.payload))
        return PayloadRead(
            count=90, delayed=False, shape=LARGE.shape, crc=LARGE.crc, first_entry=90 * number, payload=payload
        )

    async def call(self, to: str, request: ReadPayload, timeout: int) -> PayloadRead:
        self.requests.append(request)
        own = request.entry // 90
        ports = cast(Any, self)
        ahead = [self.run(number) for number in np.unique(request.ahead // 90).tolist() if number != own]
        reply = await cut_read(ports, self.run(own), request.wanted, request.rows_from)
        reply.ahead = [await cut_read(ports, read, request.ahead, request.rows_from) for read in ahead]
        return reply


def wanted_of(number: int, rows: list[int]) -> Part:
    """A part without a payload, of run `number`."""
    return Part(
        ledger=1, first_entry=90 * number, count=90, delayed=False, shape=LARGE.shape, crc=LARGE.crc, dispatch=0,
        rows=np.array(rows, np.uint32),
    )  # fmt: skip


def test_remote_topic_is_asked_for_wanted_rows_only() -> None:
    """Rows of the next runs come along; rows not asked for then are asked for later; an unknown run is cut too."""
    machine = Far()
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0)
    parts = [wanted_of(0, [1, 5]), wanted_of(1, [0, 80]), wanted_of(1, [0, 7, 80])]
    unknown = wanted_of(0, [185, 190])
    unknown.first_entry = unknown.count = 0

    async def scenario() -> list[list[bytes]]:
        payloads.expect(parts[:2])
        seen = []
        for part in [*parts, unknown]:
            got = await payloads.resolve(part, 1, 1)
            seen.append([value for piece in got for value in piece.rows.column("payload").to_pylist()])
            assert sum(len(piece) for piece in got) == len(part.rows)
        return seen

    def values(*rows: int) -> list[bytes]:
        return [(f"{row}" * 9).encode() for row in rows]

    assert asyncio.run(scenario()) == [values(1, 5), values(0, 80), values(0, 7, 80), values(5, 10)]
    assert [request.entry for request in machine.requests] == [1, 97, 185]
    assert [request.wanted.tolist() for request in machine.requests] == [[1, 5], [97, 170], [185, 190]]


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 5), st.sets(st.integers(0, 3))), max_size=8), st.data())
def test_missing_entries_are_those_not_found(kept: list[tuple[int, int, set[int]]], data: st.DataObject) -> None:
    """The runs have four entries; some are whole, others have only a few entries here."""
    decoded = DecodedRuns(lambda: 0)
    for ledger, number, some in kept:
        held = np.array(sorted(some), np.int64) + 4 * number if some else None
        rows = pa.record_batch({"key": [b"k"] * (len(some) or 4)})
        decoded.add(DecodedRun(ledger, 4 * number, rows, None, 1, held))
    entries = np.array(sorted(data.draw(st.sets(st.integers(0, 30)))), np.int64)
    expected = [entry for entry in entries.tolist() if decoded.find(1, entry) is None]
    assert decoded.missing(1, entries).tolist() == expected


def test_runs_that_were_used_are_forgotten_after_a_while() -> None:
    """Runs that were never used stay, and so do runs that were wanted again meanwhile."""
    rows = pa.record_batch({"key": [b"k"] * 4})
    shared, own = DecodedRuns(lambda: 0, forgets=True), DecodedRuns(lambda: 0)
    for decoded in (shared, own):
        for first in (0, 4, 8):
            decoded.add(DecodedRun(1, first, rows, None, 1))
        for wanted in ([], [1, 5], [6]):
            assert all(decoded.find(1, entry) is not None for entry in wanted)
            decoded.forget_used()
    assert shared.missing(1, np.arange(12)).tolist() == [0, 1, 2, 3]
    assert own.missing(1, np.arange(12)).tolist() == []


def test_run_that_was_fetched_counts_as_used() -> None:
    rows = pa.record_batch({"key": [b"k"] * 4})
    decoded = DecodedRuns(lambda: 0, forgets=True)
    decoded.add(DecodedRun(1, 0, rows, None, 1), used=True)
    decoded.add(DecodedRun(1, 4, rows, None, 1))
    for _ in range(2):
        assert decoded.missing(1, np.arange(8, 12)).tolist() == [8, 9, 10, 11]
        decoded.forget_used()
    assert decoded.missing(1, np.arange(8)).tolist() == [0, 1, 2, 3]


def test_large_pieces_are_not_joined() -> None:
    def piece(size: int) -> LazyBatch:
        rows, zeros = pa.record_batch({"payload": [bytes(size)]}), np.zeros(1, np.int64)
        columns = {"positions": zeros, "dispatch": zeros, "redeliveries": zeros.astype(np.uint8), "deliver_at": zeros}
        return LazyBatch([(rows, None)], partition=0, epoch=1, session=1, **columns)

    half = JOINED_BYTES // 2
    sizes = [10, 10, half, half, JOINED_BYTES, 10, 10, half]
    assert [len(one) for one in join([piece(size) for size in sizes])] == [3, 1, 1, 3]


LARGE_PAYLOADS = make_run(
    make_batch(pa.record_batch({"payload": [bytes([n]) * 50_000 for n in range(3)]}), now=9, producer="p")
)


class LargeMachine(Machine):
    """A machine whose topic has a large run."""

    async def call(self, to: str, request: ReadPayload, timeout: int) -> PayloadRead:
        self.asked += 1
        blob = Blob(LARGE_PAYLOADS.payload)
        return PayloadRead(
            count=3, delayed=False, shape=LARGE_PAYLOADS.shape, crc=LARGE_PAYLOADS.crc, first_entry=0, payload=blob
        )


def large_part(rows: list[int], blob: Blob | None = None) -> Part:
    return msgspec.structs.replace(part_of(rows, blob), shape=LARGE_PAYLOADS.shape, crc=LARGE_PAYLOADS.crc)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2]], ids=["whole", "piece"])
@pytest.mark.parametrize("damaged", [True, False])
def test_large_payloads_come_with_their_sums(damaged: bool, rows: list[int], lazy: bool) -> None:
    """A payload that was sent along with a flipped byte is asked for."""
    machine, data = LargeMachine(), bytearray(LARGE_PAYLOADS.payload)
    data[70_000] ^= damaged
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0, lazy=lazy, sums=True)
    (got,) = asyncio.run(payloads.resolve(large_part(rows, Blob(data)), 1, 1))
    assert machine.asked == damaged
    taken = got.take(np.array([1]))
    for one, expected in ((got, rows), (taken, rows[1:2])):
        values = one.rows.column("payload").to_pylist()
        assert values == [bytes([row]) * 50_000 for row in expected]
        for value, (before, end) in zip(values, one.sums.tolist(), strict=True):
            assert behind_another(0, before, end, len(value)) == google_crc32c.value(value)


def test_sums_stay_with_their_rows() -> None:
    machine = LargeMachine()
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0, lazy=True, sums=True)
    one, other = (asyncio.run(payloads.resolve(large_part([0, 1, 2]), 1, 1))[0] for _ in range(2))
    sums = one.sums.tolist()
    (both,) = join([one, other])
    assert both.sums.tolist() == sums * 2
    other.take_back(np.array([1]))
    assert other.sums.tolist() == [sums[0], sums[2]]
    other.sums = NO_SUMS
    (both,) = join([one, other])
    assert both.sums is NO_SUMS
    one.release()
    assert one.sums is NO_SUMS


def test_parts_have_no_sums_that_nobody_wants() -> None:
    machine = LargeMachine()
    payloads = Payloads(cast(Any, machine), cast(Any, machine), "t", 0)
    (got,) = asyncio.run(payloads.resolve(large_part([0]), 1, 1))
    assert got.sums is NO_SUMS


def test_a_run_is_not_found_when_messages_may_be_erased() -> None:
    """However often it is used."""
    now, rows = 5, pa.record_batch({"key": [b"k"] * 4})
    decoded = DecodedRuns(lambda: now)
    decoded.add(DecodedRun(1, 0, rows, None, 1))
    now += KEPT_MS - 1
    assert decoded.find(1, 0) is not None
    decoded.add(DecodedRun(1, 4, rows, None, 1))
    now += 1
    assert decoded.missing(1, np.arange(8)).tolist() == [0, 1, 2, 3]
    decoded.add(DecodedRun(1, 0, rows, None, 1))
    now += KEPT_MS - 1
    assert decoded.missing(1, np.arange(8)).tolist() == [4, 5, 6, 7]
