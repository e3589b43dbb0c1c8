"""Wakes the owners of a process that rest when one of them may have been replaced.

What an owner that rests must look at is in the proof of its process (`actors.ownership.fenced_record`): as long as no
notice comes, nobody has taken what any of them owns. So thousands of them have one timer together. While the proof is
young and no notice has come, it wakes nobody. One of them is woken to look for a notice when the proof is older than
YOUNG_MS, and all of them when one has come: each then looks at its own record, so they are woken over SPREAD_MS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from sluice.actors.ownership.fenced_record import OwnershipProof
from sluice.actors.ports import Ports

LOOK_MS = 1_000
YOUNG_MS = 5_000
SPREAD_MS = 10_000


class IdleWaker:
    """The resting owners of one process; see `Ports.process`."""

    def __init__(self) -> None:
        self._wakes: dict[int, Callable[[], None]] = {}
        self._due: dict[int, None] = {}
        """The owners that are to look at their records."""
        self._numbers = self._notice = 0
        self._runs = False

    @contextmanager
    def rest(self, ports: Ports, wake: Callable[[], None], *, told: bool) -> Iterator[None]:
        """Within the block `wake` is called when the owner must look. told: it has looked since the newest notice."""
        self._numbers += 1
        number = self._numbers
        self._wakes[number] = wake
        if not told:
            self._due[number] = None
        if not self._runs:
            self._runs, self._notice = True, ports.process.of(OwnershipProof).notice
            self._wait(ports)
        try:
            yield
        finally:
            del self._wakes[number]
            self._due.pop(number, None)

    def _wait(self, ports: Ports) -> None:
        ports.clock.timer(LOOK_MS, lambda: self._look(ports))

    def _look(self, ports: Ports) -> None:
        if not self._wakes:
            self._runs = False
            return
        proof = ports.process.of(OwnershipProof)
        if proof.notice != self._notice:
            self._notice = proof.notice
            self._due = dict.fromkeys(self._wakes)
        together = -(-len(self._wakes) * LOOK_MS // SPREAD_MS)
        woken = list(islice(self._due, together))
        if not woken and ports.clock.monotonic() - proof.proven >= YOUNG_MS:
            woken = list(islice(self._wakes, 1))
        for number in woken:
            self._due.pop(number, None)
            self._wakes[number]()
        self._wait(ports)
