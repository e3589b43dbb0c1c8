"""A simulated network: every message is packed to bytes, and may be late, lost, repeated or overtaken.

A call is two messages, the request and the reply, each with a fate of its own; so a call that ends as `Unknown` may
have been executed, may be executed later (its late copy still travels), or never. The caller's time-out ends only
its own waiting. A request is decoded afresh for each copy, and columns are copied at the time of sending, as a real
wire would: an actor that changes an array after it sent it deceives nobody but itself.

Links join machines (the part of an address before the slash) and each direction is separate, so that a partition can
be one-way. What a link does is data (`LinkFaults`), one for all links and, if need be, one for a pair.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from zlib import crc32

from sluice.actors.ports import Address, Unknown
from sluice.actors.ports.wire import Blob, Packed, Reply, Request, pack, pack_error
from sluice.actors.runtime.host import Answer, Message, OnAnswer, opened
from sluice.storage.errors import SluiceError
from sluice.storage.format.frame import Buffer
from tests.sim.loop import SimLoop

R = TypeVar("R", bound=Reply)


class Process(Protocol):
    """A process that calls others, or is called."""

    name: str
    machine: str
    alive: bool

    def soon(self, call: Callable[[], object]) -> None:
        """Have it call something, unless it ends before that."""

    def accept(self, kind: str, message: Message, on_answer: OnAnswer) -> None:
        """Answer a request."""


class Processes(Protocol):
    """A world that has processes."""

    loop: SimLoop
    network: Network

    @property
    def witness(self) -> Callable[[Any, Address, Request[Any], Any], None] | None:
        """Sees each call with its outcome."""

    def at(self, address: Address) -> Process | None:
        """The living process at an address."""

    def trace(self, kind: str, source: str, target: str) -> None:
        """Note a call."""


@dataclass
class LinkFaults:
    """The faults that may befall one message on a link. Chances are per message, times in milliseconds."""

    delay_ms: tuple[int, int] = (0, 2)
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    """A message is held back, long enough that the caller has given up; a copy may have come through in time."""
    late_ms: tuple[int, int] = (500, 20_000)
    gone_hint: float = 0.9
    """How likely a caller is told at once that the actor it calls has ended. On the callee's own machine it always is:
    the host that both have answers.
    """
    blob_loss: float = 0.0
    """How likely a shared payload cannot be fetched although its sharer lives."""
    share_above: int = 1024
    """Payloads of more than this many bytes travel by handle."""


class SimHandle:
    """A payload in the shared memory of the process that shared it; gone when that process ends."""

    __slots__ = ("data", "owner")

    def __init__(self, data: bytes, owner: Process) -> None:
        self.data = data
        self.owner = owner


class Network:
    """All links of a world, and the calls under way."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.faults = LinkFaults()
        self.pairs: dict[tuple[str, str], LinkFaults] = {}
        self.counters: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.refusals: dict[str, tuple[float, tuple[SluiceError, ...]]] = {}
        """By kind of request: how likely it is refused without reason, and with what; on every link."""
        self._loop = loop
        self._rng = random.Random(f"net/{seed}")
        self._within: dict[Address, dict[asyncio.Future[Answer], None]] = {}
        """Calls under way between actors of one machine, by address of the callee."""
        self._cut: dict[tuple[str, str], int] = {}
        self.lost: dict[tuple[str, str], int] = {}
        """How many messages cuts have lost, by machine that sent and machine that was to get it."""

    def cut(self, source: str, target: str) -> None:
        """Lose everything that machine `source` sends to machine `target`, until `join`. Cuts nest."""
        self._cut[source, target] = self._cut.get((source, target), 0) + 1
        self.count("cut")

    def join(self, source: str, target: str) -> None:
        """Take one cut of a direction back."""
        left = self._cut.get((source, target), 0) - 1
        if left > 0:
            self._cut[source, target] = left
        else:
            self._cut.pop((source, target), None)

    def heal(self) -> None:
        """Take every cut and fault back; messages that are late stay on their way."""
        self._cut.clear()
        self.pairs.clear()
        self.refusals.clear()
        share_above = self.faults.share_above
        self.faults = LinkFaults(share_above=share_above)

    def carry(self, source: str, target: str, arrive: Callable[[], object]) -> None:
        """Send one message: `arrive` runs once, several times or never; within a machine at least once, because no
        connection is between two actors of one process.
        """
        if self._swallowed(source, target):
            return
        faults = self.pairs.get((source, target), self.faults)
        chance = self._rng.random
        if faults.loss and chance() < faults.loss and source != target:
            self.count("lost")
            return
        if faults.late and chance() < faults.late:
            self.count("late")
            self._send(source, target, self._between(faults.late_ms), arrive)
            if chance() < 0.5:
                return
        self._send(source, target, self._between(faults.delay_ms), arrive)
        if faults.repeat and chance() < faults.repeat:
            self.count("repeated")
            self._send(source, target, self._between(faults.delay_ms) * 4, arrive)

    def begun_within(self, to: Address, future: asyncio.Future[Answer]) -> None:
        """An actor has a request from its own machine."""
        self._within.setdefault(to, {})[future] = None

    def over_within(self, to: Address, future: asyncio.Future[Answer]) -> None:
        """The caller waits no longer. Fine if it never had begun."""
        self._within.get(to, {}).pop(future, None)

    def ended(self, address: Address) -> None:
        """An actor has ended: who asked it from its own machine is told so, because the host of both lives on."""
        for future in self._within.pop(address, {}):
            self._loop.after(0, _settle, future, Unknown(f"{address} has ended", gone=True))

    def is_cut(self, source: str, target: str) -> bool:
        """Whether this direction is cut now."""
        return (source, target) in self._cut

    def _swallowed(self, source: str, target: str) -> bool:
        if not self.is_cut(source, target):
            return False
        self.count("lost in partition")
        self.lost[source, target] = self.lost.get((source, target), 0) + 1
        return True

    def chance(self, probability: float) -> bool:
        """A seeded yes or no."""
        return probability > 0 and self._rng.random() < probability

    def refusal(self, kind: str) -> SluiceError | None:
        """Return the error with which a request of this kind is refused, if it is."""
        likely, errors = self.refusals.get(kind, (0.0, ()))
        if not self.chance(likely):
            return None
        self.count(f"refused {kind}")
        return errors[self._rng.randrange(len(errors))]

    def count(self, what: str) -> None:
        """Count a fault that happened."""
        self.counters[what] = self.counters.get(what, 0) + 1

    def _between(self, span: tuple[int, int]) -> int:
        return span[0] + int(self._rng.random() * (span[1] - span[0] + 1))

    def _send(self, source: str, target: str, delay: int, arrive: Callable[[], object]) -> None:
        def land() -> None:
            if not self._swallowed(source, target):
                arrive()

        self._loop.after(delay, land)


class SimNet:
    """The network as one process sees it. Implements actors.ports.Net."""

    def __init__(self, world: Processes, process: Process) -> None:
        self._world = world
        self._process = process
        self._loop = world.loop
        self._network = world.network

    async def call(self, to: Address, request: Request[R], timeout: int) -> R | Unknown:
        """Ask a peer: its reply, or Unknown; its refusal is raised."""
        future, over = self._send(to, request, timeout)
        try:
            answer = await future
        finally:
            over()
        return self._outcome(to, request, answer)

    def ask(
        self, to: Address, request: Request[R], timeout: int, on_answer: Callable[[R | Unknown | SluiceError], None]
    ) -> None:
        """Ask a peer; the outcome comes by a call in this process."""
        future, over = self._send(to, request, timeout)

        def answered() -> None:
            outcome: R | Unknown | SluiceError
            try:
                outcome = self._outcome(to, request, future.result())
            except SluiceError as error:
                outcome = error
            on_answer(outcome)

        def settled(_: object) -> None:
            over()
            self._process.soon(answered)

        future.add_done_callback(settled)

    def _send(
        self, to: Address, request: Request[Any], timeout: int
    ) -> tuple[asyncio.Future[Answer], Callable[[], None]]:
        """The answer to a request that is sent now, and what is called when nobody waits for it any more."""
        kind = type(request).__name__
        packed = pack(request).copied()
        self._network.calls[kind] = self._network.calls.get(kind, 0) + 1
        future: asyncio.Future[Answer] = self._loop.create_future()
        timer = self._loop.after(timeout, _settle, future, Unknown(f"no answer to {kind} from {to} in {timeout} ms"))
        here, there = self._process.machine, to.partition("/")[0]
        self._network.carry(here, there, lambda: self._arrive(to, kind, packed, future))

        def over() -> None:
            timer.cancel()
            self._network.over_within(to, future)

        return future, over

    def _outcome(self, to: Address, request: Request[R], answer: Answer) -> R | Unknown:
        """The reply of a peer, or Unknown. Raises its refusal."""
        witness = self._world.witness
        reply = opened(request, answer) if isinstance(answer, Packed) else None
        if witness is not None:
            witness(self._process, to, request, answer if reply is None else reply)
        return opened(request, answer) if reply is None else reply

    async def share(self, *parts: Buffer) -> Blob:
        """Large payloads by handle, small ones inline."""
        data = b"".join(parts)
        if len(data) <= self._network.faults.share_above:
            return Blob(data)
        return Blob(data=data, handle=SimHandle(data, self._process), size=len(data))

    async def fetch(self, blob: Blob) -> memoryview | None:
        """The payload, or None if its sharer ended or cannot be reached."""
        if blob.data is not None:
            return blob.data
        handle = blob.handle
        if not isinstance(handle, SimHandle):
            return None
        await self._loop.pause(0)
        owner = handle.owner
        unreachable = self._network.is_cut(owner.machine, self._process.machine)
        if unreachable:
            self._network.lost[owner.machine, self._process.machine] = 1
        if not owner.alive or unreachable or self._network.chance(self._network.faults.blob_loss):
            self._network.count("blob gone")
            return None
        return memoryview(handle.data)

    def rows_from(self, to: Address) -> int:
        """Every second machine is one that payloads travel to whole."""
        here, there = self._process.machine, to.partition("/")[0]
        return int(here != there and crc32(here.encode()) % 2)

    def _arrive(self, to: Address, kind: str, packed: Packed, future: asyncio.Future[Answer]) -> None:
        """A request reached the machine it was sent to."""
        callee = self._world.at(to)
        there, here = to.partition("/")[0], self._process.machine
        if callee is None:
            if self._network.chance(self._network.faults.gone_hint) or there == here:
                gone = Unknown(f"{to} has ended", gone=True)
                self._network.carry(there, here, lambda: _settle(future, gone))
            return
        if there == here and not future.done():
            self._network.begun_within(to, future)
        self._world.trace(kind, self._process.name, callee.name)
        callee.soon(lambda: self._serve(callee, kind, packed, future))

    def _serve(self, callee: Process, kind: str, packed: Packed, future: asyncio.Future[Answer]) -> None:
        """Run a handler in the callee's process and send its answer back."""

        def on_answer(answer: Answer) -> None:
            if isinstance(answer, Packed):
                answer = answer.copied()
            if callee.alive:
                self._network.carry(callee.machine, self._process.machine, lambda: _settle(future, answer))

        refusal = self._network.refusal(kind)
        if refusal is not None:
            on_answer(pack_error(refusal))
        else:
            callee.accept(kind, packed, on_answer)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
