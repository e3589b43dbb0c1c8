"""Handles signals while Ray starts, and while a program has workers.

Ray's library is C++ and Python by turns. An interrupt that becomes a Python exception in the middle of its start leaves
it half built, and taking such a thing apart sometimes ends the process with SIGSEGV, with everything that it had
started still there. So a first signal is held back until the start has ended one way or the other, which Ray itself
bounds; then it has its usual effect. A second one is not held back: the user insists.

SIGTERM ends a Python program at once, in the middle of everything. A program that has workers unwinds instead, as at
Ctrl-C: each `with` block is left, and a pool finishes what is under way.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TERMINATED = 128 + signal.SIGTERM
"""Exit code of a program that has unwound, as shells have it for one that was ended."""
_unwinding: dict[object, None] = {}
"""A row for each call of `unwind_at_sigterm` that was not taken back."""


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


def unwind_at_sigterm() -> Callable[[], None]:
    """Let SIGTERM raise SystemExit in the main thread where it would end the process. Return what takes that back.

    Outside of the main thread, and where the program has a handler of its own, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _unwind)
    mine = object()
    _unwinding[mine] = None

    def put_back() -> None:
        _unwinding.pop(mine, None)
        here = threading.current_thread() is threading.main_thread()
        if here and not _unwinding and signal.getsignal(signal.SIGTERM) is _unwind:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return put_back


def _unwind(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)
