"""The command lines of the simulator and the benchmarks, which `./sluice` hands on as they are.

What means nothing is refused in one line, with exit code 2, as `./sluice` does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """Says in one line what is wrong with a call. A benchmark is called what `./sluice` calls it."""

    def __init__(self, **options: Any) -> None:
        script = Path(sys.argv[0]).absolute()
        if script.parent.name == "benchmarks":
            options.setdefault("prog", f"./sluice bench {script.stem}")
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"sluice: {message} (see {self.prog} --help)\n")


def count(text: str) -> int:
    """A whole number of at least 1. Raises ArgumentTypeError, as the others do; the parser tells it."""
    return _at_least(1, text)


def count_or_none(text: str) -> int:
    """A whole number of at least 0."""
    return _at_least(0, text)


def amount(text: str) -> float:
    """A number above 0, for example of seconds."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"give a number above 0, not {text}")
    return value


def _at_least(least: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"give {least} or more, not {value}")
    return value
