"""Handles signals while Ray starts.

Ray's library is C++ and Python by turns. An interrupt that becomes a Python exception in the middle of its start leaves
it half built, and taking such a thing apart sometimes ends the process with SIGSEGV, with everything that it had
started still there. So a first signal is held back until the start has ended one way or the other, which Ray itself
bounds; then it has its usual effect. A second one is not held back: the user insists.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold the first signal back for the length of a `with` block, and put the handlers back that Ray replaces.

    Outside of the main thread, where no signal arrives, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.getsignal(name) for name in SIGNALS}
    came: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            put_back()
        came.append((number, frame))
        if len(came) > 1:
            _obey(number, frame)

    def put_back() -> None:
        for name, handler in before.items():
            signal.signal(name, signal.SIG_DFL if handler is None else handler)

    for name, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(name, note)
    try:
        yield
    finally:
        put_back()
        if len(came) == 1:
            _obey(*came[0])


def _obey(number: int, frame: FrameType | None) -> None:
    """Do what the signal would have done."""
    handler = signal.getsignal(number)
    if callable(handler):
        handler(number, frame)
    elif handler is not signal.SIG_IGN:
        signal.raise_signal(number)
