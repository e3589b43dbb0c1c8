"""The commands in the documents can be typed: each command and option of `./sluice` exists, and so does each file."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import typer.main

from sluice.cli.app import app
from tests.hygiene.source import ROOT, modules, tracked

DOCUMENTS = [name for name in tracked() if name.endswith(".md")]

_COMMAND = re.compile(r"\./sluice((?: +(?:'[^']*'|\"[^\"]*\"|[^\s`'\"#;&|)]+))*)")
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
_FREE = {"test", "simulate", "bench"}
"""Commands that hand their arguments on."""
_PLACEHOLDER = re.compile(r"^(?:[A-Z][A-Z_]*|\[.*|.*\]|…|\.\.\.|…|<.*>)$")


def _commands() -> list[tuple[str, str]]:
    return [
        (name, found[1].strip())
        for name in DOCUMENTS
        for found in _COMMAND.finditer((ROOT / name).read_text(encoding="utf-8").replace("\\\n", " "))
    ]


@pytest.mark.parametrize(("document", "line"), sorted(set(_commands())))
def test_every_shown_command_exists(document: str, line: str) -> None:
    words = shlex.split(line.replace("…", "..."))
    node: Any = typer.main.get_command(app)
    shown = "./sluice"
    while words and hasattr(node, "commands"):
        if words[0] == "..." or words[0].startswith("-") or "|" in words[0]:
            return
        assert words[0] in node.commands, f"{document}: there is no `{shown} {words[0]}`"
        shown += f" {words[0]}"
        node = node.commands[words.pop(0)]
    if node.name in _FREE:
        return
    known = {option for parameter in node.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    wrong = [word for word in words if word.startswith("-") and word.partition("=")[0].rstrip("]") not in known]
    assert wrong == [], f"{document}: `{shown}` has no such option"


_SCRIPT = re.compile(r"(?:\./sluice bench |python -m benchmarks\.|benchmarks/)([a-z_]+)(?:\.py)?((?: +[^\s`'#;&|)]+)*)")
_SIMULATE = re.compile(r"\./sluice (simulate)((?: +[^\s`'#;&|)]+)*)")


def _scripts() -> list[tuple[str, str, str]]:
    """Return (document, script, arguments) of every benchmark and simulation that a document shows."""
    return [
        (name, found[1], found[2])
        for name in DOCUMENTS
        for pattern in (_SCRIPT, _SIMULATE)
        for found in pattern.finditer((ROOT / name).read_text(encoding="utf-8").replace("\\\n", " "))
    ]


@pytest.mark.parametrize(("document", "script", "line"), sorted(set(_scripts())))
def test_every_shown_benchmark_has_these_options(document: str, script: str, line: str) -> None:
    path = ROOT / ("tests/sim/cli.py" if script == "simulate" else f"benchmarks/{script}.py")
    assert path.is_file(), f"{document}: there is no benchmark {script}"
    known = set(re.findall(r"""["'](--[a-z-]+)["']""", path.read_text(encoding="utf-8"))) | {"--help"}
    wrong = [word for word in line.split() if word.startswith("--") and word.partition("=")[0] not in known]
    assert wrong == [], f"{document}: {script} has no such option"


def test_the_readme_shows_the_main_commands() -> None:
    shown = {line for name, line in _commands() if name == "README.md"}
    assert {"flood", "up"} <= shown


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_linked_file_exists(name: str) -> None:
    folder = ROOT / PurePosixPath(name).parent
    text = re.sub(r"<!--.*?-->", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = _LINK.findall(text)
    missing = [target for target in targets if not Path(folder / target).exists()]
    assert missing == []


def test_no_file_holds_two_versions_of_a_passage() -> None:
    """Git marks a conflict that a merge could not resolve with rows of seven signs."""
    marks = re.compile(rb"^(?:<{7} .*|={7}|>{7} .*)$", re.MULTILINE)
    assert [name for name in tracked() if marks.search((ROOT / name).read_bytes())] == []


_NAME = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`")
_NAMES_ELSEWHERE = {
    "BrokerMetadataTest",
    "BucketSnapshotStorage",
    "ChunkDedupTest",
    "ConnectionFailTest",
    "InMemoryRedeliveryTracker",
    "O_DIRECT",
    "RAY_USE_TLS",
    "SLUICE_TOPIC__ACK_QUORUM",
    "access_mode",
    "batch_receive",
    "chunking_enabled",
    "create_table_view",
    "datasketches",
    "encryption_context",
    "frequent_items_sketch",
    "frequent_strings_sketch",
    "get_service_info",
    "hasReachedEndOfTopic",
    "has_null_value",
    "hashingScheme",
    "message_listener",
    "message_router",
    "pause_message_listener",
    "ray_",
    "resume_message_listener",
    "setHashingScheme",
    "testHasMessageAvailableAfterSeekToEnd",
    "test_dh_7_",
    "upload",
}
"""Names of Pulsar, Ray, Linux and others, and some that are put together, of which pages speak."""


def test_every_name_in_backquotes_exists() -> None:
    """A theory that names removed or renamed code is no longer true. Pages of decisions may use names of their time."""
    known = _words() | _NAMES_ELSEWHERE
    wrong = {
        (place, name)
        for place, text in _texts()
        for name in _NAME.findall(text)
        if any(word and word not in known for word in name.split("."))
    }
    assert sorted(wrong) == []


_DOTTED = re.compile(r"(?<![\w/.-])((?:storage|actors|cluster|loadgen|cli|tests|benchmarks)(?:\.[A-Za-z_]\w*)+)")


def test_every_dotted_name_exists() -> None:
    """A text that points its reader to `actors.ports.Net` is right only as long as that module has such a name."""
    names = {
        module.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in modules()
    }
    packages = {".".join(name.split(".")[:end]) for name in names for end in range(1, name.count(".") + 2)}
    wrong = set()
    for place, text in _texts():
        for dotted in _DOTTED.findall(text):
            words = dotted.split(".")
            end = max(end for end in range(1, len(words) + 1) if ".".join(words[:end]) in packages)
            module = names.get(".".join(words[:end]))
            if end < len(words) and (module is None or not re.search(rf"\b{words[end]}\b", module.text)):
                wrong.add((place, dotted))
    assert sorted(wrong) == []


@cache
def _texts() -> tuple[tuple[str, str], ...]:
    """Return docstrings and pages, with the file in which they stand."""
    return tuple(_read_texts())


def _read_texts() -> Iterator[tuple[str, str]]:
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield module.path, ast.get_docstring(node) or ""
    for name in DOCUMENTS:
        if not name.startswith("docs/decisions/"):
            yield name, (ROOT / name).read_text(encoding="utf-8")


def _words() -> set[str]:
    """Return every word of the code without docstrings and comments, and of every file that is not Python or a page."""
    names = {*dir(builtins), *tracked()}
    for module in modules():
        docstrings = set()
        for node in ast.walk(module.tree):
            docstrings.add(id(_docstring(node)))  # walk yields a node before what stands in it
            if isinstance(node, ast.Constant):
                if isinstance(node.value, str) and id(node) not in docstrings:
                    names.add(node.value)
                elif isinstance(node.value, bytes):
                    names.add(node.value.decode("latin-1"))
            else:
                given = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "module"))
                names.update(name for name in given if name)
    for name in tracked():
        if not name.endswith((".py", ".md", ".png", ".lock")):
            names.add((ROOT / name).read_text(encoding="utf-8", errors="replace"))
    return set(re.findall(r"\w+", "\n".join(names)))


def _docstring(node: ast.AST) -> ast.Constant | None:
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return body[0].value
    return None
