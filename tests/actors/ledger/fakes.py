"""Bookies in memory behind a wire that does what a test tells it to, on the simulator's time.

They are no bookies of the simulator, because tests of the protocol begin with what no request of it can make at will:
one copy that was altered, a confirmation that outlives its run, an epoch that nobody asked for. Bookies with disks of
their own play in `tests/actors/topic` and in the worlds `ledger` and `bookie`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import numpy as np

from sluice.actors.ledger.bookies import Bookies
from sluice.actors.ledger.record import Fragment, LedgerRecord, LedgerState
from sluice.actors.messages import (
    AddRun,
    BookieList,
    DeleteLedgers,
    DescribeLedger,
    Done,
    FenceLedger,
    FenceState,
    HeadsRead,
    LedgerIndex,
    LedgerList,
    ListLedgers,
    ReadHeads,
    ReadRun,
    RunRead,
)
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Blob, Reply, Request
from sluice.storage.errors import Conflict, Corrupt, Fenced, NotFound, SluiceError, Unavailable
from sluice.storage.format.frame import Buffer, Header, Run, decode_head, encode_head
from tests.actors.topic.cluster import make_test_run
from tests.kit.asking import ask_in_task
from tests.kit.meta import MemoryMeta
from tests.sim.clock import EPOCH_MS, SimClock, SimRng
from tests.sim.loop import current_loop
from tests.sim.meta import StoreFaults
from tests.sim.objects import ObjectStore, SimObjects

R = TypeVar("R", bound=Reply)
T = TypeVar("T")

Rule = Callable[[str, Request[Any]], str | None]
"""(bookie, request) -> None (deliver), "lose", "lose reply", "hold" (deliver when released), "refuse", "damaged"."""


class FakeBookie:
    """A bookie in memory that keeps its promises: epochs, runs, and the answers to the requests of the ledger
    protocol.
    """

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.runs: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.confirmed: dict[int, int] = {}
        self.deleted: list[int] = []

    def answer(self, request: Request[Any]) -> Reply:
        """One request."""
        if isinstance(request, AddRun):
            return self._add(request)
        if isinstance(request, FenceLedger):
            self._raise(request.ledger, request.epoch)
            runs = [run for ledger, run in self.runs if ledger == request.ledger]
            return FenceState(last_confirmed=self.confirmed.get(request.ledger, -1), last_run=max(runs, default=-1))
        if isinstance(request, ReadRun):
            if request.fence_epoch is not None:
                self._raise(request.ledger, request.fence_epoch)
            found = self.runs.get((request.ledger, request.run))
            if found is None:
                return RunRead()
            return RunRead(head=found[0], payload=None if request.part == "head" else Blob(found[1]))
        if isinstance(request, ReadHeads):
            stored = [self.runs.get((request.ledger, run)) for run in request.runs.tolist()]
            return HeadsRead(heads=[b"" if frame is None else frame[0] for frame in stored])
        if isinstance(request, DescribeLedger):
            heads = [
                decode_head(head) for (ledger, _), (head, _) in sorted(self.runs.items()) if ledger == request.ledger
            ]
            return LedgerIndex(
                runs=np.array([head.run for head in heads], np.uint32),
                first_entries=np.array([head.first_entry for head in heads], np.uint32),
                counts=np.array([head.count for head in heads], np.uint32),
                last_confirmed=self.confirmed.get(request.ledger, -1),
            )
        if isinstance(request, DeleteLedgers):
            self.deleted += request.ledgers
            self.runs = {key: value for key, value in self.runs.items() if key[0] not in request.ledgers}
            return Done()
        if isinstance(request, ListLedgers):
            return LedgerList(ledgers=sorted({ledger for ledger, _ in self.runs}))
        raise AssertionError(f"a bookie does not answer {request}")

    def _raise(self, ledger: int, epoch: int) -> None:
        if ledger in self.deleted:
            raise NotFound(f"ledger {ledger} was deleted")
        if epoch < self.epochs.get(ledger, 0):
            raise Fenced(f"ledger {ledger} is at epoch {self.epochs[ledger]}")
        self.epochs[ledger] = epoch

    def _add(self, add: AddRun) -> Done:
        self._raise(add.ledger, add.epoch)
        header = decode_head(add.head)
        data = add.payload.data
        if data is None:
            raise Unavailable("the payload's handle is gone")
        key = (header.ledger, header.run)
        if key in self.runs and self.runs[key][0] != add.head:
            raise Conflict(f"another run is stored as {key}")
        self.runs[key] = (add.head, bytes(data))
        self.confirmed[header.ledger] = max(self.confirmed.get(header.ledger, -1), header.last_confirmed)
        return Done()


class Wire:
    """A Net between one owner and fake bookies; every request is written down in `calls`."""

    def __init__(self, names: list[str]) -> None:
        self.bookies = {name: FakeBookie() for name in names}
        self.rules: list[Rule] = []
        self.calls: list[tuple[str, Request[Any]]] = []
        self.held: list[tuple[str, Request[Any]]] = []
        self.gone_handles = False

    async def call(self, to: Address, request: Request[R], timeout: int) -> R | Unknown:
        """Deliver as the rules say."""
        self.calls.append((to, request))
        await asyncio.sleep(0)
        what = next((said for rule in self.rules if (said := rule(to, request)) is not None), None)
        if what == "lose":
            return Unknown("lost")
        if what == "hold":
            self.held.append((to, request))
            return Unknown("held back")
        if what == "refuse":
            raise Unavailable("told to refuse")
        if what == "damaged":
            raise Corrupt("told to be damaged")
        reply = self.bookies[to].answer(request)
        return Unknown("reply lost") if what == "lose reply" else cast(R, reply)

    def ask(
        self, to: Address, request: Request[R], timeout: int, on_answer: Callable[[R | Unknown | SluiceError], None]
    ) -> None:
        """See call."""
        ask_in_task(self, to, request, timeout, on_answer)

    def release(self) -> list[Reply | Exception]:
        """Held requests arrive now; returns what the bookies made of them."""
        outcomes: list[Reply | Exception] = []
        held, self.held = self.held, []
        for to, request in held:
            try:
                outcomes.append(self.bookies[to].answer(request))
            except Exception as error:
                outcomes.append(error)
        return outcomes

    async def share(self, *parts: Buffer) -> Blob:
        """By handle."""
        payload = b"".join(parts)
        return Blob(None, handle=payload, size=len(payload))

    async def fetch(self, blob: Blob) -> memoryview | None:
        """The bytes behind a handle."""
        return blob.data if blob.data is not None else memoryview(cast(bytes, blob.handle))

    def rows_from(self, to: str) -> int:
        """Everybody is near."""
        return 0

    def holders(self, ledger: int, run: int) -> list[str]:
        """Return the bookies that have a run."""
        return [name for name, bookie in self.bookies.items() if (ledger, run) in bookie.runs]


class Lab:
    """One owner's ports over a Wire, and what its tests need around them. A test that uses it is `simulated`."""

    def __init__(self, names: str = "abcde", me: str = "owner") -> None:
        self.wire = Wire(list(names))
        self.loop = current_loop()
        self.meta = MemoryMeta()
        self.store = ObjectStore(self.loop, 1)
        self.store.trouble.faults = StoreFaults(delay_ms=(0, 0))
        self.tasks: list[asyncio.Task[None]] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        self.ports = self.make_ports(me)
        self.bookies = Bookies(self.ports, self.list_bookies)

    def make_ports(self, me: str) -> Ports:
        """Ports of one more actor in this lab."""
        return Ports(
            me=me,
            clock=SimClock(self.loop, 1, "here", {"here": -EPOCH_MS}),
            net=self.wire,
            objects=SimObjects(self.store, "here"),
            meta=self.meta,
            rng=SimRng("lab"),
            spawn=self._spawn,
            log=lambda event, **fields: self.events.append((event, fields)),
        )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.append(task)
        return task

    async def list_bookies(self) -> BookieList:
        """All of them."""
        names = sorted(self.wire.bookies)
        return BookieList(ids=names, addresses=names)

    async def settle(self, milliseconds: int = 60_000) -> None:
        """Let everything run that can; fails with what a task raised."""
        await self.loop.pause(milliseconds)
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise cast(BaseException, task.exception())

    def put(self, bookie: str, ledger: int, run: int, first_entry: int, count: int = 2, confirmed: int = -1) -> None:
        """A run that the old writer (epoch 1) left at a bookie."""
        stored, head = make_stored(ledger, run, first_entry, count, confirmed)
        self.wire.bookies[bookie].answer(AddRun(ledger=ledger, epoch=1, head=head, payload=Blob(stored.payload)))


def make_stored(ledger: int, run: int, first_entry: int, count: int = 2, confirmed: int = -1) -> tuple[Run, bytes]:
    """A run and the head it is stored under."""
    made = make_test_run([f"{run}-{row}" for row in range(count)])
    header = Header(ledger, run, first_entry, count, 1, confirmed, "p", first_entry, False, made.shape, made.crc)
    return made, encode_head(header, len(made.payload))


def make_ledger(
    bookies: str = "abc", write: int = 3, ack: int = 2, ledger_id: int = 7, state: LedgerState = LedgerState.IN_RECOVERY
) -> LedgerRecord:
    """A ledger with one fragment."""
    return LedgerRecord(
        id=ledger_id, state=state, ensemble=len(bookies), write_quorum=write, ack_quorum=ack,
        fragments=(Fragment(0, 0, tuple(bookies)),),
    )  # fmt: skip
