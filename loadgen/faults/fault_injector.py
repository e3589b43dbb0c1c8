"""Injects a flood's faults when they are due, in a thread of its own, because a clean leave takes a while.

By time or by the share that is delivered, a fault comes when its moment does. In acts (loadgen.base.acts) it comes
under the fixed rate, when the one before has shown its effect and no hash drains any more. What a person presses comes
at once, whatever is planned.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from sluice.loadgen.faults.chaos import Chaos
from sluice.loadgen.faults.effects import PATIENCE_S, Effect, Latest
from sluice.loadgen.faults.faults import Fault
from sluice.storage.errors import Conflict

_EVERY_S = 0.005


class FaultInjector:
    """The faults of one flood. loaded: their load has begun; ended: it is over."""

    def __init__(self, chaos: Chaos, faults: list[Fault], latest: Latest, *, in_acts: bool) -> None:
        """latest: the newest statistics of the dispatchers, summed (loadgen.samples.sampling)."""
        self._chaos, self._faults, self._latest = chaos, faults, latest
        self.loaded, self.ended = threading.Event(), threading.Event()
        self.troubles: list[str] = []
        self.pending = 0
        """How many are still to come and need the load; in acts only."""
        self._target = self._in_turn if in_acts else self._when_due
        self._thread: threading.Thread | None = None
        self._pressed: queue.SimpleQueue[Fault | None] = queue.SimpleQueue()
        self._presser = threading.Thread(target=self._press_each, name="pressed", daemon=True)

    def start(self, delivered: Callable[[], int], share: Callable[[], float], seconds: Callable[[], float]) -> None:
        """Begin. delivered: messages so far. share: part of all that is delivered. seconds: since the first message."""
        arguments = (delivered, share, seconds)
        self._thread = threading.Thread(target=self._target, args=arguments, name="faults", daemon=True)
        self._thread.start()
        self._presser.start()

    def press(self, fault: Fault) -> None:
        """A person asks for a fault in addition to the planned ones. Raises Conflict without a load."""
        if not self.open:
            raise Conflict("faults need a load, and there is none now")
        self._pressed.put(fault)

    @property
    def open(self) -> bool:
        """Whether something may be pressed now: there is a load."""
        return self._thread is not None and not self.ended.is_set()

    @property
    def busy(self) -> bool:
        """Whether any fault is still to come, or is being mended."""
        return self._thread is not None and self._thread.is_alive()

    def end(self) -> None:
        """Inject no more faults, and wait until the present ones are mended."""
        self.ended.set()
        if self._thread is not None:
            self._pressed.put(None)
            self._presser.join()
            self._thread.join()

    def _when_due(self, _: Callable[[], int], share: Callable[[], float], seconds: Callable[[], float]) -> None:
        for fault in self._faults:
            while not fault.due(share(), seconds()):
                if self.ended.wait(_EVERY_S):
                    return
            if not self._inject(fault):
                return

    def _in_turn(self, delivered: Callable[[], int], *_: Callable[[], float]) -> None:
        self.pending = len(self._faults)
        try:
            if self._under_load(delivered):
                self._one_by_one()
        finally:
            self.pending = 0

    def _under_load(self, delivered: Callable[[], int]) -> bool:
        """Wait until something is delivered under the load; False if it is over before."""
        while not self.loaded.wait(_EVERY_S):
            if self.ended.is_set():
                return False
        before = delivered()
        while delivered() <= before:
            if self.ended.wait(_EVERY_S):
                return False
        return True

    def _one_by_one(self) -> None:
        for fault in self._faults:
            if self.ended.is_set():
                return
            effect = Effect(fault, self._chaos.fleet, self._latest)
            if not self._inject(fault):
                return
            deadline = time.monotonic() + PATIENCE_S
            seen = ""
            while time.monotonic() < deadline and effect.entry is not None:
                seen = seen or effect.seen()
                if (seen and effect.drained()) or self.ended.wait(_EVERY_S):
                    break
            effect.note(seen or effect.seen())
            self.pending -= 1

    def _press_each(self) -> None:
        self._chaos.count_moves()  # from here on moves of hashes count, and who presses does not wait for it
        while (fault := self._pressed.get()) is not None:
            self._inject(fault)

    def _inject(self, fault: Fault) -> bool:
        try:
            self._chaos.inject(fault)
        except Exception as error:
            # Ray's and the system's errors are many; whatever it was, the run says so and goes on.
            self.troubles.append(f"the fault {fault.kind} could not be mended: {error}")
            return False
        return True
