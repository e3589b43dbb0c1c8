"""The audit: who did what to which topic or subscription, one line of JSON each, in files of the data folder.

    {"time": "2026-11-24T10:20:30.123456Z", "role": "till", "address": "127.0.0.1:41234", "what": "DELETE topic",
     "topic": "sales..eu..orders", "subscription": "", "outcome": "refused", "reason": "..."}

Each process that answers clients or tools has a file for what was done and one for what was refused, so that a client
that is refused again and again cannot push out what was done. A file is rotated at FILE_BYTES, and KEPT older ones
stay. Of refusals at most MOST_REFUSALS a second are written; the next line says how many were left out. Lines name
roles, never what a client presents to prove them, and no content of messages.
"""

from __future__ import annotations

import datetime
import heapq
import json
import logging.handlers
import os
import time
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from sluice.actors.policies.audited import REFUSED, Audited
from sluice.cluster.base.real import logger

FOLDER = "audit"
FILE_BYTES = 8 * 1024 * 1024
KEPT = 4
MOST_REFUSALS = 50
MOST_TEXT = 200
"""So many letters of each text are written: a client chooses some of them."""


class _OwnFiles(logging.handlers.RotatingFileHandler):
    """Files that only their owner reads, each new one as well."""

    def _open(self) -> TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(handle, "a", encoding=self.encoding)


class AuditLog:
    """Writes the lines of one process. name: which one, as in `gateway`.

    Raises nothing: where a line cannot be written, that goes to the process's log.
    """

    def __init__(self, data_dir: Path, name: str) -> None:
        self._base = data_dir / FOLDER / f"{name}-{os.uname().nodename}"
        self._files: dict[bool, logging.handlers.RotatingFileHandler] = {}
        self._second = self._refusals = 0

    def __call__(self, audited: Audited) -> None:
        """Write what was done, or refused."""
        refused = audited.outcome == REFUSED
        line: dict[str, Any] = {"time": _moment()}
        line |= {name: value[:MOST_TEXT] for name, value in audited.told().items()}
        if refused:
            second = time.monotonic_ns() // 1_000_000_000
            if second != self._second and self._refusals > MOST_REFUSALS:
                line["left_out"] = self._refusals - MOST_REFUSALS
            if second != self._second:
                self._second, self._refusals = second, 0
            self._refusals += 1
            if self._refusals > MOST_REFUSALS:
                return
        try:
            self._file(refused).emit(
                logging.LogRecord("audit", logging.INFO, "", 0, json.dumps(line, ensure_ascii=True), None, None)
            )
        except OSError as error:
            logger.error("the audit cannot be written: %s", error)

    def _file(self, refused: bool) -> logging.handlers.RotatingFileHandler:
        if refused not in self._files:
            self._base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = f"{self._base}{'-refused' if refused else ''}.jsonl"
            made = _OwnFiles(path, maxBytes=FILE_BYTES, backupCount=KEPT, encoding="utf-8")
            made.handleError = _failed  # type: ignore[method-assign]
            self._files[refused] = made
        return self._files[refused]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def _failed(record: logging.LogRecord) -> None:
    """A line could not be written, for example to a full disk. Clients are served all the same."""
    logger.exception("the audit cannot be written")


def _moment() -> str:
    """Return the time in microseconds: it puts the lines of two files in order, those of deeds and of refusals."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def audited_lines(data_dir: Path, *, since: str = "", role: str | None = None) -> Iterator[dict[str, Any]]:
    """All lines of this machine's processes, by time. since: a time as they have it.

    What is no line is left out.
    """
    names = sorted({path.name.partition(".jsonl")[0] for path in (data_dir / FOLDER).glob("*.jsonl*")})
    for line in heapq.merge(*(_lines(data_dir / FOLDER, name) for name in names), key=lambda line: str(line["time"])):
        if line["time"] >= since and (role is None or role in (line.get("role"), *str(line.get("role")).split(","))):
            yield line


def _lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """The lines of a file and of the files that it was renamed to before, the oldest first."""
    for path in [*(folder / f"{name}.jsonl.{number}" for number in range(KEPT, 0, -1)), folder / f"{name}.jsonl"]:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for text in file:
                    if (line := _line(text)) is not None:
                        yield line
        except FileNotFoundError:
            continue


def _line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None  # it is being written
    return line if isinstance(line, dict) and isinstance(line.get("time"), str) else None


class AuditTail:
    """A reader of the lines that come to this machine's audit from now on, for the live page."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER
        self._read = {path: path.stat().st_size for path in self._paths()}

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))

    def new(self) -> list[dict[str, Any]]:
        """The lines since the last call, by time. What is written while a file is rotated may be missed."""
        found: list[dict[str, Any]] = []
        for path in self._paths():
            try:
                with path.open("rb") as file:
                    before, size = self._read.get(path, 0), os.fstat(file.fileno()).st_size
                    file.seek(before if before <= size else 0)
                    data = file.read()
            except OSError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = (before if before <= size else 0) + len(whole)
            lines = (_line(text) for text in whole.decode("utf-8", "replace").splitlines())
            found += [line for line in lines if line is not None]
        return sorted(found, key=lambda line: str(line["time"]))
