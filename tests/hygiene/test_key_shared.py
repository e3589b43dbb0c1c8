"""The Key_Shared decisions have one entry: what their package offers, and `KeySharedDispatcher` above all parts."""

from __future__ import annotations

import ast

import sluice.actors.key_shared
from tests.hygiene.source import PACKAGES, Module, foreign_writes, modules

PACKAGE = "actors.key_shared"
FOLDER = "actors/key_shared/"
OWNS_OTHERS = {f"{FOLDER}state/members.py"}
"""The table of consumers is also the only one that makes and ends what it has of each."""
OFFERED = {f"{PACKAGE}.{name}" for name in sluice.actors.key_shared.__all__}


def past_the_entry(file: Module) -> list[int]:
    """Lines that import something of the folder which its package does not offer."""
    return [line for name, line in file.imports() if f"{name}.".startswith(f"{PACKAGE}.") and name not in OFFERED]


def knows_the_entry(file: Module) -> list[int]:
    """Lines that import `KeySharedDispatcher` or the package as a whole, from wherever."""
    return [line for name, line in file.imports() if name in OFFERED or name.startswith(f"{PACKAGE}.dispatch.")]


def test_modules_outside_import_only_what_the_package_offers() -> None:
    others = [file for file in modules(*PACKAGES) if not file.path.startswith(FOLDER)]
    assert any(name in OFFERED for file in others for name, _ in file.imports())
    assert {file.path: lines for file in others if (lines := past_the_entry(file))} == {}


def test_no_part_knows_the_entry() -> None:
    parts = [file for file in modules("actors") if file.path.startswith(FOLDER)]
    inside = [file for file in parts if file.path != f"{FOLDER}__init__.py"]
    assert len(parts) == len(inside) + 1
    assert {file.path: lines for file in inside if (lines := knows_the_entry(file))} == {}


def test_each_part_of_the_state_alone_writes_its_fields() -> None:
    parts = [file for file in modules("actors") if file.path.startswith(FOLDER) and file.path not in OWNS_OTHERS]
    assert len(parts) > 20
    assert {file.path: lines for file in parts if (lines := foreign_writes(file))} == {}


def test_a_way_past_the_entry_is_seen() -> None:
    broken = (
        "import sluice.actors.key_shared.state.dispatch_state\nfrom sluice.actors.key_shared.state import window\n"
        "from sluice.actors.key_shared.dispatch import KeySharedDispatcher\n"
        "from sluice.actors.key_shared import KeySharedDispatcher\n"
    )
    file = Module("actors/x.py", broken, ast.parse(broken))
    assert (past_the_entry(file), knows_the_entry(file)) == ([1, 2, 3], [3, 4])
