"""`storage` and `actors` contain nothing that would make two runs of one seed differ.

The syntax tree shows the builtins `hash` and `id`, iteration over sets, clocks and chance by any name, and asyncio's
own timers and tasks. The simulator's digest shows the rest, such as a set that came from elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.hygiene.source import Module, dotted, modules

LAYERS = ("storage", "actors")

BUILTINS = {"hash", "id", "input", "print", "eval", "exec"}
"""Builtins that these layers do not call; the first two differ from process to process."""

ASYNCIO = {
    "sleep", "wait_for", "timeout", "timeout_at", "TaskGroup", "create_task", "ensure_future", "run", "to_thread",
    "wait", "new_event_loop", "run_coroutine_threadsafe",
}  # fmt: skip
"""Of asyncio, actors use what only waits for others (futures, events, locks); time and tasks come by ports."""

LOOP = {"call_later", "call_at", "run_in_executor", "add_reader", "add_writer"}
"""Methods of an event loop that are timers, threads or sockets."""

UNORDERED = {"set", "frozenset"}
ORDER_FREE = {"sorted", "len", "any", "all", "sum", "min", "max", "set", "frozenset", "bool", "isinstance"}
"""Functions whose answer does not depend on the order in which they see a set."""


def test_no_builtin_that_differs_between_runs() -> None:
    wrong = [
        f"{module.path}:{call.lineno} calls {call.func.id}()"
        for module in modules(*LAYERS)
        for call in module.calls()
        if isinstance(call.func, ast.Name) and call.func.id in BUILTINS and not _defined(module, call.func.id)
    ]
    assert wrong == []


def test_no_timer_and_no_task_of_asyncio_in_actors() -> None:
    wrong = [
        f"{module.path}:{node.lineno} uses {node.attr} of asyncio"
        for module in modules("actors")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and (node.attr in LOOP or (dotted(node.value) == "asyncio" and node.attr in ASYNCIO))
    ]
    wrong += [
        f"{module.path}:{line} imports {name}"
        for module in modules("actors")
        for name, line in module.imports()
        if name.removeprefix("asyncio.") in ASYNCIO and name.startswith("asyncio.")
    ]
    assert wrong == []


def test_no_random_numbers_and_no_present_time_by_way_of_numpy() -> None:
    banned = ("np.random", "numpy.random", "datetime.now", "datetime.datetime.now", "datetime.utcnow")
    wrong = [
        f"{module.path}:{node.lineno} uses {dotted(node)}"
        for module in modules(*LAYERS)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and dotted(node) in banned
    ]
    assert wrong == []


def test_no_iteration_over_a_set() -> None:
    wrong = [
        f"{module.path}:{line} iterates over the set {what}"
        for module in modules(*LAYERS)
        for what, line in set_iterations(module.tree)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("for x in {1, 2}: pass", 1),
        ("for x in set(y): pass", 1),
        ("for x in sorted({1, 2}): pass", 0),
        ("s: set[int] = set()\nfor x in s: pass", 1),
        ("s = set()\nprint([x for x in s])", 1),
        ("s = set()\nprint({x for x in s})", 0),
        ("s = set()\nprint(sorted(x + 1 for x in s))", 0),
        ("class A:\n    def __init__(self): self.s: set[int] = set()\n    def f(self): return list(self.s)", 1),
        ("class A:\n    s: frozenset[int]\n    def f(self): return next(iter(self.s))", 1),
        ("s = set()\ns.pop()", 1),
        ("for x in {1} | y: pass", 1),
        ("s = {}\nfor x in s: pass", 0),
        ("def f(s: set[int]):\n    for x in s: pass", 1),
    ],
)
def test_the_search_for_set_iterations_finds_them(code: str, found: int) -> None:
    assert len(list(set_iterations(ast.parse(code)))) == found


def set_iterations(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield source and line of each place where the order of a set can come out."""
    names = set(_names_of_sets(tree))
    free = {
        id(comprehension)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and dotted(call.func) in ORDER_FREE
        for comprehension in call.args
    }
    for node in ast.walk(tree):
        for source in _iterated(node, free):
            if _is_set(source, names):
                yield ast.unparse(source), source.lineno


def _iterated(node: ast.AST, free: set[int]) -> Iterator[ast.expr]:
    """Yield the expressions that this node iterates over in their own order."""
    if isinstance(node, ast.For | ast.AsyncFor):
        yield node.iter
    elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and id(node) not in free:
        yield from (generator.iter for generator in node.generators)
    elif isinstance(node, ast.Call):
        name = dotted(node.func)
        if name in ("list", "tuple", "iter", "enumerate", "map", "filter", "zip", "np.array", "np.fromiter"):
            yield from node.args
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args:
            yield node.func.value
    elif isinstance(node, ast.Starred):
        yield node.value


def _is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(node.left, names) or _is_set(node.right, names)
    if isinstance(node, ast.Call):
        return dotted(node.func) in UNORDERED
    return dotted(node) in names


def _names_of_sets(tree: ast.Module) -> Iterator[str]:
    """Yield names (`s`, `self.s`) that the file declares or fills as sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _says_set(node.annotation):
            yield dotted(node.target)
            if isinstance(node.target, ast.Name):
                yield f"self.{node.target.id}"
        elif isinstance(node, ast.arg) and node.annotation is not None and _says_set(node.annotation):
            yield node.arg
        elif isinstance(node, ast.Assign) and _is_set(node.value, set()):
            yield from (dotted(target) for target in node.targets)


def _says_set(annotation: ast.expr) -> bool:
    inner = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return dotted(inner) in UNORDERED


def _defined(module: Module, name: str) -> bool:
    """Return whether the file has a function or parameter of its own by this name."""
    return any(isinstance(node, ast.FunctionDef | ast.arg) and _name(node) == name for node in ast.walk(module.tree))


def _name(node: ast.FunctionDef | ast.arg) -> str:
    return node.arg if isinstance(node, ast.arg) else node.name
