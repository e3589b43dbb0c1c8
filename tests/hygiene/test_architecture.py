"""ARCHITECTURE.md names files that exist. Its promises about how few files a change must open are kept."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import PurePosixPath

import pytest

from tests.hygiene.figures import files_of, way
from tests.hygiene.picture import circle_of_packages, drawn, pairs, picture, table
from tests.hygiene.source import PACKAGES, ROOT, modules

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
CHANGING = (ROOT / "docs" / "changing.md").read_text(encoding="utf-8")
NAMED = sorted(
    set(
        re.findall(r"`((?:storage|actors|cluster|loadgen|cli|tests|deploy|benchmarks|docs)/[\w./-]*)`", TEXT + CHANGING)
    )
)
MOST_MODULES = 24
MOST_LINES = 300


@pytest.mark.parametrize("path", NAMED)
def test_paths_that_the_map_names_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_way_of_a_message_names_every_file_that_runs() -> None:
    section = TEXT.split("## The way of a message\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w/]+\.py)`", section))
    assert sorted(files_of(way()) - named) == []


def test_the_picture_is_that_of_the_code() -> None:
    assert picture() in TEXT, "the rooms have changed: renew the picture with `python -m tests.hygiene.picture`"


def test_the_table_of_rooms_is_that_of_the_code() -> None:
    assert table() in CHANGING, "the rooms have changed: renew the table with `python -m tests.hygiene.picture`"


def test_no_two_packages_import_each_other() -> None:
    assert pairs() == []


def test_no_import_runs_back_up_between_packages() -> None:
    assert circle_of_packages() == []


def test_no_folder_has_many_modules() -> None:
    sizes = Counter(str(PurePosixPath(one.path).parent) for one in modules(*PACKAGES) if "__init__" not in one.path)
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_the_map_is_short() -> None:
    assert len(TEXT.splitlines()) < MOST_LINES


def test_an_arrow_that_follows_from_others_is_not_drawn() -> None:
    assert drawn({("a", "b"), ("b", "c"), ("a", "c")}) == {("a", "b"), ("b", "c")}


def test_rooms_that_use_each_other_keep_both_arrows() -> None:
    assert drawn({("a", "b"), ("b", "a"), ("c", "a"), ("c", "b")}) == {("a", "b"), ("b", "a"), ("c", "a"), ("c", "b")}


@pytest.mark.parametrize(
    ("what", "most"), [("add a selector", 3), ("when a lease runs out", 1), ("exchange what carries calls", 1)]
)
def test_frequent_changes_have_one_place(what: str, most: int) -> None:
    (places,) = [row[1] for row in _rows("Where to change what") if row[0].startswith(what)]
    assert 1 <= len(re.findall(r"`[a-z]+/[\w/.]+`", places)) <= most


def test_a_selector_is_named_where_the_map_says() -> None:
    """The selectors' names stand in those files. Other files name one only to distinguish it from the others."""
    users = {module.path for module in modules("actors") if "auto_split" in _texts(module.tree)}
    assert users == {"actors/key_shared/state/selectors.py", "actors/messages/settings.py"}


def test_only_the_doors_of_a_process_know_the_carrier() -> None:
    """The imports listed here show all that a replacement of the folder must offer."""
    users = {
        module.path
        for module in modules("actors", "cluster", "loadgen", "cli")
        for name, _ in module.imports()
        if name.startswith("cluster.wire.")
        and not name.startswith(("cluster.wire.net.", "cluster.wire.controller_search."))
        and not module.path.startswith("cluster/wire/")
    }
    assert users == {
        "cluster/launch/ray_host.py",
        "cluster/launch/naming.py",
        "cluster/launch/standalone.py",
    }


def test_the_core_knows_nothing_of_the_gateway() -> None:
    """Pulsar's protocol is an edge: topics, dispatchers, bookies and operators' settings are the same without it."""
    core = [module for module in modules("actors", "storage") if not module.path.startswith("actors/pulsar/")]
    wrong = {(module.path, name) for module in core for name, _ in module.imports() if name.startswith("actors.pulsar")}
    assert sorted(wrong) == []


def test_the_codec_of_the_gateway_is_bytes_alone() -> None:
    """The codec knows the columns that a consumer was given, and no actor, port or conversation."""
    wrong = {
        (module.path, name)
        for module in modules("actors")
        if module.path.startswith("actors/pulsar/codec/")
        for name, _ in module.imports()
        if name.startswith("actors.")
        and not name.startswith(
            (
                "actors.pulsar.codec.",
                "actors.consumer.unacked_messages.",
                "actors.consumer.chunks.",
                "actors.messages.limits.",
            )
        )
    }
    assert sorted(wrong) == []


def test_no_two_classes_have_one_name() -> None:
    """A reader who meets a name knows which class it is."""
    places: dict[str, list[str]] = {}
    for module in modules(*PACKAGES):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module.path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


NICKNAMES = {
    *(
        "abreast",
        "acknowledging",
        "answers",
        "apart",
        "bare",
        "bodies",
        "breaking",
        "cells",
        "columns",
        "doors",
        "episodes",
    ),
    *(
        "fixed",
        "holding",
        "layouts",
        "leftovers",
        "lot",
        "narrow",
        "nursery",
        "outcome",
        "outgoing",
        "pages",
        "passing",
    ),
    *(
        "pieces",
        "pressing",
        "recent",
        "redelivering",
        "repeated",
        "revoking",
        "routing",
        "safeguards",
        "sealed",
        "sent",
    ),
    *("stored", "wanted", "whole"),
}
"""Words that say nothing of a module's subject to a reader who has not written it."""


def test_modules_are_called_by_terms_and_not_by_nicknames() -> None:
    assert [one.path for one in modules(*PACKAGES) if PurePosixPath(one.path).stem in NICKNAMES] == []


def _rows(heading: str) -> list[list[str]]:
    section = CHANGING.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _texts(tree: ast.Module) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
