"""Prose is read once: docstrings begin with a noun or an imperative, names of tests with a condition.

A script sees only the worst part of the rules in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.hygiene.source import FUNCTIONS, PACKAGES, Module, modules

_FIRST = (
    r"what|who|whoever|whom|whose|where|wherever|of|these|those|it|its|nobody|somebody|something|"
    r"so (?:many|much|long|often|far)"
)
OPENING = re.compile(rf"^(?:{_FIRST})\b", re.IGNORECASE)
TEST_OPENING = re.compile(r"^test_(?:what|who|whoever|whom|where|of|these|those|it|nobody|somebody|something)_")
PHRASE = re.compile(
    r"\b(?:anew|whoever|thereby|therefrom|of which|(?:is|are) no more|so many (?:of|that)|lets? go of|"
    r"holds? up neither|has (?:the|its) outcome|in the midst|one after the other)\b",
    re.IGNORECASE,
)
VAGUE = ("take", "begin", "look", "settle", "forget", "tell", "behind", "of")
"""Verbs that say nothing of what happens."""
MOST_CLASSES = 5
"""The number of classes that may have a method of such a name."""


def docstrings(file: Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of a file."""
    for node in ast.walk(file.tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def openings(files: tuple[Module, ...]) -> list[str]:
    return [f"{file.path}:{line}" for file in files for line, text in docstrings(file) if OPENING.match(text)]


def phrases(files: tuple[Module, ...]) -> list[str]:
    return [
        f"{file.path}:{line}"
        for file in files
        for line, text in docstrings(file)
        if PHRASE.search(text) and not OPENING.match(text)
    ]


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    assert openings(modules()) == []


def test_docstrings_have_no_translated_phrases() -> None:
    assert phrases(modules()) == []


def test_names_of_tests_begin_with_a_condition() -> None:
    named = [
        f"{file.path}:{node.lineno} {node.name}"
        for file in modules("tests")
        for node in ast.walk(file.tree)
        if isinstance(node, FUNCTIONS) and TEST_OPENING.match(node.name)
    ]
    assert named == []


@pytest.mark.parametrize("verb", VAGUE)
def test_vague_verb_names_few_methods(verb: str) -> None:
    assert vague_verbs()[verb] <= MOST_CLASSES


def vague_verbs() -> Counter[str]:
    """Count the classes of the product that have a method with such a name."""
    return Counter(
        function.name
        for file in modules(*PACKAGES)
        for kind in ast.walk(file.tree)
        if isinstance(kind, ast.ClassDef)
        for function in kind.body
        if isinstance(function, FUNCTIONS) and function.name in VAGUE
    )
