"""A Ctrl-C while the console script `sluice` is still importing: it leaves with 130, without a traceback.

Nothing is begun yet that would have to be ended, and an exception can get lost in the middle of an import. The package
imports this module first. In any other program it does nothing.
"""

from __future__ import annotations

# The public module imports enumerations, which takes as long as the interpreter's own start.
import _signal as signal  # type: ignore[import-not-found]
import os
import sys


def leave_at_once() -> bool:
    """Let Ctrl-C end this process at once, unless the program has a handler of its own. Return whether it does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    return signal.getsignal(signal.SIGINT) is _leave


def _leave(_number: int, _frame: object) -> None:
    os._exit(130)


if os.path.basename(sys.argv[0]) == "sluice":
    leave_at_once()
