"""Decides whether a fault has shown its effect: the next fault waits for it, and the verdict names those without.

A fault without effect tests nothing. A consumer that joined and received nothing took over no key; a kill of one that
held nothing was a kill of an idle process. So each fault has something that must be seen after
it, and is given PATIENCE_S for it under load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sluice.loadgen.base.kinds import FREEZE, JOIN, SLOW
from sluice.loadgen.faults.faults import PRESSED, Fault, Fleet

PATIENCE_S = 30.0
DRAIN_S = 3.0
"""How long hashes that began to drain are waited for."""

Latest = Callable[[], dict[str, int]]


class Effect:
    """The expected effect of one fault; made just before the fault is injected."""

    def __init__(self, fault: Fault, fleet: Fleet, latest: Latest) -> None:
        self._fault, self._fleet, self._latest = fault, fleet, latest
        self._before = dict(latest())
        self._received = {member.incarnation: member.last.received for member in fleet.working}
        self._known = len(fleet.history)
        self._began = time.monotonic()

    @property
    def entry(self) -> dict[str, Any] | None:
        """The row of the fleet's history that the fault made; None if it was passed over."""
        mine = (row for row in self._fleet.history[self._known :] if not row.get(PRESSED))
        return next(mine, None)

    def seen(self) -> str:
        """The effect in words; empty until it was seen."""
        entry = self.entry
        if entry is None or 0 in (entry.get("held"), entry.get("behind")):
            return ""
        member = next((one for one in self._fleet.working if one.name == entry["target"]), None)
        seconds = time.monotonic() - self._began
        if member is None or seconds < self._fault.lasts_s:
            return ""
        count = member.last.received
        if self._fault.kind in (FREEZE, SLOW):
            count -= self._received.get(member.incarnation, 0)
        elif member.incarnation in self._received:
            return ""  # the one from before the fault
        if count <= 0:
            return ""
        word = "received" if self._fault.kind == JOIN else "went on and received"
        held = f"it held {entry['held']:,}; " if "held" in entry else ""
        return f"{held}{member.incarnation} {word} messages {seconds:.1f} s later"

    def drained(self) -> bool:
        """Hashes that began to drain are over, or none began and none will."""
        now = self._latest()
        if now.get("draining", 0):
            return False
        began = now.get("begun", 0) > self._before.get("begun", 0)
        return began or time.monotonic() - self._began > DRAIN_S

    def note(self, what: str) -> None:
        """Write the effect into the fault's row, or that there was none."""
        if self.entry is not None:
            self.entry["effect"] = what
            self.entry["hashes_drained"] = self._latest().get("begun", 0) - self._before.get("begun", 0)
