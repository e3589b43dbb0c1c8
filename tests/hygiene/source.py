"""The project's own files, parsed once, for the tests that read code in place of running it."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("storage", "actors", "cluster", "loadgen", "cli")
"""The packages, lowest layer first."""

PREFIX = "sluice."
"""The package that holds a link to each folder: `sluice.actors` is the folder `actors`."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_SKIPPED = {".venv", ".git", "__pycache__", ".hypothesis", "sluice-data", "build", "dist", "node_modules"}


@dataclass(frozen=True)
class Module:
    """One Python file. path: relative to the root, with slashes."""

    path: str
    text: str
    tree: ast.Module

    def calls(self) -> Iterator[ast.Call]:
        """Every call in the file."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def imports(self) -> Iterator[tuple[str, int]]:
        """Dotted name and line of everything imported, wherever in the file, also for type checking only."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name.removeprefix(PREFIX), node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                module = node.module.removeprefix(PREFIX)
                yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


@cache
def tracked() -> tuple[str, ...]:
    """Every file of the project: what git knows, or without git everything that is not made by tools."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return tuple(name for name in done.stdout.split("\0") if name and (ROOT / name).is_file())
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return tuple(sorted(path.as_posix() for path in paths if not _SKIPPED & {*path.parts}))


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """The Python files below these folders (default: all)."""
    chosen = (name for name in tracked() if name.endswith(".py") and (not folders or name.split("/")[0] in folders))
    return tuple(map(_module, chosen))


@cache
def _module(name: str) -> Module:
    text = (ROOT / name).read_text(encoding="utf-8")
    with _no_collection():
        return Module(name, text, ast.parse(text, name))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of nodes that stay: without this the garbage collector walks all of them again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of names, or an empty text for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def foreign_writes(file: Module) -> list[int]:
    """Lines that set an attribute of anything but `self`: `self.part.x = 1`, `session.x += 1`."""
    stored = (node for node in ast.walk(file.tree) if isinstance(node, ast.Attribute))
    written = (node for node in stored if isinstance(node.ctx, ast.Store | ast.Del))
    return [node.lineno for node in written if dotted(node.value) != "self"]
