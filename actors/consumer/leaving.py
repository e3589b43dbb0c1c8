"""How a consumer leaves its dispatcher, even if it is attaching to one at that moment.

The answer to an attach may come after the consumer has left. Nobody uses the session that it names, and its lease would
keep its keys from the others, so that session is left as well.
"""

from __future__ import annotations

from actors.consumer.hand_backs import CALL_TIMEOUT
from actors.messages import Detach
from actors.ports import Address, Ports
from storage.errors import SluiceError


class Leaving:
    """The end of one partition's consumer."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._keep_place: bool | None = None

    async def leave(self, address: Address, session: int, *, for_good: bool) -> None:
        """Leave, now and whenever an attach is answered later. for_good: nothing is kept for one of its name."""
        self._keep_place = not for_good
        await self.after_attach(address, session)

    async def after_attach(self, address: Address, session: int) -> None:
        """Leave this session too, if the consumer has left. A dispatcher that does not hear it waits for the lease."""
        if self._keep_place is not None and session:
            await self.give_up(address, session, keep_place=self._keep_place)

    async def give_up(self, address: Address, session: int, *, keep_place: bool = True) -> None:
        """Leave a session that nobody uses."""
        try:
            await self._ports.net.call(address, Detach(session=session, keep_place=keep_place), CALL_TIMEOUT)
        except SluiceError as error:
            self._ports.log("leave_failed", address=address, error=str(error))
