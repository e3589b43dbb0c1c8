"""The ports of simulated machines: who claims and who listens, as a kernel would have it.

A claim and a port are let go when their process ends, and only then: one that is frozen keeps both, and connections
that are made to it wait. A port that has been told to clients as a chosen one is never another one later.
"""

from __future__ import annotations

from sluice.storage.errors import Unavailable
from tests.sim.world import Process, World

FIRST = 40_000


class Machines:
    """The gateways and taken ports of a world's machines."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.taken: dict[tuple[str, int], None] = {}
        """Ports that programs of others have, by machine."""
        self.refused: dict[str, None] = {}
        """What a full disk refuses: `claim`, `tell`."""
        self.takeovers = 0
        self._claims: dict[str, Process] = {}
        self._listening: dict[tuple[str, int], Process] = {}
        self._told: dict[tuple[str, str], int] = {}
        self._free = FIRST

    def listener(self, machine: str, port: int = 0) -> Process | None:
        """Return the living process that listens on a machine, at the port that clients were told, or None."""
        port = port or next((told for (where, _), told in self._told.items() if where == machine), 0)
        process = self._listening.get((machine, port))
        return process if process is not None and process.alive else None

    def claim(self, process: Process) -> bool:
        """See actors.pulsar.conversation.gateway.port_claims.MachinePorts."""
        self._write("claim")
        holder = self._claims.get(process.machine)
        if holder is not None and holder is not process and holder.alive:
            self.world.count("gateway waits")
            return False
        self.takeovers += holder is not None and holder is not process
        self._claims[process.machine] = process
        return True

    def listen(self, process: Process, port: int) -> int:
        """See actors.pulsar.conversation.gateway.port_claims.MachinePorts."""
        if not port:
            self._free += 1
            port = self._free
        place = process.machine, port
        if place in self.taken or self.listener(*place) is not None:
            self.world.count("port in use")
            raise Unavailable(f"port {port} is in use")
        self._listening[place] = process
        return port

    def chosen(self, process: Process, scheme: str) -> int:
        """See actors.pulsar.conversation.gateway.port_claims.MachinePorts."""
        return self._told.get((process.machine, scheme), 0)

    def tell(self, process: Process, scheme: str, port: int) -> None:
        """See actors.pulsar.conversation.gateway.port_claims.MachinePorts."""
        self._write("tell")
        place = process.machine, scheme
        before = self._told.get(place, 0)
        assert before in (0, port) or not port, f"{place}: clients were told {before}, and now {port}"
        if port or not before:
            self._told[place] = port

    def _write(self, what: str) -> None:
        if what in self.refused:
            raise Unavailable("the disk is full")

    def close(self, process: Process) -> None:
        """See actors.pulsar.conversation.gateway.port_claims.MachinePorts."""
        self._listening = {place: other for place, other in self._listening.items() if other is not process}
        if self._claims.get(process.machine) is process:
            del self._claims[process.machine]


class SimMachinePorts:
    """The ports of the machine that a process is on. Implements
    actors.pulsar.conversation.gateway.port_claims.MachinePorts."""

    def __init__(self, machines: Machines, process: Process) -> None:
        self._machines, self._process = machines, process

    def claim(self) -> bool:
        """See MachinePorts."""
        return self._machines.claim(self._process)

    async def listen(self, scheme: str, port: int) -> int:
        """See MachinePorts."""
        await self._machines.world.loop.pause(1)
        return self._machines.listen(self._process, port)

    def chosen(self, scheme: str) -> int:
        """See MachinePorts."""
        return self._machines.chosen(self._process, scheme)

    def tell(self, scheme: str, port: int) -> None:
        """See MachinePorts."""
        self._machines.tell(self._process, scheme, port)

    def close(self) -> None:
        """See MachinePorts."""
        self._machines.close(self._process)
