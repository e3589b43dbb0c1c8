"""A gateway on every machine: which ones there should be, as machines come and go.

The supervisor starts, watches and replaces them, as every actor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluice.actors.controller.running import Running
from sluice.actors.controller.supervisor import Supervisor
from sluice.actors.ports import Places, Ports
from sluice.storage.errors import SluiceError, Unavailable

SURVEY_MS = 2_000
GONE_MS = 10_000
"""A machine that was not seen for so long has no gateway any more; until then it may only have been slow to answer."""


class GatewayKeeper:
    """Knows the machines, by when each was seen last. spared: those that need no gateway any more."""

    def __init__(
        self, ports: Ports, places: Places, supervisor: Supervisor, spared: Callable[[], Sequence[str]] = tuple
    ) -> None:
        self._ports, self._places, self._supervisor = ports, places, supervisor
        self._spared = spared
        self._seen: dict[str, int] = {}

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            await self.reconcile()
            await self._ports.clock.sleep(SURVEY_MS)

    async def reconcile(self) -> list[Running]:
        """Want a gateway on every machine that there is, and none on those that are gone; returns those wanted."""
        now = self._ports.clock.monotonic()
        try:
            self._seen |= dict.fromkeys(await self._places.machines(), now)
        except Unavailable as error:
            self._ports.log("machines_unknown", error=str(error))
            return self._supervisor.of_kind("gateway")
        self._seen = {machine: seen for machine, seen in self._seen.items() if now - seen < GONE_MS}
        for machine in self._spared():
            self._seen.pop(machine, None)
        for entry in self._supervisor.of_kind("gateway"):
            if entry.settings["machine"] not in self._seen and entry.starting is None:
                await self._end(entry)
        return [self._supervisor.want("gateway", {"machine": machine}) for machine in self._seen]

    async def _end(self, entry: Running) -> None:
        try:
            await self._supervisor.end("gateway", entry.settings)
        except SluiceError as error:
            self._ports.log("gateway_stays", key=entry.name, error=str(error))

    async def start_all(self) -> None:
        """Return when each was started once, or could not be."""
        await self._supervisor.try_all(await self.reconcile())
