"""Nodes and host processes of a simulated cluster, as placement sees them through `actors.ports.Processes`.

A process is slow to start, may die meanwhile, freezes, thaws, and dies with its node. If a node is given up without
having died, its processes are no longer found, asked or ended, but they answer on open connections and keep
their locks, until they notice that and end themselves (`cluster/node/own_node.py`). What it was asked while
it was frozen it does when it thaws, also if nobody waits for it any more. One that is frozen outlives its end by
seconds, and does so with the lock of its bookie's disk. A bookie's disk is in the machine where the bookie started
first; on every other machine it is refused, and its process keeps the lock of the empty folder there.

A machine can be cut off for a while: then no controller hears of its processes, which live, and an order to end one of
them is carried out when the machine is back.

The model complains of what must never be asked of it: a bookie that shares its process, a process that serves two
slots, two processes that serve one disk.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sluice.actors.placement.candidates import CANDIDATE_HOST
from sluice.actors.placement.slots import is_broker, stem
from sluice.actors.ports import Address, Introduction, Node, Unknown
from sluice.storage.errors import Corrupt, SluiceError, Unavailable
from tests.sim.world import World

LINGER_MS = 5_000
"""A frozen process that is ended is gone after so long at the latest."""
STALE_MS = 2_000
"""A node that died is still taken for alive for so long at most."""
NOTICE_MS = 4_000
"""A process has noticed after so long at the latest that its node was given up; one that is frozen, when it thaws."""


@dataclass
class Trouble:
    """The troubles that any process may have, as chances, and milliseconds."""

    start_fails: float = 0.0
    answer_lost: float = 0.0
    slow_start: float = 0.0
    slow_ms: int = 0


@dataclass(eq=False)
class SimProcess:
    """One host process."""

    name: str
    node: str
    maker: str
    slot: str = ""
    ready: bool = False
    frozen: bool = False
    dead: bool = False
    given_up: bool = False
    actors: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    locks: list[tuple[str, str]] = field(default_factory=list)
    held: list[Callable[[], None]] = field(default_factory=list)
    waiting: list[asyncio.Future[Any]] = field(default_factory=list)


def is_candidate(name: str) -> bool:
    """Whether a process is made to be a controller, and serves no slot."""
    return name.startswith(CANDIDATE_HOST)


class SimCluster:
    """Every node and process there is."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"processes/{world.seed}")
        self.trouble = Trouble()
        self.nodes: dict[str, Node] = {}
        self.processes: dict[str, SimProcess] = {}
        self.homes: dict[str, str] = {}
        """The machine of each bookie's disk."""
        self.locks: dict[tuple[str, str], SimProcess] = {}
        """Who has the lock of a bookie's folder, by machine and bookie."""
        self._stale: dict[str, tuple[Node, int]] = {}
        self.cut_off: dict[str, None] = {}
        """Machines that no controller reaches, and that live."""
        self._orders: list[str] = []
        """Processes whose end was ordered meanwhile: Ray carries that out when it can."""
        self.only_cuts = False
        """Nothing else goes wrong: then there is no reason to end a bookie."""

    def cut_machine(self, machine: str) -> None:
        """From now on no controller reaches it."""
        self.world.record(machine, "is cut off")
        self.world.count("machine cut off")
        self.cut_off[machine] = None

    def heal_machine(self, machine: str) -> None:
        """Reach a machine again, and carry out what was ordered meanwhile."""
        if machine in self.cut_off:
            self.world.record(machine, "is back")
            del self.cut_off[machine]
            orders, self._orders = self._orders, []
            for name in orders:
                self.kill(name)

    def is_cut_off(self, process: SimProcess | None) -> bool:
        """Whether no controller reaches a process."""
        if process is None or process.node not in self.nodes:
            return False
        return self.nodes[process.node].address in self.cut_off

    def add_node(self, number: str, machine: str) -> None:
        """A node joins."""
        self.world.record("cluster", "node joins", node=number, machine=machine)
        self.nodes[number] = Node(number, machine)

    def lose_node(self, number: str, *, known: bool = False) -> None:
        """A node dies with its processes; that is known a little later, or at once: its port refuses."""
        self.world.record("cluster", "node dies", node=number)
        self.world.count("node lost")
        stale = 0 if known else self.rng.randrange(STALE_MS)
        self._stale[number] = self.nodes.pop(number), self.world.loop.now + stale
        for process in self.alive():
            if process.node == number:
                self.die(process, "its node died")

    def give_up_node(self, number: str) -> None:
        """A node is taken for dead at once, and its processes end when they notice that."""
        self.world.record("cluster", "node is given up", node=number)
        self.world.count("node given up")
        del self.nodes[number]
        for process in self.alive():
            if process.node == number:
                process.given_up = True
                self._answer_gone(process, "its node was given up")
                self.world.loop.after(self.rng.randrange(NOTICE_MS), self._notice, process)

    def _notice(self, process: SimProcess) -> None:
        if process.frozen:
            self.world.loop.after(NOTICE_MS, self._notice, process)
        else:
            self.die(process, "it noticed that its node was given up")

    def listed(self) -> list[Node]:
        """The nodes that are taken for alive."""
        stale = [node for node, until in self._stale.values() if until > self.world.loop.now]
        return sorted({node.id: node for node in [*stale, *self.nodes.values()]}.values(), key=lambda node: node.id)

    def alive(self) -> list[SimProcess]:
        """The processes that have not ended, in order."""
        return [process for _, process in sorted(self.processes.items())]

    def freeze(self, process: SimProcess) -> None:
        """Freeze a process: it does nothing until it thaws."""
        self.world.count("process frozen")
        self.world.record(process.name, "freezes")
        process.frozen = True

    def thaw(self, process: SimProcess) -> None:
        """Thaw a process: it does what it was asked meanwhile."""
        if not process.dead and process.frozen:
            self.world.record(process.name, "thaws")
            process.frozen = False
            self.go_on(process)

    def go_on(self, process: SimProcess) -> None:
        """Do what a process was asked before it could do it."""
        if process.ready and not process.frozen:
            held, process.held = process.held, []
            for work in held:
                work()

    def die(self, process: SimProcess, reason: str) -> None:
        """End a process; callers that wait for it learn that."""
        if process.dead:
            return
        self.world.record(process.name, "dies", reason=reason)
        process.dead = True
        del self.processes[process.name]
        for lock in process.locks:
            if self.locks.get(lock) is process:
                del self.locks[lock]
        self._answer_gone(process, reason)

    def _answer_gone(self, process: SimProcess, reason: str) -> None:
        for future in process.waiting:
            if not future.done():
                future.set_result(Unknown(reason, gone=True))

    def kill(self, name: str) -> None:
        """End a process from outside."""
        process = self.processes.get(name)
        if process is None or process.given_up:
            return
        if self.is_cut_off(process):
            self._orders.append(name)
            return
        if self.only_cuts and process.actors and process.slot in ("", stem(name)) and not is_broker(stem(name)):
            self.world.loop.fail(AssertionError(f"S: {name} is ended although nothing but its machine was away"))
        if process.frozen:
            self.world.count("lingers")
            self.world.loop.after(self.rng.randrange(LINGER_MS), self.die, process, "killed")
            return
        self.die(process, "killed")

    def runs_at(self, address: Address) -> bool | None:
        """Whether an actor runs there; None if nobody answers."""
        name, _, actor = address.partition("/")
        process = self.processes.get(name)
        if process is not None and (process.frozen or self.is_cut_off(process)):
            return None
        return process is not None and actor in process.actors


class SimProcesses:
    """The view of one controller. Implements actors.ports.Processes. made: told of each name before it is made."""

    def __init__(self, cluster: SimCluster, maker: str, made: Callable[[str], None] = lambda name: None) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._maker = maker
        self._made = made
        self._away: list[Node] = []
        self._knows_places = random.Random(f"places/{cluster.world.seed}/{maker}").random() < 0.5
        """Whether it was told before where each process is, and need not ask one that is away."""

    async def nodes(self) -> list[Node]:
        """See actors.ports.Processes."""
        await self._pause(20)
        listed = self._cluster.listed()
        self._away = [node for node in listed if node.address in self._cluster.cut_off]
        return [node for node in listed if node not in self._away]

    def away(self) -> list[Node]:
        """See actors.ports.Processes."""
        return self._away

    async def candidates(self) -> list[str]:
        """See actors.ports.Processes. The controllers of the world itself are none of its processes."""
        await self._pause(20)
        listed = [process.name for process in self._cluster.alive() if not process.given_up]
        return sorted(name for name in listed if is_candidate(name))

    async def names(self) -> list[str]:
        """See actors.ports.Processes."""
        await self._pause(20)
        listed = [process.name for process in self._cluster.alive() if not process.given_up]
        return sorted(name for name in listed if not is_candidate(name))

    async def make(self, name: str, node: str | None, timeout: int) -> str:
        """See actors.ports.Processes."""
        cluster, rng = self._cluster, self._cluster.rng
        self._made(name)
        await self._pause(5)
        node = node or rng.choice([*cluster.nodes] or [""])
        if node not in cluster.nodes or cluster.nodes[node].address in cluster.cut_off:
            raise Unavailable("there is no such node")
        process = cluster.processes[name] = SimProcess(name, node, self._maker)
        self._world.record(name, "is made", node=node, by=self._maker)
        trouble = cluster.trouble
        slow = rng.randrange(max(trouble.slow_ms, 1)) if rng.random() < trouble.slow_start else 0
        end = rng.random() < trouble.start_fails
        self._world.loop.after(300 + rng.randrange(1_000) + slow, self._ready, process, end)
        answer = await self._ask(process, lambda: process.node, timeout)
        if isinstance(answer, Unknown):
            cluster.kill(name)
            raise Unavailable(answer.reason)
        return str(answer)

    async def introduce(self, name: str, timeout: int) -> Introduction | Unknown:
        """See actors.ports.Processes."""
        await self._pause(10)
        process = self._cluster.processes.get(name)
        if process is not None and any(node.id == process.node for node in self._away) and self._knows_places:
            return Unknown("its machine is away")

        def work() -> Introduction:
            assert process is not None
            rows = [(kind, f"{name}/{actor}", settings) for actor, (kind, settings) in process.actors.items()]
            return Introduction(process.slot, process.node, rows)

        answer: Introduction | Unknown = await self._ask(process, work, timeout)
        return answer

    async def serve(self, name: str, slot: str, timeout: int) -> Unknown | None:
        """See actors.ports.Processes."""
        process = self._cluster.processes.get(name)

        def work() -> None:
            assert process is not None
            if process.slot not in ("", slot):
                self._world.count("refuses to serve")
                raise Unavailable(f"{name} serves {process.slot} already")
            process.slot = slot

        answer: Unknown | None = await self._ask(process, work, timeout)
        return answer

    async def start(
        self, name: str, kind: str, actor: str, settings: dict[str, Any], timeout: int
    ) -> Address | Unknown:
        """See actors.ports.Processes."""
        process = self._cluster.processes.get(name)
        trouble, rng = self._cluster.trouble, self._cluster.rng
        slow = rng.randrange(max(trouble.slow_ms, 1)) if rng.random() < trouble.slow_start else 0
        await self._pause(100 + slow)
        answer: Address | Unknown = await self._ask(process, lambda: self._run(process, kind, actor, settings), timeout)
        return answer

    async def stop(self, name: str, actor: str, timeout: int) -> Unknown | None:
        """See actors.ports.Processes."""
        process = self._cluster.processes.get(name)

        def work() -> None:
            if process is not None and process.actors.pop(actor, None) is not None:
                self._world.record(name, "stops", actor=actor)

        answer: Unknown | None = await self._ask(process, work, timeout)
        return answer

    def kill(self, name: str) -> None:
        """See actors.ports.Processes."""
        self._cluster.kill(name)

    def _ready(self, process: SimProcess, end: bool) -> None:
        if process.dead:
            return
        if end:
            self._world.count("died while it started")
            self._cluster.die(process, "it died while it started")
            return
        process.ready = True
        self._cluster.go_on(process)

    def _run(self, process: SimProcess | None, kind: str, actor: str, settings: dict[str, Any]) -> Address:
        assert process is not None
        cluster = self._cluster
        if actor in process.actors:
            self._world.count("asked to start again")
            return f"{process.name}/{actor}"
        if kind == "bookie":
            self._open_disk(process, str(settings["bookie"]))
        others = [known for known, _ in process.actors.values()]
        assert (kind == "bookie") <= (not others), f"S: a bookie shares the process {process.name} with {others}"
        assert "bookie" not in others, f"S: {kind} runs in the process of a bookie, {process.name}"
        process.actors[actor] = kind, settings
        cluster.world.record(process.name, "runs", kind=kind, actor=actor)
        return f"{process.name}/{actor}"

    def _open_disk(self, process: SimProcess, bookie: str) -> None:
        cluster = self._cluster
        machine = self._machine(process)
        holder = cluster.locks.get((machine, bookie))
        if holder is not None and (holder is not process or process.actors):
            self._world.count("disk in use")
            raise Unavailable(f"the disk of {bookie} is in use by {holder.name}")
        cluster.locks[machine, bookie] = process
        process.locks.append((machine, bookie))
        if cluster.homes.setdefault(bookie, machine) != machine:
            self._world.count("disk refused")
            raise Corrupt(f"{bookie} was formatted elsewhere")
        mine = ("bookie", {"bookie": bookie})
        running = [each.name for each in cluster.alive() if mine in each.actors.values()]
        assert running in ([], [process.name]), f"S: {running} and {process.name} serve the disk of {bookie}"

    def _machine(self, process: SimProcess) -> str:
        known = self._cluster.nodes.get(process.node)
        return known.address if known is not None else ""

    async def _pause(self, most: int) -> None:
        await self._world.loop.pause(1 + self._cluster.rng.randrange(most))

    async def _ask(self, process: SimProcess | None, work: Callable[[], Any], timeout: int) -> Any:
        """Return the outcome of work in a process that is up and awake. The work is done even if nobody waits."""
        await self._pause(5)
        if process is None or process.dead or process.given_up:
            return Unknown("there is no such process", gone=True)
        if self._cluster.is_cut_off(process):
            await self._world.loop.pause(timeout)
            return Unknown("no answer in time")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lost = self._cluster.rng.random() < self._cluster.trouble.answer_lost

        def answer() -> None:
            outcome: Any
            try:
                outcome = work()
            except SluiceError as error:
                outcome = error
            except AssertionError as error:
                self._world.loop.fail(error)
                return
            if lost:
                self._world.count("answer lost")
                outcome = Unknown("the answer was lost")
            if not done.done():
                done.set_result(outcome)

        if process.frozen or not process.ready:
            process.held.append(answer)
        else:
            answer()
        process.waiting.append(done)
        timer = self._world.loop.after(timeout, _expire, done)
        try:
            told = await done
        finally:
            timer.cancel()
            process.waiting.remove(done)
        if isinstance(told, SluiceError):
            raise told
        return told


def _expire(done: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_result(Unknown("no answer in time"))
