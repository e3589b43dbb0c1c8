"""Every effect of a short script, numbered; and the world in which the acting node breaks at one of them.

Effects are what one process does that others, or its own next life, can see: bytes that go to its disk, a version of
a metadata record, an object that is written or removed, and the answer to a request that changes something. A run
without trouble counts them; as a seed replays exactly, effect `k` of the next run is the same effect, and there one
thing goes wrong:

* `before`: the process dies before the effect;
* `after`: the effect happens and the process dies before it learns so;
* `lost`: the effect happens and the process lives; it (or its caller) is told that the answer is lost. To a disk that
  is an error after which nobody knows what is durable.

`play_each` breaks many effects, each in a run of its own. Every one begins as the run without trouble does: that one is
played once, and at each of the effects a child of the process goes on to the end with the breakage.

The script is small and goes everywhere: publish, acknowledge, roll and trim of ledgers, buckets of delayed messages
that are sealed and merged, and, in the middle of it, a second owner of the partition and a second dispatcher of the
subscription. Afterwards all promises of the broker's world are judged: nothing lost, order, rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import random
import signal
import traceback
from asyncio import events
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Never, TypeVar

from sluice.actors.messages import SubscriptionSettings, TopicSettings
from sluice.actors.ports import DiskFailed, DiskFull, Meta, Objects, Version
from sluice.actors.runtime.host import Answer, Message, OnAnswer
from sluice.actors.runtime.waiting import SharedFuture
from sluice.storage.errors import SluiceError, Unavailable
from sluice.storage.format.frame import Buffer
from tests.sim.disk import SimDisk
from tests.sim.loop import SimFailure, SimLoop
from tests.sim.world import Make, Process, World
from tests.sim.worlds.broker import CONTROLLER, SUBSCRIPTION, TOPIC, Course, Size
from tests.sim.worlds.clients import Traffic
from tests.sim.worlds.erasing import ErasingCourse
from tests.sim.worlds.ledger import Size as LedgerSize

T = TypeVar("T")

CONTROLLER_NAME = "controller"
HOWS = ("before", "after", "lost")
READS = (
    "Ping", "Stats", "Explain", "ReadRun", "ReadIndex", "ReadPayload", "ReadRowIndex", "ReadEnds", "FindTime",
    "DescribeLedger", "ListLedgers", "ListBookies", "LocateTopic", "LocateSubscription",
)  # fmt: skip
"""Requests that change nothing that outlives their answer; a lost answer to one of these is an ordinary loss."""

SCRIPT = Size(
    bookies=3,
    topic=TopicSettings(partitions=1, ensemble=2, write_quorum=2, ack_quorum=2, roll_entries=20),
    traffic=Traffic(
        topic=TOPIC,
        partitions=1,
        subscription=SUBSCRIPTION,
        settings=SubscriptionSettings(
            initial_position="earliest",
            lease_ms=3_000,
            replica_points=3,
            delayed_tracker="bucket",
            delayed_delivery_min_index_count_per_bucket=5,
            delayed_delivery_max_indexes_per_bucket_snapshot_segment=3,
            delayed_delivery_max_num_buckets=3,
        ),
        controller=CONTROLLER,
        sends=8,
        delayed=0.6,
        delay_ms=2_000,
        negative=0.0,
        think_ms=2,
    ),
    producers=1,
    consumers=2,
    trouble_ms=2_500,
    dense=False,
)
"""What the script does: about a hundred messages, two ledgers rolled, a few buckets."""

ERASING_SCRIPT = LedgerSize(
    bookies=2,
    settings=TopicSettings(
        partitions=1,
        ensemble=2,
        write_quorum=2,
        ack_quorum=2,
        roll_entries=10,
        offload_threshold_bytes=0,
        offload_deletion_lag_ms=300,
    ),
    producers=2,
    sends=3,
    trouble_ms=3_000,
    dense=True,
)
"""What is done while keys are erased: a few ledgers, most of which leave for the object store. The last producer is
the gateway's."""

TRIM_MS = 4_000
"""After everything is done the script goes on for so long: ledgers are trimmed and deleted meanwhile."""

OWNERS_CHANGE = ((400, "topic"), (800, "dispatcher"))
"""When a second owner of what is started, in virtual milliseconds after the beginning."""


@dataclass
class Effects:
    """Counts effects, and breaks the chosen ones. plan: number of the effect, and how it goes wrong."""

    plan: Mapping[int, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """What each effect was; its place is its number."""
    hit: list[str] = field(default_factory=list)
    branches: Collection[int] = ()
    """Numbers of the effects at which a child breaks, all in the same way, while this process plays on without."""
    how: str = ""
    ended: list[Played] = field(default_factory=list)
    """Runs of the children, in the order of their effects."""
    report: int | None = None
    """The descriptor that takes how a child's run ended; None in the process that played from the beginning."""

    def branch(self, number: int, loop: SimLoop) -> None:
        """Let a child break an effect, and wait for its end; in the child, return at once."""
        answer, report = os.pipe()
        child = os.fork()
        if not child:
            self.branches, self.report, self.plan = (), report, {number: self.how}
            events._set_running_loop(loop)  # asyncio remembers of which process the loop is
            return
        os.close(report)
        try:
            with os.fdopen(answer, "rb") as pipe:
                self.ended.append(pickle.load(pipe))
        finally:
            os.kill(child, signal.SIGKILL)  # it has told everything, or nobody waits for it any more
            os.waitpid(child, 0)

    async def do(self, process: CrashableProcess, what: str, act: Callable[[], Awaitable[T]], lost: Lost) -> T:
        """Do an effect, or break it."""
        number = len(self.names)
        self.names.append(f"{what} by {process.name}")
        if number in self.branches:
            self.branch(number, process.world.loop)
        how = self.plan.get(number)
        if how is None:
            return await act()
        self.hit.append(f"{how} {self.names[number]}")
        process.world.record("matrix", how, effect=self.names[number])
        if how == "before":
            await process.die()
        done = await act()
        if how == "after":
            await process.die()
        else:
            await lost()
        return done


Lost = Callable[[], Awaitable[object]]


class CrashableProcess(Process):
    """A process whose effects are numbered."""

    def __init__(
        self, world: CrashWorld, name: str, machine: str, incarnation: int, make: Make | None, disk: str | None,
        fixed: bool,
    ) -> None:  # fmt: skip
        super().__init__(world, name, machine, incarnation, make, disk, fixed)
        self.world = world
        ports = self.ports
        self.ports = replace(
            ports,
            meta=_Meta(self, ports.meta),
            objects=_Objects(self, ports.objects),
            disk=_Disk(self, ports.disk) if isinstance(ports.disk, SimDisk) else None,
        )

    async def die(self) -> Never:
        """End without warning; a caller that waits for this waits for ever."""
        self.world.count("crash")
        self.world.ended(self, "crash at an effect")
        await self.world.never()

    def accept(self, kind: str, message: Message, on_answer: OnAnswer) -> None:
        """Answer; the answer to a request that changes something is an effect."""
        if kind in READS:
            super().accept(kind, message, on_answer)
        else:
            self.task(self._answer(kind, message, on_answer), kind)

    async def _answer(self, kind: str, message: Message, on_answer: OnAnswer) -> None:
        accept = super().accept

        def act() -> SharedFuture[Answer]:
            answered: SharedFuture[Answer] = SharedFuture()
            accept(kind, message, answered.set_result)
            return answered

        on_answer(await self.world.effects.do(self, f"answer to {kind}", act, self.world.never))


class CrashWorld(World):
    """A world in which the acting process breaks at chosen effects."""

    def __init__(self, seed: int, effects: Effects) -> None:
        super().__init__(seed)
        self.effects = effects

    async def never(self) -> Never:
        """Wait for ever."""
        forever: asyncio.Future[Never] = self.loop.create_future()
        await forever

    def make_process(
        self, name: str, machine: str, incarnation: int, make: Make | None, disk: str | None, fixed: bool
    ) -> Process:
        """A process whose effects are numbered."""
        return CrashableProcess(self, name, machine, incarnation, make, disk, fixed)


async def _unavailable() -> None:
    raise Unavailable("the answer of the store was lost")


class _Meta:
    """A metadata store whose writes are effects."""

    def __init__(self, process: CrashableProcess, inner: Meta) -> None:
        self._process, self._inner = process, inner

    async def read(self, key: str) -> Version | None:
        return await self._inner.read(key)

    async def keys(self, prefix: str) -> list[str]:
        return await self._inner.keys(prefix)

    async def create(self, key: str, number: int, value: bytes) -> bool:
        act = lambda: self._inner.create(key, number, value)  # noqa: E731
        return await self._process.world.effects.do(self._process, f"meta {key} {number}", act, _unavailable)

    async def remove(self, key: str, number: int | None = None) -> bool:
        act = lambda: self._inner.remove(key, number)  # noqa: E731
        return await self._process.world.effects.do(self._process, f"meta {key} removed", act, _unavailable)


class _Objects:
    """An object store whose writes are effects."""

    def __init__(self, process: CrashableProcess, inner: Objects) -> None:
        self._process, self._inner = process, inner

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return await self._inner.get(name, start, length)

    async def names(self, prefix: str) -> list[str]:
        return await self._inner.names(prefix)

    async def put(self, name: str, data: Buffer) -> bool:
        act = lambda: self._inner.put(name, data)  # noqa: E731
        return await self._process.world.effects.do(self._process, f"object {name}", act, _unavailable)

    async def delete(self, name: str) -> None:
        act = lambda: self._inner.delete(name)  # noqa: E731
        await self._process.world.effects.do(self._process, f"object {name} deleted", act, _unavailable)


class _Disk:
    """A disk whose writes are effects."""

    def __init__(self, process: CrashableProcess, inner: SimDisk) -> None:
        self._process, self._inner = process, inner

    async def _lost(self) -> None:
        self._inner.fail()
        raise DiskFailed("the disk failed after it had written")

    async def _do(self, what: str, act: Callable[[], Awaitable[T]]) -> T:
        return await self._process.world.effects.do(self._process, f"disk {what}", act, self._lost)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        return await self._inner.read(name, offset, length)

    async def size(self, name: str) -> int:
        return await self._inner.size(name)

    async def names(self) -> list[str]:
        return await self._inner.names()

    async def free(self) -> int:
        return await self._inner.free()

    async def append(
        self, name: str, parts: Sequence[Buffer], *, sync: bool, witness: tuple[str, Buffer] | None = None
    ) -> int:
        at = await self._do(f"append {name}", lambda: self._inner.append(name, parts, sync=sync))
        if witness is not None:
            with contextlib.suppress(DiskFull):
                await self.append(witness[0], [witness[1]], sync=False)
        return at

    async def truncate(self, name: str, size: int) -> None:
        await self._do(f"truncate {name}", lambda: self._inner.truncate(name, size))

    async def rewrite(self, name: str, offset: int, data: Buffer) -> None:
        await self._do(f"rewrite {name}", lambda: self._inner.rewrite(name, offset, data))

    async def replace(self, name: str, data: Buffer) -> None:
        await self._do(f"replace {name}", lambda: self._inner.replace(name, data))

    async def delete(self, name: str) -> None:
        await self._do(f"delete {name}", lambda: self._inner.delete(name))


@dataclass(frozen=True)
class Played:
    """How a run of the script ended."""

    names: list[str]
    """Every effect."""
    hit: list[str]
    """What was broken."""
    problem: str
    """The promise that broke, with its story; empty if none did."""
    counters: dict[str, int]


def play(plan: Mapping[int, str], *, seed: int = 1) -> Played:
    """Play the script with a plan of breakages."""
    return _script(Effects(plan), seed)


def play_erasing(plan: Mapping[int, str], *, seed: int = 1) -> Played:
    """Play the script in which keys are erased with a plan of breakages."""
    return _erasing_script(Effects(plan), seed)


def play_each(numbers: Collection[int], how: str, *, erasing: bool = False, seed: int = 1) -> list[Played]:
    """Return the runs in which each of these effects breaks, in their order; each is what `play` makes of its plan."""
    effects = Effects(branches=frozenset(numbers), how=how)
    (_erasing_script if erasing else _script)(effects, seed)
    return effects.ended


def _script(effects: Effects, seed: int) -> Played:
    world = CrashWorld(seed, effects)
    course = Course(world, [], {}, SCRIPT)

    async def change() -> None:
        begun = world.loop.now
        for moment, kind in OWNERS_CHANGE:
            await world.loop.pause(begun + moment - world.loop.now)
            await course.second_owner(random.Random(moment), (kind,))

    course.linger_ms = TRIM_MS
    course.begun = lambda: world.background(change(), "owners change")
    return _played(world, course.run, course.counters, lambda name: name == CONTROLLER_NAME)


class ErasingScript(ErasingCourse):
    """A course of the world `erasing` that is as small as can be. Who reads again and again does so less often."""

    again_ms, back_ms, late_ms = 4_000, 8_000, 8_000

    def draw(self) -> LedgerSize:
        return ERASING_SCRIPT


def _erasing_script(effects: Effects, seed: int) -> Played:
    world = CrashWorld(seed, effects)
    course = ErasingScript(world, [])
    return _played(world, course.run, course.counters, lambda name: name == "registry" or name.startswith("bookie-"))


def _played(
    world: CrashWorld, run: Callable[[], Awaitable[None]], counters: dict[str, int], comes_back: Callable[[str], bool]
) -> Played:
    """Play a script. comes_back: the processes that somebody starts again, as a supervisor does."""

    async def mind() -> None:
        while True:
            await world.loop.pause(200)
            for name in [name for name in world.names() if comes_back(name) and not world.is_up(name)]:
                with contextlib.suppress(SluiceError):
                    await world.restart(name)

    async def main() -> None:
        world.background(mind(), "mind")
        await run()

    effects, problem = world.effects, ""
    try:
        world.play(lambda _: main())
    except SimFailure as failure:
        problem = str(failure)
    except BaseException:
        if effects.report is None:
            raise
        problem = traceback.format_exc()
    played = Played(effects.names, effects.hit, problem, counters)
    if effects.report is not None:
        with os.fdopen(effects.report, "wb") as pipe:
            pickle.dump(played, pipe)
        os._exit(0)
    return played
