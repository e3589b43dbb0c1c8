"""The fault buttons on the live page of a run: what can be broken, and what was broken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.loadgen.base.kinds import KINDS
from sluice.loadgen.faults.chaos import Chaos, Victim
from sluice.loadgen.faults.fault_injector import FaultInjector
from sluice.loadgen.faults.faults import Fault
from sluice.storage.errors import Conflict, Invalid, SluiceError

LASTS_S = 3.0
"""How long what is pressed lasts, for kinds that last: a person sees it, and no lease runs out."""
SHOWN = 8
"""Faults that the page names, the newest first."""
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Page:
    """The live page of a run, and the callback that gets its address. data_dir: the cluster's."""

    data_dir: Path
    announce: Callable[[str], None]


class FaultButtons:
    """One run as the panel sees it. phase: what the run is doing, in words. enough: stops the publishers."""

    def __init__(
        self, breaker: FaultInjector, chaos: Chaos, phase: Callable[[], str], enough: Callable[[], None]
    ) -> None:
        self._breaker, self._chaos, self._phase, self._enough = breaker, chaos, phase, enough
        self._victims: list[Victim] = []
        self._looked = float("-inf")

    def state(self) -> dict[str, Any]:
        rows = [f"{row['kind']} {row['target']}" for row in self._chaos.fleet.history]
        return {
            "victims": [victim._asdict() for victim in self._known()],
            "meanings": {name: kind.meaning for name, kind in KINDS.items()},
            "done": [*rows[: -SHOWN - 1 : -1], *(f"not done: {reason}" for reason in self._chaos.passed_over[-2:])],
            "phase": self._phase(),
            "open": self._breaker.open,
        }

    def press(self, kind: str, target: str) -> None:
        # The victim shown is there, most likely, and the person who presses does not wait for another look.
        if not any(victim.target == target and kind in victim.kinds for victim in self._victims or self._known()):
            raise Invalid(f"there is no {kind} for {target or 'the cluster'} here")
        lasts = LASTS_S if KINDS[kind].seconds != (0.0, 0.0) else 0.0
        named = "" if target == "controller" else target
        self._breaker.press(Fault(kind, target=named, lasts_s=lasts, pressed=True))

    def end(self) -> None:
        if not self._breaker.open:
            raise Conflict("there is no load now")
        self._enough()

    def _known(self) -> list[Victim]:
        """The possible victims; while the controller is being replaced, the victims known before that."""
        if time.monotonic() - self._looked > _LOOK_EVERY_S:
            with contextlib.suppress(SluiceError):
                self._victims, self._looked = self._chaos.victims(), time.monotonic()
        return self._victims
