"""The exit code of a command for the shell, and one line when something went wrong."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn, cast

import typer

from sluice.cli.output import say
from sluice.cluster.base.extras import missing
from sluice.storage.errors import Corrupt, InvariantViolation, SluiceError

FINE = 0
BROKEN = 1
CALLER = 2
INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a file that takes no more, as standard output has them, which has no name."""

# typer carries click inside, under a private name; its public exception leads to the base of all usage errors.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors go to standard error, one line each."""
    # Ray would start its workers through `uv run` if that is how this process was started; never wanted here.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # A terminated command cleans up like an interrupted one. What `nohup` has it ignore stays ignored.
    for name in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) is not signal.SIG_IGN:
            signal.signal(name, _interrupt)
    try:
        from sluice.cli.app import answer_shell, app

        answer_shell()
        code = app(list(arguments), standalone_mode=False, prog_name="sluice")
        sys.stdout.flush()
        return code if isinstance(code, int) else FINE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # Whoever read our output has had enough (`| head`), which typer turns into an exit. That is no failure, and
        # the interpreter must not complain about it at its end.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            if error.code == signal.SIGTERM:  # Ray, while it starts, has a handler of its own
                return INTERRUPTED
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FINE
    except Exception as error:
        return _explain(error)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(number)


def _explain(error: Exception) -> int:
    if os.environ.get("SLUICE_DEBUG"):
        traceback.print_exception(error)
    if _came_of_interrupt(error):
        return INTERRUPTED
    if isinstance(error, UsageError):
        command = error.ctx.command_path if error.ctx else "sluice"
        if type(error).__name__ == "NoArgsIsHelpError":
            say(error.format_message(), prefix="")
        else:
            say(f"{_one_line(error.format_message())} (see ./{command} --help)")
        return CALLER
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, InvariantViolation):
        say(f"a promise of the broker was broken: {error}")
        return BROKEN
    if isinstance(error, SluiceError):
        say(_one_line(str(error)))
        return BROKEN if isinstance(error, Corrupt) else CALLER
    if isinstance(error, ModuleNotFoundError) and (lacking := missing(error)):
        say(lacking)
        return CALLER
    if isinstance(error, OSError) and error.filename is not None:
        say(f"{error.strerror}: {error.filename}")
        return CALLER
    if isinstance(error, OSError) and error.errno in FULL:
        say(f"{error.strerror}: make room there, or write elsewhere")
        return CALLER
    say(f"internal error: {type(error).__name__}: {_one_line(str(error))} (SLUICE_DEBUG=1 shows the whole story)")
    return BROKEN


def _came_of_interrupt(error: BaseException | None) -> bool:
    """Whether what failed was the end of something interrupted: what it needs may have had the same signal."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _one_line(text: str) -> str:
    return " ".join(text.replace("Value error, ", "").split())
