"""Files and functions stay small, every module says what it is, and each test lies where a reader looks for it."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from tests.hygiene.source import FUNCTIONS, PACKAGES, ROOT, Module, modules, tracked

MOST_LINES = 500
MOST_FUNCTION_LINES = 50
MOST_CONSTRUCTOR_PARAMETERS = 7
ONE_SUBJECT: dict[str, str] = {
    "actors/controller/controller.py": "the requests of one actor, a few lines each; decisions are elsewhere",
    "actors/placement/placer.py": "the waits of placement, all on the same slots and processes in hand",
    "actors/key_shared/dispatch.py": "the door of the decisions: a method for each call, and no decision of its own",
    "actors/topic/topic.py": "the conversation of a partition's owner: a method for each request, and what they share",
    "actors/consumer/partition.py": "a consumer's conversation with one owner: its turns, its sessions, what it says",
    "actors/pulsar/conversation/consuming/wire_consumer.py": "one consumer of a client: messages, acknowledgements",
    "actors/pulsar/codec/send_decoder.py": "one frame of a client as rows: what each of its fields becomes",
    "cluster/client/async_client.py": "the public client: a method for each thing that users do, and what they share",
    "loadgen/run/flood.py": "one run from its start to its end: what happens in which order is seen whole",
    "actors/dispatcher/takeover.py:take_over": "its order says what must be durable before what, and is seen whole",
}
"""Longer files, and functions as `file.py:name`, each with the reason why it has one subject and is not cut."""
MOST_LETTERS = 60
"""Of the name of a test."""
TEST_ONLY_FOLDERS = {"hygiene", "tools", "sim", "scenarios", "conformance", "deploy", "benchmarks", "docs", "kit"}
"""Folders of tests/ that stand for no single package."""


def test_no_file_is_too_long() -> None:
    long = [
        f"{one.path}: {len(one.text.splitlines())}"
        for one in modules()
        if len(one.text.splitlines()) >= MOST_LINES and one.path not in ONE_SUBJECT
    ]
    assert long == []


def test_no_function_is_too_long() -> None:
    long = [
        f"{module.path}:{node.lineno} {node.name}: {length}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, FUNCTIONS)
        and (length := (node.end_lineno or 0) - node.lineno + 1 - _docstring_lines(node)) >= MOST_FUNCTION_LINES
        and f"{module.path}:{node.name}" not in ONE_SUBJECT
    ]
    assert long == []


def constructors(module: Module) -> list[tuple[str, int]]:
    """Return each class of a file with a constructor, and the constructor's number of parameters besides `self`."""
    return [
        (
            kind.name,
            len([*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *filter(None, (taken.vararg, taken.kwarg))]) - 1,
        )
        for kind in ast.walk(module.tree)
        if isinstance(kind, ast.ClassDef)
        for function in kind.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for taken in (function.args,)
    ]


def test_no_constructor_takes_too_much() -> None:
    """Parameters that belong together are one object: a config, a context, the callbacks."""
    found = [(one.path, name, count) for one in modules(*PACKAGES) for name, count in constructors(one)]
    assert len(found) > 100
    assert [one for one in found if one[2] > MOST_CONSTRUCTOR_PARAMETERS] == []


def test_parameters_of_every_kind_are_counted() -> None:
    text = "class A:\n    def __init__(self, a, /, b, *c, d=1, **e): ...\nclass B:\n    def other(self, a): ...\n"
    assert constructors(Module("x.py", text, ast.parse(text))) == [("A", 5)]


def test_no_drawer_for_everything() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "misc.py"}
    assert [name for name in tracked() if PurePosixPath(name).name in drawers and not name.startswith("tests/")] == []


def test_every_module_says_what_it_is() -> None:
    silent = [one.path for one in modules() if one.text.strip() and not ast.get_docstring(one.tree)]
    assert silent == []


def test_names_of_tests_are_short() -> None:
    """A longer name belongs to two tests, or its story to the docstring."""
    long = [
        f"{module.path}:{node.lineno} {node.name} has {len(node.name)} letters"
        for module in modules("tests")
        for node in ast.walk(module.tree)
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_") and len(node.name) > MOST_LETTERS
    ]
    assert long == []


def test_public_names_have_docstrings() -> None:
    silent = [f"{module.path}:{line} {name}" for module in modules(*PACKAGES) for name, line in _undescribed(module)]
    assert silent == []


def test_every_folder_of_python_is_a_package() -> None:
    folders = {PurePosixPath(one.path).parent for one in modules(*PACKAGES, "tests")}
    assert sorted(str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()) == []


def test_tests_mirror_the_code() -> None:
    """tests/a/b/test_x.py tests the folder a/b. Its test files may be finer than the files there."""
    lost = [
        name
        for name in tracked()
        if name.startswith("tests/") and name.endswith(".py") and len(parts := PurePosixPath(name).parts[1:-1]) > 0
        if parts[0] not in TEST_ONLY_FOLDERS and not ROOT.joinpath(*parts).is_dir()
    ]
    assert lost == []


def test_every_package_has_its_tests() -> None:
    bare = [
        str(folder)
        for folder in sorted({PurePosixPath(one.path).parent for one in modules(*PACKAGES)})
        if not any((ROOT / "tests" / folder).glob("test_*.py"))
    ]
    assert bare == []


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    if not ast.get_docstring(node):
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def _undescribed(module: Module) -> list[tuple[str, int]]:
    """Return public classes without a docstring. No test knows which functions need one."""
    found: list[tuple[str, int]] = []
    scopes: list[ast.Module | ast.ClassDef] = [module.tree]
    while scopes:
        for node in scopes.pop().body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    found.append((node.name, node.lineno))
                scopes.append(node)
    return found
