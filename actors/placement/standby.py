"""Decides, without I/O, when a standby broker process is started.

Starting a process costs a second of processor time, on a machine that has just lost one and where everybody is busy
catching up. That is most of what a failover takes. So one process is kept ready beside those that work, and one more
for each that is missing there because its slot fell back to another one. They are made one after the other when the
start of a cluster is over, are taken when a broker's process has to be replaced, and are then replaced themselves.
Nothing depends on them: if they are dead, frozen or on the wrong node, a process is started as if there were none.
"""

from __future__ import annotations

from collections.abc import Container

from sluice.actors.placement.slots import HostProcess, Times


class Standby:
    """The standby processes, and when the next one is due. Times are monotonic milliseconds."""

    def __init__(self, times: Times) -> None:
        self.waiting: list[HostProcess] = []
        self._times = times
        self._due: int | None = None

    def due(self, wanted: int) -> int | None:
        """When the next one is to be made; None if there are as many as wanted, or nobody asked for more."""
        return self._due if len(self.waiting) < wanted else None

    def refill(self, now: int, after: int, wanted: int) -> bool:
        """Let the next one be made after a time (ms) at the latest; False if that changes nothing."""
        if len(self.waiting) >= wanted or (self._due is not None and self._due <= now + after):
            return False
        self._due = now + after
        return True

    def add(self, process: HostProcess) -> None:
        """One that an earlier controller made."""
        self.waiting.append(process)

    def made(self, process: HostProcess, now: int, wanted: int) -> None:
        """It is ready. The next one, if more are wanted, follows a little later."""
        self.waiting.append(process)
        self._due = now + self._times.again if len(self.waiting) < wanted else None

    def failed(self, now: int) -> None:
        """None could be made; it is tried again."""
        self._due = now + self._times.first

    def settled(self) -> None:
        """As many wait as are wanted."""
        self._due = None

    def take(self, process: HostProcess) -> bool:
        """It is to be used, or is of no use; False if it was taken before."""
        if process not in self.waiting:
            return False
        self.waiting.remove(process)
        return True

    def elsewhere(self, nodes: Container[str]) -> list[HostProcess]:
        """Those on other nodes than these: they died with theirs."""
        return [process for process in self.waiting if process.node not in nodes]

    def surplus(self, wanted: int) -> HostProcess | None:
        """One that is not needed, the latest."""
        return self.waiting[-1] if len(self.waiting) > wanted else None
