"""Controllers that place bookies, topics and dispatchers in processes on nodes, while all of these come and go.

Placement and the controller's supervisor are the real ones; nodes and processes are simulated. Processes freeze, start
slowly, die, also while they start; nodes die, or are given up while their processes live on, and their machines come
back; a controller ends, and the next one finds what runs; one that was frozen comes back and works beside its successor
for a while.

At every moment, as far as each controller knows: a slot is served by one process, a bookie's process by nobody else,
and none that waits serves; no process is made for a slot that has one, or to wait beyond what is wanted. Never do two
processes serve one disk. In the end every actor runs, in the process of its slot: no slot stays in a fallback; as many
processes wait as are wanted; and there is no process that the last controller does not know.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sluice.actors.controller.auditor import ReplicationAuditor
from sluice.actors.controller.draining import NodeDrainer
from sluice.actors.controller.running import Running
from sluice.actors.controller.supervisor import Supervisor
from sluice.actors.messages import Alive, DrainNode, Ping
from sluice.actors.placement.placement import Placement
from sluice.actors.placement.placer import Placer
from sluice.actors.placement.slots import STANDBY, is_broker, stem
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Request
from sluice.storage.errors import Conflict, Invalid, NotFound, Unavailable
from tests.sim.faults import Fault, Nemesis
from tests.sim.processes import SimCluster, SimProcess, SimProcesses, is_candidate
from tests.sim.world import World

TROUBLE_MS, BOUND_MS, CUTS_BOUND_MS = 90_000, 400_000, 80_000
LOOK_MS = 50
RETRY_MS = 100
DRAIN_MS = 60_000
"""Who drains a node in trouble gives it up after so long."""
TROUBLES = ("process_crash", "process_freeze", "node_loss", "node_hang", "controller_restart", "two_controllers")


class PlacementWorld:
    """See the module."""

    name = "placement"
    kinds = [*TROUBLES, "slow_process", "start_death", "answer_loss"]
    favourites: Sequence[str] = ("process_crash", "controller_restart")
    candidates = 0
    """On so many machines there shall be a process that can be the controller."""
    bound_ms = BOUND_MS
    """After so much peace everything must be in order."""

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play a run."""
        course = _Course(world, faults, self.candidates, self.bound_ms)
        world.play(lambda _: course.run())
        return course.counters


class MachinesWorld(PlacementWorld):
    """The same, and little goes wrong but that machines are cut off for a while, and controllers end.

    While a machine was away nothing there has ended, so nothing of it that nobody else can do may be ended afterwards:
    at no moment is a bookie ended. What was asked of it when it was cut off is soon asked again, so the peace that is
    needed is shorter than the patience with an actor that starts slowly.
    """

    name = "machines"
    kinds = ["machine_cut", "controller_restart"]
    favourites: Sequence[str] = ("machine_cut",)
    candidates = 2
    bound_ms = CUTS_BOUND_MS


class DrainsWorld(PlacementWorld):
    """The placement world, with nodes that are drained before they are taken down, one at a time.

    Where nothing else goes wrong, no owner is left on a node that is reported as drained, and no owner ends because its
    process did.
    """

    name = "drains"
    kinds = ["node_drain", "process_crash", "controller_restart", "slow_process", "start_death"]
    favourites: Sequence[str] = ("node_drain",)


class PingNet:
    """Asks simulated processes whether an actor runs; nothing else is asked for here."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster

    async def call(self, to: Address, request: Request[Any], timeout: int) -> Any:
        """Alive, or Unknown."""
        assert isinstance(request, Ping)
        pause = self._cluster.world.loop.pause
        await pause(1 + self._cluster.rng.randrange(20))
        runs = self._cluster.runs_at(to)
        if runs is None:
            await pause(timeout)
            return Unknown("no answer")
        return Alive() if runs else Unknown("it is gone", gone=True)


class _Controller:
    """One incarnation of the controller."""

    def __init__(self, course: _Course, number: int) -> None:
        self.name = f"controller-{number}"
        self.course = course
        net: Any = PingNet(course.cluster)
        self.ports: Ports = replace(course.world.client(self.name), net=net)
        self.placement = Placement(course.brokers, self.ports.clock.monotonic(), candidates=course.candidates)
        processes = SimProcesses(course.cluster, self.name, self.makes)
        places = Placer(self.ports, processes, self.placement)
        self.supervisor = Supervisor(self.ports, places)
        auditor = ReplicationAuditor(self.ports, self.supervisor.lost, _no_partitions)
        self.drainer = NodeDrainer(self.ports, places, self.supervisor, auditor, _no_copies)
        self.entries: list[Running] = []
        self.ports.spawn(self.run(), "run")

    async def run(self) -> None:
        """Run the controller's part, with its supervisor."""
        if self.course.drains:
            await self.drainer.resume()
        while True:
            try:
                await self.supervisor.adopt()
                break
            except Unavailable:
                await self.ports.clock.sleep(RETRY_MS)
        self.entries = [self.supervisor.want(kind, settings) for kind, settings in self.course.wanted]
        await self.supervisor.watch()

    def makes(self, name: str) -> None:
        """Check that a process may be made, as its making begins."""
        self.course.counters["made"] += 1
        placement, slot = self.placement, stem(name)
        if slot == STANDBY:
            waiting, wanted = len(placement.standby.waiting), placement.wanted()
            assert waiting < wanted, f"S: one more is made to wait; {waiting} wait, {wanted} are wanted"
        known = placement.serving.get(slot)
        spared = known is not None and known.node in placement.cordoned
        assert known is None or known.slot != slot or spared, f"S: {slot} is given a second process beside {known}"

    def check(self) -> None:
        """Check what must hold at every moment, as far as this controller knows."""
        serving, waiting = self.placement.serving, self.placement.standby.waiting
        for slot, process in serving.items():
            assert process not in waiting, f"S: {process.name} waits, and serves {slot}"
            if not (is_broker(slot) and is_broker(process.slot)):
                assert process.slot == slot, f"S: the process of {process.slot} serves {slot}"
            assert serving.get(process.slot) is process, f"S: {process.name} and another one serve {process.slot}"
        self.course.counters["checked"] += 1

    def complaint(self) -> str:
        """Return what is not yet as it must be in the end; empty if all is well."""
        cluster, placement = self.course.cluster, self.placement
        if not self.entries:
            return "L: the controller has not begun"
        for entry in self.entries:
            slot = placement.slot_for(entry.kind, entry.settings)
            if not entry.address or not cluster.runs_at(entry.address):
                return f"L: {entry.name} does not run: {entry.problem}"
            process = placement.serving.get(slot)
            if process is None or process.slot != slot or process.name != entry.address.partition("/")[0]:
                return f"L: {entry.name} is at {entry.address}, {slot} is served by {process}, a fallback for good"
        waiting = len(placement.standby.waiting)
        if waiting != placement.wanted():
            return f"L: {waiting} processes wait, and {placement.wanted()} are wanted"
        for other in cluster.alive():
            if not placement.knows(other.name) and not is_candidate(other.name):
                return f"L: {other.name} runs, and is known to nobody"
        nodes = [process.node for process in cluster.alive() if is_candidate(process.name)]
        places = dict.fromkeys(cluster.nodes[node].address for node in nodes if node in cluster.nodes)
        if len(places) < min(self.course.candidates, len(self.course.machines)):
            return f"L: there are candidates on {list(places)} only"
        return ""


class _Course:
    """One run."""

    def __init__(self, world: World, faults: list[Fault], candidates: int, bound_ms: int) -> None:
        self.world = world
        self.faults = faults
        self.rng = rng = random.Random(f"course/{world.seed}")
        self.cluster = SimCluster(world)
        self.brokers = rng.randint(1, 3)
        self.machines = [f"machine-{number}" for number in range(rng.randint(1, 3))]
        bookies = [("bookie", {"bookie": f"bookie-{number}"}) for number in range(rng.randint(0, 3))]
        shares = [{"topic": "t", "partition": number} for number in range(rng.randint(1, 4))]
        self.wanted: list[tuple[str, dict[str, Any]]] = [
            *bookies,
            *(("topic", share) for share in shares),
            *(("dispatcher", {**share, "subscription": "s"}) for share in shares),
        ]
        self.candidates, self.bound_ms = candidates, bound_ms
        self.drains = any(fault.kind == "node_drain" for fault in faults)
        self.controllers: list[_Controller] = []
        self.counters = dict.fromkeys(("checked", "made", "controllers", "drained"), 0)
        self.nemesis = Nemesis(world, faults)
        self._nodes = 0

    async def run(self) -> None:
        """Trouble, then peace, in which everything must come to order."""
        world = self.world
        for machine in self.machines:
            self.add_node(machine)
            if self.rng.random() < 0.3:
                self.add_node(machine)
        self.begin_trouble()
        self.start_controller()
        world.background(self.look(), "look")
        await world.loop.pause(TROUBLE_MS)
        self.end_trouble()
        deadline = world.loop.now + self.bound_ms
        while told := self.controllers[-1].complaint():
            assert world.loop.now < deadline, f"{told}, after {self.bound_ms} ms of peace"
            await world.loop.pause(500)

    def add_node(self, machine: str) -> None:
        """One more node of a machine."""
        self._nodes += 1
        self.cluster.add_node(f"node-{self._nodes:02}", machine)

    def start_controller(self) -> _Controller:
        """The next controller."""
        self.counters["controllers"] += 1
        self.controllers.append(_Controller(self, len(self.controllers)))
        return self.controllers[-1]

    async def look(self) -> None:
        """Check the living controllers again and again."""
        while True:
            await self.world.loop.pause(LOOK_MS)
            for controller in self.controllers:
                if self.world.is_up(controller.name):
                    controller.check()

    # -- trouble -----------------------------------------------------------------------------------------------------

    def begin_trouble(self) -> None:
        """From now on things go wrong."""
        trouble = self.cluster.trouble
        self.cluster.only_cuts = all(fault.kind in MachinesWorld.kinds for fault in self.faults)
        for fault in self.faults:
            if fault.kind == "slow_process":
                trouble.slow_start, trouble.slow_ms = fault["chance"], fault.whole("most")
            elif fault.kind == "start_death":
                trouble.start_fails = fault["chance"]
            elif fault.kind == "answer_loss":
                trouble.answer_lost = fault["chance"]
        for kind in (*TROUBLES, "machine_cut", "node_drain"):
            self.nemesis.special[kind] = getattr(self, kind)
        self.nemesis.begin()

    def end_trouble(self) -> None:
        """From now on everything works, and there is one controller."""
        self.world.record("nemesis", "heals")
        self.nemesis.active = False
        self.cluster.trouble = type(self.cluster.trouble)()
        for process in self.cluster.alive():
            self.cluster.thaw(process)
        for machine in list(self.cluster.cut_off):
            self.cluster.heal_machine(machine)
        for machine in self.machines:
            if all(node.address != machine for node in self.cluster.nodes.values()):
                self.add_node(machine)
        for controller in self.controllers[:-1]:
            self.world.crash(controller.name)
        self.world.resume(self.controllers[-1].name)
        if not self.world.is_up(self.controllers[-1].name):
            self.start_controller()

    def victim(self, rng: random.Random, wanted: Callable[[SimProcess], bool]) -> SimProcess | None:
        """A process to hit."""
        every = [process for process in self.cluster.alive() if wanted(process)]
        return every[rng.randrange(len(every))] if every else None

    async def process_crash(self, fault: Fault, rng: random.Random) -> None:
        """A process dies, or two at once."""
        for _ in range(rng.choice((1, 1, 2))):
            process = self.victim(rng, lambda process: True)
            if process is not None:
                self.cluster.die(process, "crash")

    async def process_freeze(self, fault: Fault, rng: random.Random) -> None:
        """A process freezes for a while."""
        process = self.victim(rng, lambda process: not process.frozen)
        if process is not None:
            self.cluster.freeze(process)
            await self.world.loop.pause(int(rng.random() * fault["length"]))
            self.cluster.thaw(process)

    async def node_loss(self, fault: Fault, rng: random.Random) -> None:
        """A node dies, and its machine comes back later."""
        await self._without_node(self.cluster.lose_node, fault, rng)

    async def node_hang(self, fault: Fault, rng: random.Random) -> None:
        """A node hangs until it is given up, and its machine comes back later."""
        await self._without_node(self.cluster.give_up_node, fault, rng)

    async def _without_node(self, goes: Callable[[str], None], fault: Fault, rng: random.Random) -> None:
        nodes = sorted(self.cluster.nodes)
        if nodes:
            name = nodes[rng.randrange(len(nodes))]
            machine = self.cluster.nodes[name].address
            goes(name)
            await self.world.loop.pause(int(rng.random() * fault["down"]))
            self.add_node(machine)

    async def machine_cut(self, fault: Fault, rng: random.Random) -> None:
        """No controller reaches a machine for a while, on which everything lives."""
        machine = self.machines[rng.randrange(len(self.machines))]
        if machine not in self.cluster.cut_off:
            self.cluster.cut_machine(machine)
            await self.world.loop.pause(int(rng.random() * fault["length"]))
            self.cluster.heal_machine(machine)

    async def node_drain(self, fault: Fault, rng: random.Random) -> None:
        """A node is drained, then ends, and its machine comes back later; unless nothing can move away from it."""
        nodes = sorted(self.cluster.nodes)
        name = nodes[rng.randrange(len(nodes))]
        machine = self.cluster.nodes[name].address
        until = self.world.loop.now + DRAIN_MS
        while self.nemesis.active and self.world.loop.now < until:
            controller = self.controllers[-1]
            try:
                if self.world.is_up(controller.name) and controller.entries:
                    told = await controller.drainer.ask(DrainNode(node=name, keep_ledgers=True))
                    if told.done:
                        break
            except (Invalid, NotFound):
                return  # it is the last one
            except (Conflict, Unavailable):
                self.world.count("drain asked again")
            await self.world.loop.pause(500)
        else:
            return
        self.counters["drained"] += 1
        if all(each.kind == "node_drain" for each in self.faults):
            left = [each.name for each in self.cluster.alive() if each.node == name and _has_owners(each)]
            assert not left, f"S: {name} counts as drained, and {left} have owners"
            ended = [entry.name for entry in controller.entries if entry.kind != "bookie" and entry.restarts]
            assert not ended, f"S: {ended} ended although they only had to move"
        if name in self.cluster.nodes:
            self.cluster.lose_node(name)
            await self.world.loop.pause(int(rng.random() * fault["down"]))
            self.add_node(machine)

    async def controller_restart(self, fault: Fault, rng: random.Random) -> None:
        """The controller dies, and another one comes."""
        self.world.crash(self.controllers[-1].name)
        await self.world.loop.pause(int(rng.random() * fault["down"]))
        if self.nemesis.active:
            self.start_controller()

    async def two_controllers(self, fault: Fault, rng: random.Random) -> None:
        """The controller freezes, another one comes, and the first one goes on for a while."""
        old = self.controllers[-1]
        if not self.world.is_up(old.name):
            return
        self.world.pause(old.name)
        await self.world.loop.pause(int(rng.random() * 3_000))
        if self.nemesis.active:
            self.start_controller()
            await self.world.loop.pause(int(rng.random() * fault["length"]))
            self.world.resume(old.name)
            await self.world.loop.pause(int(rng.random() * fault["length"]))
            self.world.crash(old.name)


def _has_owners(process: SimProcess) -> bool:
    return any(kind != "bookie" for kind, _ in process.actors.values())


async def _no_partitions(everything: bool) -> list[tuple[str, Address]]:
    return []


async def _no_copies() -> tuple[int, str]:
    return 0, ""
