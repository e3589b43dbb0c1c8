"""Decides, without I/O, when a standby broker process is started.

Starting a process costs a second of processor time, on a machine that has just lost one and is busy catching up. That
is most of the time of a failover. So one process is kept ready beside the working ones, and one more for each slot that
fell back to another process. They are made one at a time when the start of a cluster is over, are taken when a broker's
process has to be replaced, and are then replaced themselves. Nothing depends on them: if they are dead, frozen or on
the wrong node, a process is started as if there were none.
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
        """Add a process that is ready. The next one, if more are wanted, is due a little later."""
        self.waiting.append(process)
        self._due = now + self._times.again if len(self.waiting) < wanted else None

    def failed(self, now: int) -> None:
        """None could be made; it is tried again."""
        self._due = now + self._times.first

    def settled(self) -> None:
        """As many wait as are wanted."""
        self._due = None

    def remove(self, process: HostProcess) -> bool:
        """Remove a process that is used, or of no use. Returns False if it was taken before."""
        if process not in self.waiting:
            return False
        self.waiting.remove(process)
        return True

    def elsewhere(self, nodes: Container[str]) -> list[HostProcess]:
        """Return the processes on other nodes than `nodes`: they died with their nodes."""
        return [process for process in self.waiting if process.node not in nodes]

    def surplus(self, wanted: int) -> HostProcess | None:
        """One that is not needed, the latest."""
        return self.waiting[-1] if len(self.waiting) > wanted else None
