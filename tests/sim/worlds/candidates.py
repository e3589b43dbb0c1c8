"""Candidates for the controller on two or three machines, which lose each other and the store.

The candidates are the real ones. Machines are cut from each other, from the store, in one direction or both; processes
freeze, crash and come back, the first one by itself and the others when the candidate in office starts them again.

At every moment: no two candidates are in office under one epoch, and one that has left office, or has ended, starts
nothing more. In the end one is in office and acts, the record is its own, and all others know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgpack

from sluice.actors.controller.candidate import KEY, NAME, ControllerCandidate
from sluice.actors.ports import Address, Net, Ports
from sluice.actors.ports.wire import Request
from sluice.storage.errors import Unavailable
from tests.sim.faults import Fault, Nemesis
from tests.sim.world import World

TROUBLE_MS, BOUND_MS, LOOK_MS = 60_000, 20_000, 50
AGAIN_MS = 1_000
"""A process that left office, or crashed, is there again after this time."""


class OfficeNet:
    """Calls of candidates by the name of their process, as in a cluster."""

    def __init__(self, net: Net) -> None:
        self._net = net

    async def call(self, to: Address, request: Request[Any], timeout: int) -> Any:
        """See actors.ports.Net."""
        host, _, actor = to.partition("/")
        return await self._net.call(f"{host}/{host}" if actor == NAME else to, request, timeout)


class _Begun(ControllerCandidate):
    """One whose process lets it begin as soon as it has started."""

    async def start(self) -> None:
        await super().start()
        self.ports.spawn(self.campaign(), "begin")


class Offices:
    """The processes that have a candidate. hosts: their names; the first takes office by itself.

    machines: the machine of each candidate that shares one.
    """

    def __init__(self, world: World, hosts: Sequence[str], machines: Mapping[str, str] | None = None) -> None:
        self.world = world
        self.hosts = list(hosts)
        self._machines = dict(machines or {})
        self.epochs: dict[int, str] = {}
        """Who took office under each epoch."""

    async def start(self, host: str) -> None:
        """Start one, or start it again. Raises Unavailable."""

        def make(ports: Ports) -> ControllerCandidate:
            async def take_office() -> None:
                (*_, value) = self.world.meta.records[KEY]
                epoch = int(msgpack.unpackb(value)["epoch"])
                assert self.epochs.setdefault(epoch, ports.me) == ports.me, f"S: two are in office under epoch {epoch}"
                await ports.clock.sleep(50)

            def leave_office(reason: str) -> None:
                self.world.count("left office")
                self.world.loop.after(0, self.world.crash, host)

            net: Any = OfficeNet(ports.net)
            first = host == self.hosts[0]
            return _Begun(
                replace(ports, net=net),
                take_office=take_office,
                leave_office=leave_office,
                machine=self._machines.get(host, host),
                first=first,
            )

        await self.world.start(host, make, fixed=True)

    async def keep(self) -> None:
        """Start again what has ended, for ever."""
        while True:
            await self.world.loop.pause(AGAIN_MS)
            for host in self.hosts:
                if not self.world.is_up(host):
                    try:
                        await self.start(host)
                    except Unavailable as error:
                        self.world.record(host, "does not start", error=str(error))

    def in_office(self) -> list[str]:
        """Return the hosts of the candidates that live and lead."""
        return [host for host, candidate in self.candidates() if candidate.leads]

    def candidates(self) -> list[tuple[str, ControllerCandidate]]:
        """Return the candidates that live, with their hosts."""
        found = [(host, self.world.process(host).actor) for host in self.hosts if self.world.is_up(host)]
        return [(host, actor) for host, actor in found if isinstance(actor, ControllerCandidate)]


class CandidatesWorld:
    """See the module."""

    name = "candidates"
    kinds = ["partition", "crash", "pause", "cut_stores", "meta_503", "meta_lost_answer", "meta_slow", "delay", "loss"]
    favourites: Sequence[str] = ("partition",)

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play a run."""
        counters = dict.fromkeys(("looked", "offices"), 0)

        async def run(world: World) -> None:
            offices = Offices(world, ["controller", "controller-a", "controller-b"][: 2 + world.rng.randrange(2)])
            for host in offices.hosts:
                await offices.start(host)
            nemesis = Nemesis(world, faults)
            nemesis.roles["any"] = lambda: offices.hosts

            async def again(name: str) -> None:
                await offices.start(name)

            nemesis.revive["any"] = again
            world.background(offices.keep(), "keep")
            nemesis.begin()
            until = world.loop.now + TROUBLE_MS
            while world.loop.now < until:
                await world.loop.pause(LOOK_MS)
                counters["looked"] += 1
            await nemesis.heal()
            deadline = world.loop.now + BOUND_MS
            while complaint := self._complaint(world, offices):
                assert world.loop.now < deadline, f"L: {complaint}, after {BOUND_MS} ms of peace"
                await world.loop.pause(LOOK_MS)
            counters["offices"] += len(offices.epochs)

        world.play(run)
        return counters

    def _complaint(self, world: World, offices: Offices) -> str:
        """Return what is not yet as it must be in the end; empty if all is well."""
        leading = offices.in_office()
        if len(leading) != 1:
            return f"{leading} are in office"
        (*_, value) = world.meta.records[KEY]
        if str(msgpack.unpackb(value)["owner"]).partition("/")[0] != leading[0]:
            return f"the record is not that of {leading[0]}"
        candidates = dict(offices.candidates())
        if not candidates[leading[0]].acts:
            return f"{leading[0]} does not act"
        wrong = [host for host in offices.hosts if host not in candidates or candidates[host].leader != leading[0]]
        return f"{wrong} do not follow {leading[0]}" if wrong else ""
