"""The gateway that has a machine's ports: the first one that claims them, until its process ends. Others wait.

A waiting gateway takes over by itself, however the one before it ended: the machine frees the ports when that process
ends, so no agreement is needed. A frozen gateway keeps the ports, as a frozen listener does, until the controller has
ended it.

A free port (0) is chosen once. Its number stays that of the machine, because clients know it: a gateway that takes over
listens there or not at all. If another program has the port, the gateway tries again and again, and commands report
meanwhile that no client can connect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from sluice.actors.ports import Ports
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Unavailable

AGAIN_MS = 200
"""Between attempts to have the ports: about so long nobody listens when a gateway has died."""


class MachinePorts(Protocol):
    """The ports of one machine, as one gateway claims them. Schemes are those of service URLs."""

    def claim(self) -> bool:
        """Be the one gateway of this machine, until `close` or the end of the process. False: another one is.

        Raises Unavailable if the machine does not say, for example because its disk is full.
        """

    async def listen(self, scheme: str, port: int) -> int:
        """Listen there; 0 is any free port. Returns the number. Raises Unavailable if another program has the port."""

    def chosen(self, scheme: str) -> int:
        """Return the port that an earlier gateway of this machine chose; 0 if there was none."""

    def tell(self, scheme: str, port: int) -> None:
        """Publish for the command line where clients connect; 0: nowhere, because another program has the port.

        Raises Unavailable if that cannot be written.
        """

    def close(self) -> None:
        """Stop listening, and let others claim the ports. Idempotent."""


class PortHolder:
    """Gets a gateway its ports and keeps them. wanted: by scheme. opened: called with each scheme and its number."""

    def __init__(
        self, ports: Ports, machine_ports: MachinePorts, wanted: Mapping[str, int], opened: Callable[[str, int], None]
    ) -> None:
        self._ports, self._machine_ports, self._opened = ports, machine_ports, opened
        self._missing = dict(wanted)
        self._claimed = False
        self._over = Signal()
        self._numbers: dict[str, int] = {}
        self._told: dict[str, int] = {}
        """The numbers to publish, by scheme, and those that were."""
        self.problem = ""
        """Why it could neither claim the ports nor publish their numbers at the last attempt."""

    @property
    def listens(self) -> bool:
        """Whether this is the machine's gateway, has all that it wants, and has said so."""
        return self._claimed and not self._missing and self._told == self._numbers

    @property
    def refused(self) -> dict[str, int]:
        """Ports that a program outside of this cluster has, by scheme."""
        missing = self._missing if self._claimed else {}
        return {scheme: port or self._machine_ports.chosen(scheme) for scheme, port in missing.items()}

    async def open(self) -> bool:
        """Try once; whether clients can connect to all that is wanted."""
        self.problem = ""
        if not self._claimed and self._done("gateway_waits", self._machine_ports.claim):
            self._claimed = True
            self._ports.log("gateway_claims")
        for scheme, wanted in list(self._missing.items()) if self._claimed else []:
            port = wanted or self._machine_ports.chosen(scheme)
            try:
                number = await self._machine_ports.listen(scheme, port)
            except Unavailable as error:
                if wanted:
                    self._numbers[scheme] = 0
                self._ports.log("gateway_waits", scheme=scheme, error=str(error))
                continue
            del self._missing[scheme]
            self._opened(scheme, number)
            self._numbers[scheme] = number
            self._ports.log("gateway_listens", scheme=scheme, port=number)
        for scheme, number in self._numbers.items():
            tell = partial(self._machine_ports.tell, scheme, number)
            if self._told.get(scheme) != number and self._done("port_untold", tell) is not False:
                self._told[scheme] = number
        return self.listens

    def _done(self, event: str, step: Callable[[], bool | None]) -> bool | None:
        """Return the outcome of a step; False if the machine refuses it, which is a reason to try again."""
        try:
            return step()
        except Unavailable as error:
            self.problem = str(error)
            self._ports.log(event, error=self.problem)
            return False

    async def run(self) -> None:
        """Try until the ports are open, then keep them; release them when cancelled."""
        try:
            while not self.listens and not await self.open():
                await self._ports.clock.sleep(AGAIN_MS)
            await self._over.wait(self._ports)
        finally:
            self._machine_ports.close()

    def close(self) -> None:
        """Release the ports."""
        self._over.set()
        self._machine_ports.close()
