"""No module imports itself by way of others: not while types are checked, not inside a function, not by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.hygiene.source import PACKAGES, Module, dotted, modules


def test_no_import_runs_in_a_circle() -> None:
    assert circle(graph([*modules(*PACKAGES, "tests", "benchmarks")])) == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"a.py": "import b", "b.py": "x = 1"}, set()),
        ({"a.py": "import b", "b.py": "import a"}, {"a", "b"}),
        ({"p/__init__.py": "", "p/a.py": "from p import b", "p/b.py": "from p.a import x"}, {"p.a", "p.b"}),
        ({"a.py": "if TYPE_CHECKING:\n    import b", "b.py": "import a"}, {"a", "b"}),
        ({"a.py": "def f():\n    import b", "b.py": "import a"}, {"a", "b"}),
        ({"a.py": "def f(): import_module('b')", "b.py": "import a"}, {"a", "b"}),
        ({"p/__init__.py": "import q", "q.py": "import p.a", "p/a.py": ""}, set()),
    ],
)
def test_the_search_for_circles_finds_them(files: dict[str, str], found: set[str]) -> None:
    assert {*circle(graph([Module(path, text, ast.parse(text)) for path, text in files.items()]))} == found


def graph(files: list[Module]) -> dict[str, set[str]]:
    """The modules that each module names in an import."""
    names = {_name(file.path): file for file in files}
    arrows: dict[str, set[str]] = {}
    for name, file in names.items():
        known = {_home(target, names) for target in _imported(file)}
        arrows.setdefault(name, set()).update(target for target in known if target)
    return {name: targets - {name} for name, targets in arrows.items()}


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """One circle, its first module at both ends; empty if there is none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _imported(file: Module) -> Iterator[str]:
    yield from (name for name, _ in file.imports())
    for call in file.calls():
        if dotted(call.func).endswith("import_module") and call.args and isinstance(call.args[0], ast.Constant):
            yield str(call.args[0].value)


def _home(target: str, names: Mapping[str, Module]) -> str:
    """The module that holds what is imported; empty if it is none of ours."""
    while target and target not in names:
        target = target.rpartition(".")[0]
    return target


def _name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
