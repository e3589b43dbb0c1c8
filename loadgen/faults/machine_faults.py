"""Breaks machines and what is between them, for a while: the targets, the fault, and how it is taken back.

Where the run itself is, nothing is isolated: its consumers and tasks would be without a broker, and that says nothing
of the broker. One machine at a time suffers: of three, two have to reach each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from sluice.loadgen.base.kinds import CUT_ONE_WAY, FULL_DISK, ISOLATE, ISOLATE_STORE, KILL_HEAD, LOSSY_LINK, SLOW_LINK
from sluice.loadgen.faults.faults import Fault
from sluice.loadgen.faults.lasting_faults import Episode
from sluice.loadgen.faults.machine_control import MachineControl
from sluice.storage.errors import SluiceError

SLOW_MS, LOST = 100.0, 0.05


class MachineEpisode(Episode):
    """A fault of machines. pids: none, since no process of theirs is stopped."""

    def __init__(self, seconds: float, back: Callable[[], None]) -> None:
        self.pids = []
        self._back = back
        super().__init__(seconds)

    def _run(self, seconds: float) -> None:
        self._quiet.wait(seconds)
        self._back()


class MachineFaults:
    """The faults of a cluster's machines. own: the machine of the run. store: empty if it cannot be cut off."""

    def __init__(self, control: MachineControl, own: str, store: str = "") -> None:
        self._control, self._own, self._store = control, own, store
        self._episodes: list[MachineEpisode] = []
        self.troubles: list[str] = []
        self.headless = False
        """Ray's head is away: nobody joins, and nothing is found by Ray."""

    def inject(self, fault: Fault, machines: Sequence[str], note: Callable[[str], None]) -> MachineEpisode:
        """Break something, and tell `note` what, just before. machines: all addresses of the cluster.

        Raises LookupError if nothing can be broken now, Unavailable.
        """
        if any(not episode.over for episode in self._episodes):
            raise LookupError("another machine still suffers")
        others = sorted(machine for machine in machines if machine != self._own)
        if not others:
            raise LookupError("there is no second machine")
        pairs = self._pairs(fault, others)
        note(" and ".join(" from ".join(filter(None, pair)) for pair in pairs[:1]) + (" and all" * (len(pairs) > 1)))
        asks = {CUT_ONE_WAY: "drop", SLOW_LINK: "hamper", LOSSY_LINK: "hamper", FULL_DISK: "fill", KILL_HEAD: "kill"}
        self.headless = fault.kind == KILL_HEAD
        delay = SLOW_MS if fault.kind == SLOW_LINK else 0.0
        loss = LOST if fault.kind == LOSSY_LINK else 0.0
        episode = MachineEpisode(fault.lasts_s, lambda: self._take_back(fault, pairs))
        self._episodes = [episode]
        for one, other in pairs:
            self._control.ask(asks.get(fault.kind, "cut"), one, other, delay, loss)
        return episode

    def _pairs(self, fault: Fault, others: list[str]) -> list[tuple[str, str]]:
        """Return the pairs of machines that a fault concerns, by its lot. Raises LookupError if there is no victim."""
        victim = others[int(fault.lot * len(others))]
        if fault.kind == FULL_DISK:
            return [(victim, "")]
        if fault.kind == KILL_HEAD:
            if self._control.head not in others:
                raise LookupError(
                    "the run is on its machine" if self._control.head else "Ray's head has no Redis beside it"
                )
            return [(self._control.head, "")]
        if fault.kind == ISOLATE_STORE:
            if not self._store:
                raise LookupError("it is not known on which machine the store is")
            return [(victim, self._store)]
        every = [self._own, *others]
        if fault.kind == ISOLATE:
            return [(victim, each) for each in [*every, self._store] if each not in ("", victim)]
        between = [*itertools.permutations(every, 2)]
        return [between[int(fault.lot * len(between))]]

    def _take_back(self, fault: Fault, pairs: list[tuple[str, str]]) -> None:
        backs = {FULL_DISK: "empty", KILL_HEAD: "start head"}
        for one, other in pairs:
            try:
                self._control.ask(backs.get(fault.kind, "join"), one, other)
            except SluiceError as error:
                self.troubles.append(f"{fault.kind} could not be taken back: {error}")
        self.headless = False
