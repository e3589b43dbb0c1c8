"""Prints answers as a table for people or as JSON for programs, and remarks on standard error."""

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

LONG_WORD = 24
"""Letters. A longer word in a cell is broken where room is short."""

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
    console = _console()
    if not rows:
        console.print(f"no {title}" if title else "none")
        return
    table = _table(rows, columns, title)
    if _fits(table, console):
        console.print(table)
        return
    left = list(rows)
    while left:  # it would break words: a row becomes a column, as many beside each other as there is room for
        most = len(left)
        while most > 1 and not _fits(_turned(left[:most], columns, title), console):
            most -= 1
        console.print(_turned(left[:most], columns, title))
        left = left[most:]


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
    """Print what each partition answered as one table, and each field that is itself rows as a table of its own.

    first: the partition of the first answer.
    """
    if as_json:
        show_json(list(answers))
        return
    rows: list[Row] = []
    for partition, answer in enumerate(answers, first):
        inner = answer if isinstance(answer, list) else [answer]
        rows += [{"partition": partition, **one} if isinstance(one, Mapping) else {"answer": one} for one in inner]
    inner_names = dict.fromkeys(name for row in rows for name, value in row.items() if is_table(value))
    show([{name: value for name, value in row.items() if name not in inner_names} for row in rows], False)
    for name in inner_names:
        show([{"partition": row["partition"], **one} for row in rows for one in row.get(name) or ()], False, title=name)


def is_table(value: object) -> bool:
    """Whether a value is rows."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def show_line(text: str) -> None:
    """Print one line of words; a terminal gets it broken between words."""
    if sys.stdout.isatty():
        _console().print(text, markup=False, highlight=False)
    else:
        print(text)


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

    shown = _shown(rows, columns)
    table = Table(title=title or None, title_justify="left")
    for name, heading in shown.items():
        numeric = all(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(escape(printable(heading)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in shown))
    return table


def _shown(rows: Sequence[Row], columns: Mapping[str, str] | None) -> dict[str, str]:
    """Field and heading of each column."""
    wanted = columns or {name: name for name in rows[0]}
    return {name: heading for name, heading in wanted.items() if any(name in row for row in rows)}


def _turned(rows: Sequence[Row], columns: Mapping[str, str] | None, title: str) -> Any:
    """A table with a line for each field and a column for each row."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    for _ in rows:
        table.add_column(overflow="fold")
    for name, heading in _shown(rows, columns).items():
        table.add_row(f"[bold]{escape(printable(heading))}[/bold]", *(_cell(name, row.get(name)) for row in rows))
    return table


def _fits(table: Any, console: Any) -> bool:
    """Whether no word of it has to be broken but for long ones, such as addresses."""
    from rich.text import Text

    widths = [
        max(
            _longest(Text.from_markup(str(column.header)).plain),
            *(min(_longest(Text.from_markup(str(cell)).plain), LONG_WORD) for cell in column.cells),
        )
        for column in table.columns
    ]
    return bool(sum(widths) + 3 * len(widths) + 1 <= console.width)


def _longest(text: str) -> int:
    return max(map(len, text.split()), default=0)


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
    return escape(printable(in_words(value)))


def in_words(value: object) -> str:
    """A value for a person, without the marks of JSON: `billing 1:0, audit 2:3`."""
    if isinstance(value, bytes):
        return text_of(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_words(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list | tuple):
        parts = [f"({in_words(one)})" if isinstance(one, Mapping | list | tuple) else in_words(one) for one in value]
        return ", ".join(parts) or "none"
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return str(value)


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return text_of(bytes(value))
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
