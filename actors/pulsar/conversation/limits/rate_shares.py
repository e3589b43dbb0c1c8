"""Tells each gateway how much the others let pass of their common rates (`rates.py`).

Other gateways are asked only where a rate is set and was used. A gateway that does not answer counts as letting nothing
pass: then the others have its share.
"""

from __future__ import annotations

import msgspec

from sluice.actors.messages import RatesHere
from sluice.actors.policies.backlog_quotas import CHECK_MS
from sluice.actors.ports import Ports
from sluice.actors.pulsar.conversation.limits.head_count import ASK_MS, HeadCount, answers_of
from sluice.actors.pulsar.conversation.limits.rates import Limited, RateLimiter, Use
from sluice.storage.errors import SluiceError


class RateShares:
    """Asks the other gateways what they let pass, and sets this one's share of each rate."""

    def __init__(self, ports: Ports, rates: RateLimiter, head_count: HeadCount) -> None:
        self._ports, self._rates, self._head_count = ports, rates, head_count

    async def run(self) -> None:
        """Ask again and again, for ever."""
        while True:
            await self._ports.clock.sleep(CHECK_MS)
            try:
                await self.measure()
            except SluiceError as error:
                self._ports.log("rates_unknown", error=str(error))

    async def measure(self) -> None:
        """Find out what passes here and elsewhere. Raises Unavailable."""
        self._rates.measure()
        if not self._rates.any:
            return
        others = [one for one in await self._head_count.others() if one != self._ports.me]
        replies = await answers_of(self._ports.net, others, RatesHere(), ASK_MS)
        self._rates.share([_decoded(reply.json) for reply in replies])

    def here(self) -> str:
        """Return the use of the rates at this gateway, encoded for the others."""
        return msgspec.json.encode(list(self._rates.uses.items())).decode()


def _decoded(said: str) -> dict[Limited, Use]:
    return dict(msgspec.json.decode(said, type=list[tuple[Limited, Use]]))
