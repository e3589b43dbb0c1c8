"""Guests of a world's gateways: clients whose right to produce is granted and revoked again and again.

They open producers and send nothing, so that everything else is judged as ever; all other clients are superusers then.
While there is trouble a guest may be told anything. At rest, when stores and machines answer again, a right that was
revoked ends a guest's producer within a second at every gateway, and none lets it in again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from sluice.actors.policies.authorization import Authorization
from sluice.actors.policies.permission_cache import FRESH_MS
from sluice.actors.policies.permissions import Permissions
from sluice.actors.policies.policy_records import of_topic
from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.conversation.gateway.gateway import Certified, Gateway
from sluice.storage.errors import Invalid, SluiceError
from tests.sim.pipes import Pipes
from tests.sim.world import World
from tests.sim.worlds.wire import ROLE, Gone, Refusal, Wire, partition_name

HOST, GUEST = "host", "guest"
"""The role of everybody else, and theirs."""
AGAIN_MS = 200
"""At rest a connection is made anew so long after it failed."""


def enforce(gateway: Gateway) -> None:
    """From now on this gateway asks for roles."""

    async def known(method: str, data: bytes) -> Certified:
        if method != ROLE or not data:
            raise Invalid("a role is wanted")
        return Certified(data.decode())

    gateway.authenticate = known
    gateway.access.enforce(Authorization((HOST,)))


class Guests:
    """One guest for each machine. topic, partitions: where they produce."""

    def __init__(self, world: World, pipes: Pipes, machines: Sequence[str], topic: str) -> None:
        self._world, self._topic, self._machines = world, topic, list(machines)
        self._rng = random.Random(f"guests/{world.seed}")
        self._pipes = Pipes(world)  # draws of its own: the others' connections are as they would be without it
        self._pipes.machines = pipes.machines
        self._permissions = Permissions(world.client("host").meta)
        self._closed: dict[str, bool] = {}
        self.opened = self.revoked = 0
        self._resting = False
        self._saying = asyncio.Lock()
        """One change at a time: of two at once nobody knows which one counts."""

    async def run(self, partitions: int) -> None:
        """While there is trouble."""
        for machine in self._machines:
            self._world.background(self._visit(machine, partitions), f"guest of {machine}")
        while not self._resting:
            await self._said(granted=self._rng.random() < 0.5)
            await self._world.loop.pause(self._rng.randrange(100, 2_000))

    def end(self) -> None:
        """End the trouble."""
        self._resting = True

    async def _said(self, *, granted: bool) -> None:
        """Grant or revoke, until that is confirmed."""
        name = of_topic(self._topic)
        async with self._saying:
            while True:
                try:
                    if granted:
                        await self._permissions.grant(name, GUEST, ["produce"])
                    else:
                        await self._permissions.revoke(name, GUEST)
                    return
                except SluiceError:
                    await self._world.loop.pause(100)

    def _wire(self, machine: str) -> Wire:
        def heard(said: str, body: Any, more: Any) -> None:
            if said == "close_producer":
                self._closed[machine] = True

        def lost() -> None:
            self._closed[machine] = True

        process = self._world.process(self._world.client(f"guest-{machine}").me.partition("/")[0])
        wire = Wire(self._pipes, process, [machine], self._rng, heard=heard, lost=lost)
        wire.role = GUEST
        return wire

    async def _open(self, wire: Wire, machine: str, partitions: int) -> None:
        """A producer. Raises Gone, Refusal."""
        if not wire.up:
            await wire.greet()
        self._closed[machine] = False
        place = partition_name(self._topic, self._rng.randrange(partitions), partitions)
        await wire.ask("producer", topic=place, producer_id=0, producer_name=f"guest-of-{machine}", epoch=1)
        self.opened += 1

    async def _visit(self, machine: str, partitions: int) -> None:
        wire = self._wire(machine)
        while not self._resting:
            try:
                await self._open(wire, machine, partitions)
                while not (self._closed[machine] or self._resting):
                    await self._world.loop.pause(50)
            except Gone:
                pass
            except Refusal as refusal:
                if refusal.code == ServerError.AUTHENTICATION:
                    raise
            await self._world.loop.pause(self._rng.randrange(20, 500))
        wire.hang_up()

    async def judge(self, partitions: int) -> None:
        """At rest: see the module."""
        await self._said(granted=True)
        wires = {machine: self._wire(machine) for machine in self._machines}
        for machine, wire in wires.items():
            await self._opened(wire, machine, partitions)
        await self._said(granted=False)
        self.revoked += 1
        await self._world.loop.pause(FRESH_MS)
        for machine, wire in wires.items():
            assert self._closed[machine], f"the right of a guest of {machine} lives on after it was revoked"
            await self._refused(wire, machine, partitions)
            wire.hang_up()

    async def _opened(self, wire: Wire, machine: str, partitions: int) -> None:
        while True:
            try:
                await self._open(wire, machine, partitions)
                return
            except (Gone, Refusal):
                await self._world.loop.pause(AGAIN_MS)

    async def _refused(self, wire: Wire, machine: str, partitions: int) -> None:
        while True:
            try:
                await self._open(wire, machine, partitions)
            except Gone:
                await self._world.loop.pause(AGAIN_MS)
                continue
            except Refusal as refusal:
                if refusal.code == ServerError.AUTHORIZATION:
                    return
                await self._world.loop.pause(AGAIN_MS)
                continue
            raise AssertionError(f"{machine} let a guest in whose right was revoked")
