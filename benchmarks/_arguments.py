"""Numbers that the benchmarks take on their command line, refused where they mean nothing."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number of at least 1. Raises ArgumentTypeError, which ends the program with one line and exit code 2."""
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
