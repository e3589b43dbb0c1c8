"""A defect of the decisions on a real cluster under chaos: the run exports an incident by itself, which shows it again.

Each defect is planted in every process of a cluster of its own, because a process imports its modules once.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_readme import ROOT, environment
from tools.mutants import Mutant
from tools.mutants.replaying import REPLAYING

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.release, pytest.mark.timeout(900)]

BREAKING = (
    "a replay lets a draining hash go to its new owner",
    "a few draining hashes hold nothing back",
    "messages that wait go out backwards",
    "a hash comes free while one message of it is out",
    "a hash of which one message is out does not drain",
    "what one message gives back counts for two",
)
"""Names of the defects that break a promise; the other ones hold messages up."""
PLANTS = """
import os
from tools.mutants import plant
from tools.mutants.replaying import REPLAYING
plant(next(mutant for mutant in REPLAYING if mutant.name == os.environ["PLANTED"]))
"""
SLUICE = ("-c", "from sluice.cli import main; main()")
CHAOS = ("chaos", "--minutes", "0.4", "--every", "2s", "--data-dir", "run", "--seed", "7", "--bookies", "2")
FAULTS = ("--faults", "hang-consumer,join-consumer,restart-consumer,freeze-consumer")
LOAD = ("--consumers", "3", "--partitions", "2", "--keys", "200", "--rate", "3000")


def run(folder: Path, planted: str, *command: str) -> tuple[int, str]:
    """Run Python in a folder; its processes and theirs have the defect, if one is named."""
    env = {
        **environment(folder),
        "SLUICE_RECORDER_BYTES": str(64 << 20),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "COLUMNS": "1000",
    }
    if planted:
        (folder / "planting").mkdir(exist_ok=True)
        (folder / "planting" / "sitecustomize.py").write_text(PLANTS)
        env |= {"PLANTED": planted, "PYTHONPATH": f"{folder / 'planting'}:{env['PYTHONPATH']}"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", BREAKING)
def test_defect_under_chaos_then_its_incident_shows_it_again(name: str, tmp_path: Path) -> None:
    (mutant,) = [each for each in REPLAYING if each.name == name]
    assert isinstance(mutant, Mutant)
    code, printed = run(tmp_path, name, *SLUICE, *CHAOS, *FAULTS, *LOAD)
    assert code == 1, printed
    named = re.search(r"incident replay (\S+\.incident)", printed.replace("\n", ""))
    assert named is not None, printed
    incident = named[1]
    broken = set(re.findall(r"InvariantViolation: (\w+ \d \w+|nack_order \w+)", printed))
    assert broken, printed
    code, printed = run(tmp_path, name, *SLUICE, "incident", "replay", incident, "--test", "test_incident.py")
    assert code == 1, printed
    assert any(f"a promise was broken: InvariantViolation: {promise}" in printed for promise in broken), printed
    test = ("-m", "pytest", "test_incident.py", "-q", "-p", "no:cacheprovider", "-c", "/dev/null")
    code, printed = run(tmp_path, name, *test)
    assert (code, "1 failed" in printed) == (1, True), printed
    code, printed = run(tmp_path, "", *test)
    assert (code, "1 passed" in printed) == (0, True), printed
