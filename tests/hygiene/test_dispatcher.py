"""The parts of a dispatcher have walls: none knows the actor, and none writes the attributes of another."""

from __future__ import annotations

import ast

from tests.hygiene.source import Module, foreign_writes, modules

ACTOR = "actors.dispatcher.dispatcher"
ENTRY = "actors/dispatcher/__init__.py"
"""The only file that names the actor's module: by it others come to the actor."""

HOLDERS = {"actors/dispatcher/delivery/membership.py", "actors/dispatcher/delivery/unacked_runs.py"}
"""Those that keep a table of small things of their own, members and runs, and nobody else writes those."""

PARTS = [file for file in modules("actors") if file.path.startswith("actors/dispatcher/")]


def knows_the_actor(file: Module) -> list[int]:
    """Return the lines that import the actor's module or its package's entry, also for type checking only."""
    entry = ("actors.dispatcher.Dispatcher", "actors.dispatcher")
    return [line for name, line in file.imports() if name in entry or f"{name}.".startswith(f"{ACTOR}.")]


def test_no_part_knows_the_actor() -> None:
    others = [file for file in PARTS if file.path != ENTRY]
    assert len(others) > 15
    assert {file.path: lines for file in others if (lines := knows_the_actor(file))} == {}
    (entry,) = (file for file in PARTS if file.path == ENTRY)
    assert knows_the_actor(entry)


def test_no_part_writes_what_belongs_to_another() -> None:
    others = [file for file in PARTS if file.path not in HOLDERS]
    assert {file.path: lines for file in others if (lines := foreign_writes(file))} == {}


def test_an_actor_has_all_its_attributes_before_it_starts() -> None:
    """The findings of `start` are arguments of the parts. One attribute, set before, holds the parts."""
    (actor,) = (file for file in PARTS if file.path == "actors/dispatcher/dispatcher.py")
    (kind,) = (node for node in actor.tree.body if isinstance(node, ast.ClassDef) and node.name == "Dispatcher")
    stored: dict[str, set[str]] = {}
    for function in kind.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            stored[function.name] = {
                node.attr
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            }
    later = set.union(*(names for name, names in stored.items() if name != "__init__"))
    assert later - stored["__init__"] == {"stopped"}, "which every actor has from the beginning"


def test_walls_are_seen_where_there_are_none() -> None:
    broken = (
        "if TYPE_CHECKING:\n    from sluice.actors.dispatcher.dispatcher import Dispatcher\n"
        "self._reader.enabled = True\nsession.turn += 1\nself.turn = 1\n"
    )
    file = Module("actors/dispatcher/x.py", broken, ast.parse(broken))
    assert (knows_the_actor(file), foreign_writes(file)) == ([2], [3, 4])
