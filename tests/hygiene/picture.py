"""The picture of the rooms and their table, drawn from the code: `python -m tests.hygiene.picture` renews both.

A room is a package, an arrow is an import. The picture leaves two kinds of arrows out, so that the rest is readable:
arrows into a room that most rooms of its floor use (`GROUND`), and arrows that follow from others. If a room uses a
second one and that one a third one, the arrow from the first to the third is not drawn.
The table has the first sentence of each package's docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import PurePosixPath

from tests.hygiene.source import PACKAGES, ROOT, modules

PAGE = ROOT / "ARCHITECTURE.md"
TABLE_PAGE = ROOT / "docs" / "changing.md"
GROUND = {"storage", "storage/format", "actors/ports", "actors/runtime", "actors/messages", "cluster/base"}
"""Every room uses these."""

_BLOCK = re.compile(r"```mermaid\n.*?```", re.DOTALL)
_TABLE = re.compile(r"\| room \| [^\n]*\n(?:\|[^\n]*\n)+")

Arrows = set[tuple[str, str]]


def rooms() -> list[str]:
    """Return the packages, floor by floor, lowest first."""
    found = {_room(module.path) for module in modules(*PACKAGES)}
    return sorted((room for room in found if _files(room)), key=lambda room: (PACKAGES.index(_floor(room)), room))


def arrows() -> Arrows:
    """Return (from, to) of each pair of rooms on one floor where the first one imports the second one."""
    known = set(rooms())
    found = {
        (here, there)
        for module in modules(*PACKAGES)
        if (here := _room(module.path)) in known
        for name, _ in module.imports()
        if (there := _home(name, known)) and there != here
    }
    return {(here, there) for here, there in found if _floor(here) == _floor(there) and there not in GROUND}


def drawn(all_arrows: Arrows) -> Arrows:
    """Return the arrows that do not follow from others. Rooms that use each other keep theirs, in both directions."""
    both = {arrow for arrow in all_arrows if arrow[::-1] in all_arrows}
    one_way = all_arrows - both
    followed = {
        (here, there)
        for here, there in one_way
        if any(_leads(one_way, middle, there) for first, middle in one_way if first == here and middle != there)
    }
    return all_arrows - followed


def picture() -> str:
    """Return the block of Mermaid as it must stand in ARCHITECTURE.md."""
    lines = ["```mermaid", "flowchart TD"]
    for floor in reversed(PACKAGES):
        lines.append(f'  subgraph {floor}_floor["{floor}"]')
        lines.append("    " + "; ".join(f'{_id(room)}["{room}"]' for room in rooms() if _floor(room) == floor))
        lines.append("  end")
    lines += [f"  {above}_floor ==> {below}_floor" for above, below in pairwise(reversed(PACKAGES))]
    lines += _lines(drawn(arrows()))
    return "\n".join([*lines, "```"])


def table() -> str:
    """Return the table of rooms as it must stand in docs/changing.md: each with the first sentence of its package."""
    return "\n".join(["| room | subject |", "|---|---|", *(f"| `{room}` | {_subject(room)} |" for room in rooms())])


def pairs() -> list[tuple[str, str]]:
    """Return the pairs of packages that import each other, on all floors together."""
    found = _between_packages()
    return sorted((here, there) for here, there in found if here < there and (there, here) in found)


def circle_of_packages() -> list[str]:
    """Return one circle of packages that import one another, its first at both ends; empty if there is none."""
    graph: dict[str, set[str]] = {}
    for here, there in _between_packages():
        graph.setdefault(here, set()).add(there)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main() -> None:
    """Write the picture and the table into their pages."""
    for page, block, drawing in ((PAGE, _BLOCK, picture()), (TABLE_PAGE, _TABLE, table() + "\n")):
        text = page.read_text(encoding="utf-8")
        begin, end = found.span() if (found := block.search(text)) else (len(text), len(text))
        page.write_text(text[:begin] + drawing + text[end:], encoding="utf-8")


def _between_packages() -> Arrows:
    known = {_room(module.path) for module in modules(*PACKAGES)}
    return {
        (here, there)
        for module in modules(*PACKAGES)
        for name, _ in module.imports()
        if (there := _home(name, known)) and there != (here := _room(module.path))
    }


def _subject(room: str) -> str:
    (package,) = (module for module in modules(*PACKAGES) if module.path == f"{room}/__init__.py")
    first = (ast.get_docstring(package.tree) or "").split("\n\n")[0].replace("\n", " ")
    return first.split(". ")[0].rstrip(".").replace("|", "/") + "."


def _lines(chosen: Arrows) -> Iterator[str]:
    for here in rooms():
        ahead = sorted(there for first, there in chosen if first == here)
        one_way = [there for there in ahead if (there, here) not in chosen]
        both_ways = [there for there in ahead if (there, here) in chosen and here < there]
        for line, targets in (("-->", one_way), ("<-->", both_ways)):
            if targets:
                yield f"  {_id(here)} {line} {' & '.join(map(_id, targets))}"


def _leads(chosen: Arrows, start: str, end: str) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        room = waiting.pop()
        waiting += [there for here, there in sorted(chosen) if here == room and there not in seen]
        seen.update(waiting)
    return end in seen


def _room(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _home(name: str, known: set[str]) -> str:
    """Return the room that holds an import, or an empty string if the import is not the project's."""
    words = name.split(".")
    if words[0] not in PACKAGES:
        return ""
    while words:
        path = "/".join(words)
        if path in known or (ROOT / f"{path}.py").is_file():
            return path if path in known else _room(path)
        words.pop()
    return ""


def _files(room: str) -> bool:
    return any(_room(module.path) == room and not module.path.endswith("__init__.py") for module in modules(*PACKAGES))


def _floor(room: str) -> str:
    return room.split("/")[0]


def _id(room: str) -> str:
    return room.replace("/", "_")


if __name__ == "__main__":
    main()
