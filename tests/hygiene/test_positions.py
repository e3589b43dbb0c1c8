"""One file knows how a position is packed. All others ask it for the ledger and the entry."""

from __future__ import annotations

import ast

from tests.hygiene.source import PACKAGES, modules

OTHER_NUMBERS = {"actors/bookie/index_table.py", "actors/dispatcher/delivery/progress.py"}
"""Keys of ledger and run, and numbers of statements by epoch: no positions."""


def test_only_one_module_packs_or_unpacks_a_position() -> None:
    wrong = [
        f"{module.path}:{node.lineno} shifts by 32"
        for module in modules(*PACKAGES)
        if module.path not in OTHER_NUMBERS
        for node in ast.walk(module.tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.LShift | ast.RShift)
        and isinstance(node.right, ast.Constant)
        and node.right.value == 32
        and not isinstance(node.left, ast.Constant)
    ]
    assert wrong == []
