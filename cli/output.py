"""Where output is said: answers as a table for people or JSON for programs, remarks on standard error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sluice.cluster.base.printable import printable, printable_json
from sluice.storage.dates import iso_time

Row = Mapping[str, Any]

PIPE_WIDTH = 200
"""Columns of a table that goes into a pipe or a file."""

_TIMES = ("timestamp", "_at", "time", "since")
"""Ends of the names of times; `deliverAt` is one as well, and `format` is none."""

WATCH_SECONDS = 2.0
"""How often --watch asks again."""


def prepare_streams() -> None:
    """Let everything be printed, wherever this process was started.

    What the encoding of standard output lacks is shown as its code. A standard stream that is closed becomes an empty
    one: the next file or socket that is opened would get its number, and libraries abort on that.
    """
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def show(rows: Sequence[Row], as_json: bool, columns: Mapping[str, str] | None = None, title: str = "") -> None:
    """Print rows as a table, or as one JSON array of everything.

    columns: field and heading of each column of the table that some row has (default: all fields of the first row).
    """
    if as_json:
        show_json(list(rows))
        return
    _console().print(_table(rows, columns, title))


def show_one(record: Row, as_json: bool) -> None:
    """Print one record: a line for each field, or one JSON object."""
    if as_json:
        show_json(record)
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in record.items():
        table.add_row(f"[bold]{escape(printable(name))}[/bold]", _cell(name, value))
    _console().print(table)


def show_partitions(answers: Sequence[Any], as_json: bool, first: int = 0) -> None:
    """Print what each partition answered, whatever its form: rows, one plain record, or one with inner structure.

    first: the partition of the first answer.
    """
    if as_json:
        show_json(list(answers))
        return
    rows: list[Row] = []
    for partition, answer in enumerate(answers, first):
        inner = answer if isinstance(answer, list) else [answer]
        rows += [{"partition": partition, **one} if isinstance(one, Mapping) else {"answer": one} for one in inner]
    if any(isinstance(value, Mapping | list) and value for row in rows for value in row.values()):
        for row in rows:
            show_one(row, False)
    else:
        show(rows, False)


def show_json(document: object) -> None:
    """One JSON document on one line; bytes as text where they are text, else as hexadecimal digits. What is no number,
    or has no end, is null: JSON has no word for it.
    """
    # Else a terminal's encoding that lacks a character would have it as an escape that no reader of JSON understands.
    escapes = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    try:
        text = json.dumps(document, default=_plain, ensure_ascii=escapes, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(document, default=_plain), parse_constant=lambda _: None)
        text = json.dumps(finite, ensure_ascii=escapes)
    print(printable_json(text), flush=True)


def watch(again: bool, once: Callable[[], None]) -> None:
    """Do it once, or with `again` every two seconds until Ctrl-C."""
    once()
    while again:
        time.sleep(WATCH_SECONDS)
        if sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")
        once()


def text_of(data: bytes) -> str:
    """Bytes as text if they are UTF-8, else as hexadecimal digits."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex()


def say(text: str, prefix: str = "sluice: ") -> None:
    """One line for the person at the terminal, on standard error."""
    print(prefix + printable(text), file=sys.stderr, flush=True)


def _console() -> Any:
    """Standard output; as wide as the table needs to be when it is not a terminal."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def _table(rows: Sequence[Row], columns: Mapping[str, str] | None, title: str) -> Any:
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        return f"{title}: none" if title else "none"
    wanted = columns or {name: name for name in rows[0]}
    shown = {name: heading for name, heading in wanted.items() if any(name in row for row in rows)}
    table = Table(title=title or None, title_justify="left")
    for name, heading in shown.items():
        numeric = all(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(escape(printable(heading)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in shown))
    return table


def _cell(name: str, value: object) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and (name.lower().endswith(_TIMES) or name.endswith("At")) and value > 10**12:
        return iso_time(value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, bytes):
        return escape(printable(text_of(value)))
    if isinstance(value, Mapping | list | tuple):
        return escape(printable_json(json.dumps(value, default=_plain, ensure_ascii=False)))
    return escape(printable(str(value)))


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return text_of(bytes(value))
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
