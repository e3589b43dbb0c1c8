"""Breaks the broker itself, by process id: owners, bookies, the controller, a whole node, the S3 server.

Whom a kind hits is looked up when it is due: the controller says at which address an actor is, the host at that
address says its process id, and that gets a real signal. Nothing is mended here but a node, which is replaced by a
new one: everything else the cluster has to mend by itself, which is what is being tested.

A host may run several owners. What is noted for the report is all that went with it: `dispatchers` and `topics` are
the partitions of this run whose owner was in the process, so that the judge can ask each how long it was without.

A victim that cannot be found (it, or the controller that knows it, is just being replaced) is looked for again and
again for a while; then the fault is passed over and counted.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlparse

import psutil

from sluice.cluster.launch.process_requests import impair, relieve
from sluice.loadgen.base.broker import BrokerClient
from sluice.loadgen.base.kinds import (
    CLOCK_JUMP,
    CONSUMER_KINDS,
    FLOOD_KINDS,
    HANG,
    IMPAIRMENT_KINDS,
    JOIN,
    KILL_NODE,
    MACHINE_KINDS,
    S3_DOWN,
    SLOW_DISK,
    standard_kinds,
)
from sluice.loadgen.base.options import EVERYTHING, ROLLING, FloodOptions
from sluice.loadgen.faults.faults import Fault, Fleet, Until, plan_by_share, plan_by_time, plan_in_turn
from sluice.loadgen.faults.impairments import SYNC_MS, Impairable, Impairment, leap_of, of_a_machine
from sluice.loadgen.faults.lasting_faults import Episode
from sluice.loadgen.faults.machine_control import control_of_environment
from sluice.loadgen.faults.machine_faults import MachineFaults
from sluice.loadgen.faults.rolling import Moves, plan_rolling
from sluice.loadgen.faults.slowdowns import Slowdown
from sluice.loadgen.faults.victims import Victims
from sluice.storage.errors import SluiceError, Unavailable

CONTROLLER = "controller"
NODE_AWAY_S = 3.0
"""How long a node that was killed stays away before another one joins."""
LOOK_EVERY = 12
"""Restarts between two looks at the assignments, of which the dispatchers remember the newest 256."""
FIND_S, FIND_EVERY_S = 20.0, 0.2
"""How long, and how often, a victim is looked for."""
COUNT_EVERY_S = 10.0
"""How often nodes are counted for a page: that means going through all processes of the machine."""
_ASK_S = 5.0
_STORE_SIZE = re.compile(r"--object_store_memory=(\d+)")
"""How the command line of a raylet tells the size of its object store."""


class ProcessFinder(Impairable, Protocol):
    """Finds the processes of a cluster. Each call may raise SluiceError or LookupError."""

    def actors(self) -> list[dict[str, Any]]:
        """Rows with kind, name and address of everything that runs."""

    def pid(self, host: str) -> int:
        """The process of a host."""

    def nodes(self) -> int:
        """How many nodes there are."""

    def node(self, lot: float) -> tuple[str, list[int], Callable[[], None]]:
        """A node that may be killed: its name, its processes, and what starts another one."""

    def s3(self) -> int:
        """The process that answers at the S3 endpoint."""

    def kinds(self) -> list[str]:
        """The kinds of faults that the cluster can stand."""

    def machines(self) -> list[str]:
        """The addresses of all machines."""


def plan(options: FloodOptions, processes: ClusterProcesses) -> list[Fault]:
    """The faults and their times: by the scenario, by time, or by the share of the messages that are delivered."""
    every = options.fault_every_ms / 1000
    if options.scenario == ROLLING:
        return plan_rolling(options.consumers, options.rounds, every)
    if options.in_acts:
        return plan_in_turn(options.restarts, options.seed)
    if options.minutes is None:
        return plan_by_share(options.restarts, options.seed)
    seconds = options.minutes * 60
    if options.faults is None:
        every = seconds / (options.restarts + 1)
        return plan_by_time(FLOOD_KINDS, every, seconds - every / 2, options.seed)
    kinds = options.faults
    if kinds == [EVERYTHING]:
        kinds = processes.kinds()
    return plan_by_time(kinds, every, seconds, options.seed)


class Victim(NamedTuple):
    """A process or machine that can be broken. target: as in Fault. label: for a person. kinds: the ways to break
    it.
    """

    target: str
    label: str
    kinds: tuple[str, ...]


class Chaos:
    """Injects faults of every kind: into consumers through their fleet, into the broker by signals."""

    def __init__(
        self,
        fleet: Fleet,
        processes: ProcessFinder,
        client: BrokerClient,
        topic: str,
        subscription: str,
        options: FloodOptions,
    ) -> None:
        self.fleet = fleet
        self._processes = processes
        self._client = client
        self._topic, self._subscription = topic, subscription
        self.moves = Moves()
        self._machines = machine_faults(options)
        self._holding = Victims(client, topic, subscription)
        self._often = options.scenario == ROLLING
        self._done = 0
        self._episodes: list[Episode] = []
        self._mending: list[threading.Thread] = []
        self._looking, self._striking = threading.Lock(), threading.Lock()
        self._others: tuple[float, list[str]] = (float("-inf"), [])
        self.passed_over = fleet.passed_over
        self.troubles: list[str] = []

    def inject(self, fault: Fault) -> None:
        """Break something now. Returns when it is done; what lasts is taken back by a timer."""
        if self._machines is not None and self._machines.headless:
            self.passed_over.append(f"{fault.kind}: Ray's head is away")
            return
        if fault.kind in CONSUMER_KINDS:
            if self._done % (LOOK_EVERY if self._often else 1) == 0 and not fault.pressed:
                self.count_moves()
            self._done += not fault.pressed
            self.fleet.inject(fault, self._until(fault))
            if fault.pressed:
                self.count_moves()
            return
        deadline = time.monotonic() + FIND_S
        while True:
            try:
                with self._striking:
                    self._strike(fault)
                return
            except LookupError as error:
                self.passed_over.append(f"{fault.kind}: {error}")
                return
            except (SluiceError, psutil.Error, TimeoutError) as error:
                if time.monotonic() >= deadline:
                    self.passed_over.append(f"{fault.kind}: {error}")
                    return
            time.sleep(FIND_EVERY_S)

    def count_moves(self) -> None:
        """Count the hashes that have moved since the last look."""
        with self._looking:
            self.moves.poll(self._client, self._topic, self._subscription)

    def _until(self, fault: Fault) -> Until | None:
        if fault.kind == HANG:
            return self._holding.until_behind
        return self._holding.until_held if fault.holding else None

    def _strike(self, fault: Fault) -> None:
        if fault.kind in MACHINE_KINDS:
            self._hit_machine(fault)
        elif fault.kind in IMPAIRMENT_KINDS:
            self._impair(fault)
        elif fault.kind == KILL_NODE:
            self._kill_node(fault)
        elif fault.kind == S3_DOWN:
            self._freeze(fault, "s3", self._processes.s3(), {})
        else:
            self._hit(fault)

    @property
    def moves_expected(self) -> bool:
        """Whether something was done that may give keys to other consumers."""
        return any(row["kind"] not in (*IMPAIRMENT_KINDS, *MACHINE_KINDS) for row in self.fleet.history)

    def finish(self) -> None:
        """Take back what lasts, and wait for the nodes that are still being replaced."""
        for episode in self._episodes:
            episode.end()
        self._episodes = []
        for thread in self._mending:
            thread.join()
        self._mending = []
        if self._machines is not None:
            self.troubles += self._machines.troubles
        self.count_moves()

    def close(self) -> None:
        """Let everything run again, whatever happened. Never raises."""
        for episode in self._episodes:
            episode.end()

    def _hit(self, fault: Fault) -> None:
        action, _, role = fault.kind.partition("-")
        rows = self._processes.actors()
        host, pid = self._one_here(rows, role, fault)
        lost = self._of_host(rows, host)
        if action == "kill":
            self._note(fault, host, lost)
            self.fleet.replace(self.fleet.strike([pid]))
        else:
            self._freeze(fault, host, pid, lost)

    def _one_here(self, rows: list[dict[str, Any]], role: str, fault: Fault) -> tuple[str, int]:
        """The host that a fault hits, and its process: the next one of this machine, if it is on another one."""
        elsewhere: list[str] = []
        while True:
            try:
                left = [row for row in rows if _host_of(row) not in elsewhere]
                host = self._choose(left, role, fault.lot, fault.target)
            except Unavailable:
                if elsewhere:
                    raise LookupError(f"every {role} is on another machine") from None
                raise
            try:
                return host, self._processes.pid(host)
            except LookupError:
                if fault.target or role == CONTROLLER:
                    raise
                elsewhere.append(host)

    def _hit_machine(self, fault: Fault) -> None:
        if self._machines is None:
            raise LookupError("this cluster has no machines that can be cut from each other")
        machines = self._processes.machines()

        def note(who: str) -> None:
            self._note(fault, who, {})

        self._episodes.append(self._machines.inject(fault, machines, note))

    def _impair(self, fault: Fault) -> None:
        rows = self._processes.actors()
        more: dict[str, Any] = {}
        if fault.kind == SLOW_DISK:
            bookies = sorted({_host_of(row) for row in self._of_role(rows, "bookie")} - {""})
            named = self._choose(rows, "bookie", 0.0, fault.target) if fault.target else ""
            hosts, amount = of_a_machine(self._processes, bookies, fault.lot, named), SYNC_MS
        else:
            role, amount, lot = leap_of(fault.lot)
            role = fault.target.partition("/")[0] or role
            hosts, more = [self._choose(rows, role, lot, fault.target)], {"ahead_ms": amount}
        busy = [each for each in self._episodes if isinstance(each, Impairment) and not each.over]
        if any(each.kind == fault.kind and {*each.hosts} & {*hosts} for each in busy):
            raise LookupError(f"{hosts[0]} has it already")
        row = self._note(fault, " and ".join(hosts), more)
        what = (fault.kind, amount, fault.lasts_s)
        self._episodes.append(Impairment(self._processes, hosts, what, lambda effect: row.update(effect=effect)))

    def _choose(self, rows: list[dict[str, Any]], role: str, lot: float, target: str = "") -> str:
        """The host of an actor of a role, or of the one that is named; an owner is one of this run's."""
        if role == CONTROLLER:
            found = [row for row in rows if row["kind"] == CONTROLLER]
            return _host_of(found[0]) if found else CONTROLLER
        mine = [row for row in self._of_role(rows, role) if target in ("", row["name"])]
        names = sorted(row["address"] for row in mine if row["address"])
        if not names:
            raise Unavailable(f"{target or f'no {role}'} is {'not ' if target else ''}running just now")
        return str(names[int(lot * len(names))].partition("/")[0])

    def _of_role(self, rows: list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
        mine = {"topic": f"topic/{self._topic}/", "dispatcher": f"dispatcher/{self._topic}/", "bookie": "bookie/"}
        return [row for row in rows if row["name"].startswith(mine[role])]

    def victims(self) -> list[Victim]:
        """All of this run that can be broken by name. Raises SluiceError while the controller does not answer."""
        found = [Victim("", "the cluster", (JOIN, *self._of_everybody()))]
        names = [member.name for member in self.fleet.working]
        alone = tuple(kind for kind in CONSUMER_KINDS if kind != JOIN)
        found += [Victim(name, name, alone) for name in sorted(names, key=lambda name: (len(name), name))]
        rows = self._processes.actors()
        for role, label in (("dispatcher", "dispatcher of partition"), ("topic", "owner of partition"), ("bookie", "")):
            for row in sorted(self._of_role(rows, role), key=lambda row: str(row["name"])):
                short = f"{label} {row['name'].split('/')[2]}" if label else row["name"].replace("/", " ")
                more = SLOW_DISK if role == "bookie" else CLOCK_JUMP
                found.append(Victim(row["name"], short, (f"kill-{role}", f"freeze-{role}", more)))
        return [*found, Victim(CONTROLLER, CONTROLLER, ("kill-controller", "freeze-controller"))]

    def _of_everybody(self) -> list[str]:
        """Kinds that choose their victim themselves, and that this cluster can stand."""
        looked, found = self._others
        if time.monotonic() - looked > COUNT_EVERY_S:
            known = self._processes.kinds()
            found = [kind for kind in (KILL_NODE, S3_DOWN, *MACHINE_KINDS) if kind in known]
            self._others = (time.monotonic(), found)
        return found

    def _of_host(self, rows: list[dict[str, Any]], host: str) -> dict[str, list[int]]:
        """The partitions of this run whose owners are in a process."""
        here = [row["name"].split("/") for row in rows if row["address"].partition("/")[0] == host]
        return {
            "dispatchers": sorted(int(n[2]) for n in here if n[:2] == ["dispatcher", self._topic]),
            "topics": sorted(int(n[2]) for n in here if n[:2] == ["topic", self._topic]),
        }

    def _freeze(self, fault: Fault, target: str, pid: int, lost: dict[str, list[int]]) -> None:
        if any(pid in episode.pids and not episode.over for episode in self._episodes):
            raise LookupError(f"{target} is frozen already")
        self._note(fault, target, lost)
        self._episodes.append(Slowdown([pid], fault.lasts_s))

    def _kill_node(self, fault: Fault) -> None:
        if any(thread.is_alive() for thread in self._mending):
            raise LookupError("another node is still being replaced")
        name, pids, another = self._processes.node(fault.lot)
        hosts = {_host_of(row) for row in self._processes.actors()}
        lost = {"dispatchers": list[int](), "topics": list[int]()}
        rows = self._processes.actors()
        for host in sorted(hosts - {""}):
            with contextlib.suppress(SluiceError, LookupError, TimeoutError):
                if self._processes.pid(host) in pids:
                    for role, partitions in self._of_host(rows, host).items():
                        lost[role] += partitions
        self._note(fault, name, lost)
        dead = self.fleet.strike(pids)
        thread = threading.Thread(target=self._mend, args=(another, dead), name="mend", daemon=True)
        self._mending.append(thread)
        thread.start()

    def _mend(self, another: Callable[[], None], dead: list[Any]) -> None:
        try:
            self.fleet.replace(dead)
            time.sleep(NODE_AWAY_S)
            another()
        except Exception as error:
            # Ray's and the system's errors are many; whatever it was, the run goes on with a node less, and says so.
            self.troubles.append(f"the killed node could not be replaced: {error}")

    def _note(self, fault: Fault, target: str, more: Mapping[str, Any]) -> dict[str, Any]:
        return self.fleet.note({**fault.row, "target": target, **more})


def machine_faults(options: FloodOptions) -> MachineFaults | None:
    """Return the faults of machines, or None if this process does not run on a machine that was made for them."""
    control = control_of_environment()
    if control is None:
        return None
    from sluice.cluster.node.environment import own_address

    return MachineFaults(control, own_address(), urlparse(options.s3_endpoint_url or "").hostname or "")


class ClusterProcesses:
    """The processes of the Ray cluster that this process is attached to; those on this machine can be hit."""

    def __init__(self, client: Any, address: str | None, s3_endpoint_url: str | None = None) -> None:
        self._client = client
        self._address = address or "?"
        self._s3 = s3_endpoint_url

    def actors(self) -> list[dict[str, Any]]:
        told = self._client.status()
        return [*told["actors"], {"kind": CONTROLLER, "name": CONTROLLER, "address": told["controller"]}]

    def pid(self, host: str) -> int:
        """See ProcessFinder. Raises Unavailable without an answer, LookupError if it is on another machine."""
        from sluice.cluster.node.process_watch import this_process

        machine, pid, _ = str(self._ask(host, "process")).split("/")
        if machine != this_process().partition("/")[0]:
            raise LookupError(f"{host} is on another machine")
        return int(pid)

    def machine(self, host: str) -> str:
        return str(self._ask(host, "process")).partition("/")[0]

    def impair(self, host: str, kind: str, amount: int, seconds: float) -> None:
        impair(host, kind, amount, seconds)

    def relieve(self, host: str, kind: str) -> int:
        return relieve(host, kind)

    def _ask(self, host: str, method: str) -> Any:
        """Call a method of a host by Ray, and return its answer. Raises Unavailable."""
        import ray
        from ray.exceptions import RayError

        from sluice.cluster.node.environment import NAMESPACE

        try:
            return ray.get(getattr(ray.get_actor(host, NAMESPACE), method).remote(), timeout=_ASK_S)
        except (RayError, ValueError) as error:
            raise Unavailable(f"{host} does not answer: {type(error).__name__}") from error

    def kinds(self) -> list[str]:
        if (control := control_of_environment()) is not None:
            return standard_kinds(machines=True, head=control.head != "")
        return standard_kinds(nodes=self.nodes(), s3=self._s3 is not None)

    def machines(self) -> list[str]:
        from sluice.cluster.node.nodes import known_nodes

        return sorted({str(node["address"]) for node in known_nodes() if node["alive"]})

    def node(self, lot: float) -> tuple[str, list[int], Callable[[], None]]:
        """See ProcessFinder. Spares the head, without which there is no cluster, and what this process needs."""
        others = sorted(self._raylets(), key=lambda process: process.pid)
        if not others:
            raise LookupError("there is no node besides the head")
        raylet = others[int(lot * len(others))]
        session = raylet.environ().get("RAY_TMPDIR", "")
        pids = [raylet.pid, *(child.pid for child in raylet.children(recursive=True))]
        size = _store_bytes(raylet.cmdline())

        def another() -> None:
            from sluice.cluster.node.nodes import add_node

            add_node(session, self._address, object_store_bytes=size)

        return f"node of process {raylet.pid}", pids, another

    def _raylets(self) -> list[psutil.Process]:
        """The raylets of this cluster on this machine that are no head."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if process.name() == "raylet" and f"--gcs-address={self._address}" in words:
                    found.append(process)
        return [process for process in found if "--head" not in process.cmdline()]

    def nodes(self) -> int:
        """How many nodes could be killed, and one."""
        return len(self._raylets()) + 1

    def s3(self) -> int:
        """See ProcessFinder. Raises LookupError if nobody of this machine listens at the endpoint."""
        port = urlparse(self._s3 or "").port
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return int(connection.pid)
        raise LookupError(f"nobody on this machine listens at the S3 endpoint {self._s3}")


def _host_of(row: dict[str, Any]) -> str:
    return str(row["address"].partition("/")[0])


def _store_bytes(command: list[str]) -> int:
    """The size of a raylet's object store; the node that takes its place gets one of the same size."""
    found = _STORE_SIZE.search(" ".join(command))
    if found is None:
        raise LookupError("the node does not tell the size of its object store")
    return int(found[1])
