"""Every planted defect is found at its recorded seed: the simulator is not blind."""

from __future__ import annotations

import ast
import select
import subprocess
import sys

import pytest

from tools.mutants import Mutant, plant
from tools.mutants.__main__ import FOUND, in_child
from tools.mutants.catalogue import GROUPS, MUTANTS
from tools.mutants.removed import ROOT, candidates


def test_there_are_enough_of_them_and_their_names_differ() -> None:
    assert sum(mutant.seed >= 0 for mutant in MUTANTS) >= 30
    assert all(mutant.seed >= 0 or mutant.test for mutant in MUTANTS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_whose_line_was_rewritten_is_stale() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        Mutant("gone", "sluice.storage.format.position", "no such text", "", "bookie", 0).apply("source")


def test_a_module_that_is_imported_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="imported already"):
        plant(Mutant("late", "tools.mutants", "a", "b", "bookie", 0))


def test_a_check_that_is_taken_out_leaves_the_rest_as_it_was() -> None:
    checks = candidates("actors/ledger")
    assert len(checks) > 50
    for check in checks:
        source = (ROOT / check.name.partition(":")[0]).read_text()
        changed = check.apply(source)
        assert len(changed.encode()) == len(source.encode()) - len(check.old.encode()) + len("False")
        ast.parse(changed)
    with pytest.raises(ValueError, match="has changed"):
        checks[0].apply("")


def test_a_child_that_hangs_is_ended() -> None:
    assert in_child(lambda: len(select.poll().poll()), 0.2) is None
    assert in_child(lambda: 0, 60) == FOUND


@pytest.mark.parametrize("group", GROUPS)
def test_no_mutant_is_stale(group: str) -> None:
    """Each mutant's old text stands once in its file, and the test that is to find it exists."""
    wrong = []
    for mutant in GROUPS[group]:
        path = ROOT / f"{mutant.module.removeprefix('sluice.').replace('.', '/')}.py"
        found = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0
        file, _, test = mutant.test.partition("::")
        where = ROOT / file
        there = where.is_dir() or (where.is_file() and f"def {test.partition('[')[0]}" in where.read_text("utf-8"))
        if found != 1 or not (there or not mutant.test):
            wrong.append((mutant.name, found, mutant.test))
    assert wrong == []


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("group", GROUPS)
def test_every_mutant_is_found_at_its_seed(group: str) -> None:
    command = [sys.executable, "-m", "tools.mutants", "--group", group, "--patience", "240"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    others = [line for line in ran.stdout.splitlines() if not line.startswith("found ")]
    assert ran.returncode == 0, "\n".join([*others, ran.stderr])
    assert f"{len(GROUPS[group])} of {len(GROUPS[group])} mutants found, 0 stale" in ran.stdout
