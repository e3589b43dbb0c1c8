"""A world: machines with processes on them, one network, disks, stores, and a seed that decides everything.

A process hosts one actor (`start`) or is a bare client (`client`). It has a stable name, and an address that names
its machine and its incarnation: after a crash a restarted process has a new address, and calls to the old one end as
`Unknown`. Disks and clock skews belong to names and machines and outlive processes.

Everything that happens goes into one event log: what actors log, each request as it reaches its handler, and what
the world does to them. The log is hashed (`digest`); its last 200 lines are the story of a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from sluice.actors.ports import SHARED_FROM, Address, DiskFailed, InCommon, Ports, Unknown
from sluice.actors.ports.wire import Reply, Request
from sluice.actors.runtime.host import Actor, HostedActor, Message, OnAnswer
from sluice.storage.errors import Invalid, SluiceError, Unavailable
from tests.sim.clock import SimClock, SimRng
from tests.sim.disk import DiskFaults, SimDisk
from tests.sim.loop import OWNER, SimFailure, SimLoop, Work
from tests.sim.meta import MetaStore, SimMeta
from tests.sim.net import Network, SimNet
from tests.sim.objects import ObjectStore, SimObjects
from tests.sim.places import Kind, SimPlaces
from tests.sim.tables import SimTables, TableCatalog

T = TypeVar("T")

STORY_LINES = 200

Make = Callable[[Ports], Actor]
"""Makes the actor of a process from its ports; called again at each restart."""


class Process:
    """One incarnation of a process: a context for its tasks, an actor perhaps, and an end."""

    def __init__(
        self, world: World, name: str, machine: str, incarnation: int, make: Make | None, disk: str | None, fixed: bool
    ) -> None:
        self.name = name
        self.machine = machine
        self.incarnation = incarnation
        self.fixed = fixed
        self.address: Address = f"{machine}/{name}" if fixed else f"{machine}/{name}.{incarnation}"
        self.make = make
        self.disk_name = disk
        self.hosted: HostedActor | None = None
        self.placed: tuple[str, dict[str, Any]] | None = None
        """Kind and settings, if it was started through `Places`."""
        self.stopping = False
        self.alive = True
        self.paused = False
        self._world = world
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._started = 0
        self._context = Context()
        self._context.run(OWNER.set, self)
        self.ports = Ports(
            me=self.address,
            clock=SimClock(world.loop, world.seed, machine, world.skews),
            net=SimNet(world, self),
            objects=SimObjects(world.objects, machine),
            meta=SimMeta(world.meta, machine),
            rng=SimRng(f"rng/{world.seed}/{name}.{incarnation}"),
            spawn=self.task,
            log=self.log,
            disk=world.disk(disk) if disk else None,
            places=SimPlaces(world),
            tables=None if world.tables is None else SimTables(world.tables, machine),
            shared_from=world.shared_from,
            process=world.in_common(machine),
        )

    def task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run background work in this process; it ends with the process."""
        self._started += 1
        number = self._started
        task = self._world.loop.create_task(self._guard(number, Work(work), name), context=self._context)
        # Kept until it is done: a task that nobody holds is collected, and the loop would complain of it.
        self._tasks[number] = task
        return task

    def log(self, event: str, **fields: object) -> None:
        self._world.record(self.name, event, **fields)
        for hear in self._world.ears:
            hear(self, event, fields)

    @property
    def actor(self) -> Actor | None:
        """The actor of the process, if it has one."""
        return None if self.hosted is None else self.hosted.actor

    def host(self, actor: Actor) -> HostedActor:
        """Take an actor in."""
        self.hosted = HostedActor(actor, self.broken, self.task)
        return self.hosted

    def broken(self, work: str, error: Exception) -> None:
        """End the process after an error that stops an actor; any other error is a defect."""
        if isinstance(error, DiskFailed):
            self._world.ended(self, f"its disk failed: {error}")
        elif isinstance(error, SluiceError):
            self._world.ended(self, f"{work} failed: {error}")
        else:
            self._world.defect(self, work, error)

    def soon(self, call: Callable[[], object]) -> None:
        """Have this process call something in its next turn; it does so when it thaws, and never once it has ended."""
        self._world.loop.call_soon(call, context=self._context)

    def accept(self, kind: str, message: Message, on_answer: OnAnswer) -> None:
        assert self.hosted is not None
        self.hosted.accept(kind, message, on_answer)

    async def _guard(self, number: int, work: Work, name: str) -> None:
        try:
            await work
        except Exception as error:
            if isinstance(error, SluiceError):
                self.log("task failed", task=name, error=type(error).__name__, reason=str(error))
            if self.hosted is not None:
                self.hosted.task_failed(name, error)
            elif not isinstance(error, SluiceError):
                self.broken(name, error)
        finally:
            self._tasks.pop(number, None)
            if self.actor is not None and self.actor.stopped is not None and self.alive:
                self._world.stopping(self)


class World:
    """A simulated cluster. One instance is one run."""

    def __init__(self, seed: int, *, shuffle: bool | None = None) -> None:
        self.seed = seed
        self.loop = SimLoop(seed, shuffle=shuffle)
        self.rng = random.Random(f"world/{seed}")
        self.network = Network(self.loop, seed)
        self.meta = MetaStore(self.loop, seed)
        self.objects = ObjectStore(self.loop, seed)
        self.disk_faults = DiskFaults()
        self.tables: TableCatalog | None = None
        """The catalog of processes that are started from now on, where there is one."""
        self.skews: dict[str, int] = {}
        self.kinds: dict[str, Kind] = {}
        """What `Places.start` can start."""
        self.ears: list[Callable[[Process, str, dict[str, object]], None]] = []
        """Told of every event that a process logs, and of its end (`ended`)."""
        self.witness: Callable[[Process, Address, Request[Any], Reply | Unknown | tuple[str, str]], None] | None = None
        """Sees each call with its outcome as the caller sees it: a reply, Unknown, or a refusal (class, message)."""
        self.place_failures = 0.0
        self.zombies = 0.0
        """How likely `Places.stop` reports success although the process lives on, frozen or cut off."""
        self.shared_from = SHARED_FROM
        """See Ports, for the processes that are started from now on."""
        self.hosts: dict[str, InCommon] = {}
        """Machines on which all actors are one process, which freezes and crashes whole; and what they share."""
        self.gateway_machines: list[str] = []
        """Machines that the controller is told of."""
        self.power_loss = 0.5
        """How likely the end of a process is a loss of power, in which unsynced bytes go."""
        self.counters: dict[str, int] = {}
        self.story: deque[str] = deque(maxlen=STORY_LINES)
        self.echo: Callable[[str], object] | None = None
        """Gets every line of the log, for a replay with the whole story."""
        self._processes: dict[str, Process] = {}
        self._addresses: dict[Address, Process] = {}
        self._graveyard: list[Process] = []
        self._workers: list[asyncio.Task[None]] = []
        self._disks: dict[str, SimDisk] = {}
        self._in_use: dict[str, str] = {}
        self._hash = hashlib.blake2b(digest_size=16)
        self._over = False
        self._cuts: list[tuple[list[tuple[str, str]], int]] = []
        """The cuts that must be felt, and what had been lost between those machines before."""

    # -- running --

    def play(self, scenario: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run a scenario to its end. Raises SimFailure with the story."""
        try:
            result = self.loop.play(self._main(scenario))
            self._check_cuts()
            return result
        except Exception as error:
            raise SimFailure(self.tell(error)) from error

    def _check_cuts(self) -> None:
        for pairs, before in self._cuts:
            if sum(self.network.lost.get(pair, 0) for pair in pairs) == before:
                raise SimFailure(f"the cut of {pairs} lost no message; the machines are {self.machines()}")

    def tell(self, error: BaseException) -> str:
        """The story of a failure: what broke, the seed, and the last lines of the log."""
        lines = "\n".join(self.story)
        return f"{type(error).__name__}: {error}\nseed {self.seed}, {self.loop.now} ms\n{lines}"

    def digest(self) -> str:
        """A hash of everything that happened; the same seed gives the same digest."""
        return self._hash.hexdigest()

    def record(self, who: str, event: str, **fields: object) -> None:
        """Write a line of the log."""
        if self._over:
            return
        told = "".join(f" {key}={value}" for key, value in fields.items())
        line = f"{self.loop.now:>7} {who}: {event}{told}"
        self._hash.update(line.encode())
        self.story.append(line)
        if self.echo is not None:
            self.echo(line)

    def trace(self, kind: str, source: str, target: str) -> None:
        """A request reaches its handler."""
        self.record(source, f"{kind} -> {target}")

    def defect(self, process: Process, where: str, error: BaseException) -> None:
        """An actor raised what it must not: the run has failed."""
        self.record(process.name, "DEFECT", where=where, error=repr(error))
        self.loop.fail(error)

    def faults_seen(self) -> dict[str, int]:
        """How often each fault really happened."""
        seen = dict(self.counters)
        for name, counters in (
            ("net", self.network.counters),
            ("meta", self.meta.trouble.counters),
            ("objects", self.objects.trouble.counters),
            *(("disk", self._disks[disk].counters) for disk in sorted(self._disks)),
        ):
            for what, number in counters.items():
                seen[f"{name} {what}"] = seen.get(f"{name} {what}", 0) + number
        return seen

    def count(self, what: str) -> None:
        """Count a fault that happened."""
        self.counters[what] = self.counters.get(what, 0) + 1

    async def within(self, milliseconds: int, work: Coroutine[Any, Any, T], promise: str | Callable[[], str]) -> T:
        """The result of work that must end in bounded virtual time; else the promise is broken."""

        def late() -> None:
            told = promise if isinstance(promise, str) else promise()
            self.loop.fail(SimFailure(f"{told} in {milliseconds} ms"))

        timer = self.loop.after(milliseconds, late)
        try:
            return await work
        finally:
            timer.cancel()

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run work of the world itself, not of a process."""
        self._workers.append(self.loop.create_task(self._watch(work), name=name))

    async def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.loop.fail(error)

    async def _main(self, scenario: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        try:
            return await scenario(self)
        finally:
            self._over = True

    # -- processes --

    async def start(
        self,
        name: str,
        make: Make,
        *,
        machine: str | None = None,
        disk: str | None = None,
        fixed: bool = False,
        placed: tuple[str, dict[str, Any]] | None = None,
    ) -> Address:
        """Start a process with an actor in it; returns its address when the actor has started.

        disk: the name of its disk, if it has one. fixed: every incarnation has the same address. An older incarnation
        of the name lives on (a zombie). Raises Unavailable while another process has the disk.
        """
        process = self._open(name, make, machine or name, disk, fixed)
        process.placed = placed
        hosted = process.host(make(process.ports))

        async def begin() -> None:
            try:
                await hosted.start()
            except SluiceError as error:
                self.ended(process, f"could not start: {error}")
                return
            self.record(name, "started", address=process.address)

        process.task(begin(), f"start {name}")
        error = await hosted.born
        if error is not None:
            raise error
        return process.address

    def client(self, name: str, *, machine: str | None = None) -> Ports:
        """A process without an actor, for producers and consumers in a user's program: its ports."""
        process = self._open(name, None, machine or name, None, False)
        self.record(name, "opened", address=process.address)
        return process.ports

    def crash(self, name: str) -> None:
        """End a process without warning; its disk loses what was not synced. Fine if it is down."""
        process = self._processes.get(name)
        if process is not None and process.alive:
            self.count("crash")
            for each in self._together(process):
                self.ended(each, "crash")
            if process.machine in self.hosts:
                self.hosts[process.machine] = InCommon()

    def in_common(self, machine: str) -> InCommon:
        """Return what a new process here shares with others: nothing, unless they are one and none is frozen."""
        frozen = any(process.paused and process.machine == machine for process in self._addresses.values())
        if frozen and machine in self.hosts:
            self.hosts[machine] = InCommon()
        return self.hosts.get(machine) or InCommon()

    def _together(self, process: Process) -> list[Process]:
        """Return the processes that end together: the actors of one process, without clients on the same machine."""
        if process.machine not in self.hosts or process.actor is None:
            return [process]
        return [each for each in self._addresses.values() if each.machine == process.machine and each.actor is not None]

    async def restart(self, name: str) -> Address:
        """Restart a crashed process, on its old disk, with a new address."""
        process = self._processes[name]
        if process.make is None:
            raise Invalid(f"{name} is a client; open a new one")
        if process.alive and (process.disk_name or process.fixed):
            self.crash(name)
        self.count("restart")
        return await self.start(
            name,
            process.make,
            machine=process.machine,
            disk=process.disk_name,
            fixed=process.fixed,
            placed=process.placed,
        )

    def pause(self, name: str) -> None:
        """Freeze a process, as SIGSTOP does."""
        for process in self._together(self._processes[name]):
            if process.alive and not process.paused:
                process.paused = True
                self.count("pause")
                self.loop.freeze(process)
                self.record(process.name, "paused")

    def resume(self, name: str) -> None:
        """Let a frozen process go on, and its older incarnations too."""
        together = self._together(self._processes[name])
        for process in self._addresses.values():
            own = process.name == name or process in together
            if own and process.paused and process.alive:
                process.paused = False
                self.count("resume")
                self.record(process.name, "resumed", address=process.address)
                self.loop.thaw(process)

    def stop(self, address: Address, *, frozen: bool = False) -> None:
        """End the process at an address. frozen: somebody took it for frozen; what is so ends whole."""
        process = self._addresses.get(address)
        if process is not None and process.alive:
            for each in self._together(process) if frozen and process.paused else [process]:
                self.ended(each, "stopped from outside")

    def give_up(self, name: str) -> None:
        """End a process whose actor has not started; a frozen one whole. Fine if it is down, or has started."""
        process = self._processes.get(name)
        if process is not None and process.hosted is not None and not process.hosted.born.done():
            self.stop(process.address, frozen=True)

    def ended(self, process: Process, reason: str) -> None:
        """A process ends: nothing of it runs any more."""
        if not process.alive or self._over:
            return
        process.alive = False
        if process.hosted is not None:
            process.hosted.resolve_start(Unavailable(f"{process.name} ended: {reason}"))
        self.record(process.name, "ended", address=process.address, reason=reason)
        for hear in self.ears:
            hear(process, "ended", {"reason": reason})
        self.loop.send_to_dead_letters(process)
        self.network.ended(process.address)
        if self._addresses.get(process.address) is process:
            del self._addresses[process.address]
        self._graveyard.append(process)
        if process.actor is not None:
            process.actor.release()
        if process.disk_name:
            self._in_use.pop(process.disk_name, None)
            self.disk(process.disk_name).crash(power=self.rng.random() < self.power_loss)

    def stopping(self, process: Process) -> None:
        """An actor has stopped itself; its process ends a little later."""
        if not process.stopping and not self._over and process.actor is not None:
            process.stopping = True
            reason = f"its actor stopped: {process.actor.stopped}"
            self.loop.after(self.rng.randrange(20), self.ended, process, reason)

    def at(self, address: Address) -> Process | None:
        """The process with an actor that lives at an address, or None."""
        process = self._addresses.get(address)
        if process is None or not process.alive or process.actor is None:
            return None
        return process

    def process(self, name: str) -> Process:
        """The newest incarnation of a process."""
        return self._processes[name]

    def names(self) -> list[str]:
        """Names of all processes that were ever started, in order."""
        return sorted(self._processes)

    def alive(self, prefix: str) -> list[str]:
        """Names of the live processes that begin so, in order."""
        return sorted(process.name for process in self._addresses.values() if process.name.startswith(prefix))

    def is_up(self, name: str) -> bool:
        """Whether the newest incarnation lives."""
        process = self._processes.get(name)
        return process is not None and process.alive

    def placed(self) -> list[tuple[str, Address, dict[str, Any]]]:
        """(kind, address, settings) of every live process that was started through `Places`, in order of start."""
        return [
            (process.placed[0], address, process.placed[1])
            for address, process in self._addresses.items()
            if process.placed is not None and process.alive
        ]

    def disk(self, name: str) -> SimDisk:
        """The disk of a name."""
        if name not in self._disks:
            self._disks[name] = SimDisk(self.loop, f"{self.seed}/{name}", self.disk_faults)
        return self._disks[name]

    def machines(self) -> list[str]:
        """Machines of all processes, in order."""
        return sorted({process.machine for process in self._processes.values()})

    def partition(
        self, left: list[str], right: list[str], *, both: bool = True, felt: bool = True
    ) -> Callable[[], None]:
        """Cut machines from others, in one direction or both; returns what joins them again.

        felt: the run fails if by its end not one message was lost by this: a test that breaks nothing shows nothing.
        A machine that is named on both sides is cut off from itself if it is alone.
        """
        pairs = [(a, b) for a in left for b in right if a != b or left == right]
        pairs += [(b, a) for a, b in pairs] if both else []
        for source, target in pairs:
            self.network.cut(source, target)
        if felt:
            self._cuts.append((pairs, sum(self.network.lost.get(pair, 0) for pair in pairs)))
        self.record("world", "partition", left=left, right=right, both=both)

        def heal() -> None:
            for source, target in pairs:
                self.network.join(source, target)
            self.record("world", "partition healed", left=left, right=right)

        return heal

    def _open(self, name: str, make: Make | None, machine: str, disk: str | None, fixed: bool) -> Process:
        old = self._processes.get(name)
        if disk is not None:
            if disk in self._in_use:
                raise Unavailable(f"the disk {disk} is in use by {self._in_use[disk]}")
            self._in_use[disk] = name
        process = self.make_process(name, machine, 1 if old is None else old.incarnation + 1, make, disk, fixed)
        self._processes[name] = process
        self._addresses[process.address] = process
        return process

    def make_process(
        self, name: str, machine: str, incarnation: int, make: Make | None, disk: str | None, fixed: bool
    ) -> Process:
        """A new incarnation; the crash matrix makes its own sort."""
        return Process(self, name, machine, incarnation, make, disk, fixed)
