"""How large the code is, and what one message runs through: `python -m tests.hygiene.figures` prints both.

The way of a message is traced from `send` to the durable acknowledgement, in a cluster in one process, once everything
is open. Background work that falls into that time counts as well, so two runs differ by a few functions.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections import Counter
from pathlib import PurePosixPath
from types import FrameType
from typing import Any

import sluice
from tests.hygiene.source import FUNCTIONS, PACKAGES, ROOT, Module, modules

WARM_UP, MESSAGES = 20, 5

PACKAGE = f"{ROOT}/src/sluice/"

Seen = dict[tuple[str, int], set[int]]
"""Functions, as (file, first line), in the order of their first call; for each the messages that it ran for."""


def lines_of(files: tuple[Module, ...]) -> int:
    return sum(len(file.text.splitlines()) for file in files)


def most_parameters() -> tuple[int, str]:
    """The constructor with the most parameters: how many, and its class."""
    found = []
    for file in modules(*PACKAGES):
        for kind in (node for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef)):
            for function in kind.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    taken = function.args
                    found.append((len([*taken.posonlyargs, *taken.args, *taken.kwonlyargs]) - 1, kind.name))
    return max(found)


def way() -> Seen:
    """Return every function of the product that runs for a message."""
    seen: Seen = {}
    tracing, number = False, 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        if tracing and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            place = (frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_firstlineno)
            seen.setdefault(place, set()).add(number)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with tempfile.TemporaryDirectory() as folder, sluice.connect(embedded=True, data_dir=folder) as client:
            client.create_topic("orders", 1)
            consumer = client.subscribe("orders", "billing", initial_position="earliest")
            producer = client.create_producer("orders")
            for number in range(WARM_UP + MESSAGES):
                tracing = number >= WARM_UP
                producer.send(b"x", partition_key="k")
                message = consumer.receive(timeout_millis=30_000)
                message.data()
                consumer.acknowledge(message, ack_receipt=True)
            tracing = False
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {place: ran for place, ran in seen.items() if place[0].split("/")[0] in PACKAGES}


def files_of(seen: Seen) -> set[str]:
    """Return the files that ran for every traced message, so without the background work of that time."""
    found: dict[str, set[int]] = {}
    for (path, _), ran in seen.items():
        found.setdefault(path, set()).update(ran)
    return {path for path, ran in found.items() if len(ran) == MESSAGES}


def function_lines(seen: Seen) -> int:
    """Lines of these functions, those inside of others counted once."""
    lines: set[tuple[str, int]] = set()
    for file in modules(*PACKAGES):
        for node in (node for node in ast.walk(file.tree) if isinstance(node, FUNCTIONS)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if (file.path, first) in seen:
                lines |= {(file.path, line) for line in range(first, (node.end_lineno or first) + 1)}
    return len(lines)


def main() -> None:
    product = modules(*PACKAGES)
    for name, files in (("product", product), ("tests", modules("tests")), ("benchmarks", modules("benchmarks"))):
        print(f"{name}: {len(files)} files, {lines_of(files):,} lines")
    for room, count in sorted(Counter(str(PurePosixPath(file.path).parent) for file in product).items()):
        print(f"    {room}: {count} modules")
    print("most parameters of a constructor: {} ({})".format(*most_parameters()))
    seen = way()
    files = tuple(file for file in product if file.path in {path for path, _ in seen})
    print(f"way of a message: {len(files)} files with {lines_of(files):,} lines, of which")
    print(f"    {len(seen)} functions with {function_lines(seen):,} lines run")


if __name__ == "__main__":
    main()
