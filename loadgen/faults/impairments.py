"""Makes processes of the broker worse from within for a while, on whatever machine; each says how often it felt that.

A signal reaches only the processes of this machine and can only stop them. These are asked over a connection, and take
back by themselves what was done, so that nothing stays if they cannot be reached when it is over. What they say of it
then is the effect in the row of the fault; those that ended meanwhile say nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.loadgen.base.kinds import SLOW_DISK
from sluice.loadgen.faults.lasting_faults import Episode
from sluice.storage.errors import SluiceError, Unavailable

SYNC_MS = 200
"""How much longer a sync takes on a slow disk."""
LEAPS_MS = (60_000, 3_600_000, -60_000, -3_600_000)
"""By how much a clock leaps."""
CLOCK_ROLES = ("dispatcher", "topic")
"""The roles whose clocks leap: owners decide what is due. Bookies and the controller do not use the time of day."""


def leap_of(lot: float) -> tuple[str, int, float]:
    """Return the role whose clock leaps, by how many ms, and the lot that chooses among the processes of the role."""
    number, rest = divmod(lot * 1_000, 1)
    many = len(CLOCK_ROLES)
    return CLOCK_ROLES[int(number) % many], LEAPS_MS[int(number) // many % len(LEAPS_MS)], rest


def effect_of(kind: str, amount: int, felt: int) -> str:
    """The effect in words; empty if nobody felt it."""
    if not felt:
        return ""
    if kind == SLOW_DISK:
        return f"{felt:,} syncs took {amount} ms longer"
    return f"{felt:,} looks at a clock that was {abs(amount) // 1000:,} s {'ahead' if amount > 0 else 'behind'}"


class Impairable(Protocol):
    """Reaches the hosts of a cluster, wherever they are. Each call may raise SluiceError."""

    def machine(self, host: str) -> str:
        """Which machine a host is on."""

    def impair(self, host: str, kind: str, amount: int, seconds: float) -> None:
        """Begin it; kind and amount as in cluster.base.impairments."""

    def relieve(self, host: str, kind: str) -> int:
        """Take it back; returns how often it was felt."""


class Impairment(Episode):
    """An impairment of the hosts that can be reached. told: gets the effect in words, or nothing if no host felt it."""

    def __init__(
        self, processes: Impairable, hosts: Sequence[str], what: tuple[str, int, float], told: Callable[[str], None]
    ) -> None:
        """Begin at once. what: kind, amount, seconds."""
        self.pids = []
        self.hosts, (self.kind, self._amount, seconds) = hosts, what
        self._processes, self._told = processes, told
        for host in hosts:
            with contextlib.suppress(SluiceError):
                processes.impair(host, self.kind, self._amount, seconds)
        super().__init__(seconds)

    def _run(self, seconds: float) -> None:
        self._quiet.wait(seconds)
        felt = 0
        for host in self.hosts:
            with contextlib.suppress(SluiceError):  # it has ended or is away, and takes it back by itself
                felt += self._processes.relieve(host, self.kind)
        self._told(effect_of(self.kind, self._amount, felt))


def of_a_machine(processes: Impairable, hosts: Sequence[str], lot: float, named: str) -> list[str]:
    """Return the hosts that share a machine: with the named one, or if that is empty with the one that the lot falls
    on.

    Raises Unavailable if none of the hosts can be reached.
    """
    machines: dict[str, list[str]] = {}
    for host in sorted(hosts):
        with contextlib.suppress(SluiceError):
            machines.setdefault(processes.machine(host), []).append(host)
    groups = [group for _, group in sorted(machines.items()) if named in ("", *group)]
    if not groups:
        raise Unavailable(f"{named or 'no bookie'} cannot be reached")
    return groups[int(lot * len(groups))]
