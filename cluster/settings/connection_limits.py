"""Which connections a gateway keeps: so many in all, and so many from one address.

A connection that comes when there is no room takes the place of the oldest one that was not let in yet: of one from its
own address where that has as many as it may have, of any other where all are taken. Without such a one it is closed.

A process that may open few descriptors keeps fewer than its settings say (`cluster.base.descriptors`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from sluice.cluster.base.descriptors import CLIENTS, at_most

logger = logging.getLogger("sluice.process")

MOST_CONNECTIONS = 1_000
MOST_PER_ADDRESS = 500
"""So that one machine leaves room to the others."""
MOST_HTTP_CONNECTIONS = 200
"""Those on which HTTP is spoken are counted apart."""


def limits_of(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many connections of clients a gateway keeps, in all and from one address.

    The settings say how many, unless this process may not open that many. A lower number is logged.
    """
    wanted = int(settings.get("pulsar_max_connections", MOST_CONNECTIONS))
    per_address = int(settings.get("pulsar_max_connections_per_address", MOST_PER_ADDRESS))
    most = at_most(wanted, CLIENTS)
    if most < wanted:
        logger.warning(
            "the gateway keeps at most %d connections of clients, because this process may open few files; raise the "
            "limit (ulimit -n) for the %d of its settings", most, wanted,
        )  # fmt: skip
    return most, max(1, per_address * most // wanted)


class OpenConnection(Protocol):
    """One of them. address: the client's, without its port."""

    address: str

    @property
    def is_stranger(self) -> bool:
        """Whether it was not let in yet."""

    def abort(self) -> None:
        """Break it off now."""


C = TypeVar("C", bound=OpenConnection)


class OpenConnections(Generic[C]):
    """The open connections, in the order in which they came."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address = most, most_per_address
        self._open: dict[C, None] = {}
        self._from: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._open))

    def __contains__(self, one: C) -> bool:
        return one in self._open

    def admit(self, one: C) -> bool:
        """Whether this one may stay; where it takes the place of another, that one is broken off."""
        from_there = self._from[one.address] >= self._most_per_address
        if from_there or len(self._open) >= self._most:
            others = (other for other in self._open if other.address == one.address or not from_there)
            stranger = next((other for other in others if other.is_stranger), None)
            if stranger is None:
                return False
            self.remove(stranger)
            stranger.abort()
        self._open[one] = None
        self._from[one.address] += 1
        return True

    def remove(self, one: C) -> None:
        """Forget a connection that is over. Idempotent."""
        if one in self._open:
            del self._open[one]
            self._from[one.address] -= 1
            self._from += Counter()  # addresses that have none are forgotten
