"""A recorded incident comes out as it was, and with a planted defect it does not.

`python -m tests.actors.recorder.test_planted` records the incident again, for a change that is meant to change it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.actors.recorder.flight_file import RecordedSubscription, assemble, pack, unpack
from sluice.actors.recorder.replay import replay
from sluice.storage.errors import InvariantViolation
from tests.actors.recorder.test_replay import RecordedDriver
from tools.mutants import Mutant
from tools.mutants.replaying import REPLAYING

ROOT = Path(__file__).parents[3]
INCIDENT = Path(__file__).with_name("billing.incident")
PLANT = """
import sys
from tools.mutants import plant
from tools.mutants.replaying import REPLAYING
if int(sys.argv[1]) >= 0:
    plant(REPLAYING[int(sys.argv[1])])
"""
CLI = PLANT + "from sluice.cli import main\nsys.argv[1:2] = []\nmain()\n"
TESTS = (
    PLANT
    + """
import pytest
sys.exit(pytest.main([*sys.argv[2:], "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]))
"""
)
RECORD = (
    PLANT
    + """
from pathlib import Path
from tests.actors.recorder.test_planted import broken
Path(sys.argv[2]).write_bytes(broken())
"""
)


def record() -> bytes:
    """Record two subscriptions in which keys drain, messages come back, and permits are few."""
    chunks = []
    for number, nack_order in enumerate(("none", "key")):
        driver = RecordedDriver(nack_order=nack_order)
        driver.join("first", 30)
        for turn in range(60):
            driver.now += 10
            driver.publish(*(f"k{(turn * 7 + each * 5) % 23}" for each in range(4)))
            driver.route()
            if turn == 10:
                driver.join("second", 20)
            for name in driver.numbers:
                held = driver.pending(name)
                if turn % 9 == 4:
                    driver.nack(name, *held[:2], delay=40 * (turn % 2))
                elif turn % 3:
                    driver.ack(*held[: turn % 5], by=name)
                asked_back = driver.dispatch.take_revoked(driver.numbers[name])
                if turn % 4 == 3 and len(asked_back):
                    driver.dispatch.negative_acknowledge(
                        driver.numbers[name], asked_back, now=driver.now, counted=False
                    )
                driver.grant(name, turn % 5)
        chunk = driver.recording.taken(driver.now)
        assert chunk is not None
        of = RecordedSubscription("orders", number, "billing", 1)
        chunks.append(type(chunk)(of, chunk.first, chunk.at, chunk.calls))
    return assemble(map(pack, chunks))


def broken() -> bytes:
    """Let a second consumer join while the first one holds all keys; a planted defect breaks a promise."""
    driver = RecordedDriver()
    keys = [f"k{number}" for number in range(20)]
    driver.join("first", 50)
    driver.send(*keys)
    driver.join("second", 50)
    driver.publish(*keys)
    with contextlib.suppress(InvariantViolation):
        driver.route()
    return driver.file()


def run(program: str, mutant: int, *arguments: str, folder: Path = ROOT) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, str(mutant), *arguments],
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "COLUMNS": "200", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_recorded_incident_comes_out_as_it_was() -> None:
    found = replay(unpack(INCIDENT.read_bytes(), INCIDENT.name), through=True)
    assert [str(each.difference) for each in found.values() if each.difference] == []
    assert [each.violations for each in found.values() if each.violations] == []
    assert all(each.decisions > 100 for each in found.values())
    assert len(found) == 2


@pytest.mark.parametrize("mutant", REPLAYING, ids=lambda mutant: mutant.name)
def test_planted_defect_then_the_replay_differs(mutant: Mutant) -> None:
    code, printed = run(CLI, REPLAYING.index(mutant), "incident", "replay", str(INCIDENT))
    assert (code, "first difference at" in printed) == (1, True), printed


def test_test_of_an_incident_fails_with_the_defect_alone(tmp_path: Path) -> None:
    incident, written = tmp_path / "x.incident", tmp_path / "test_x.py"
    code, printed = run(RECORD, 0, str(incident))
    assert code == 0, printed
    code, printed = run(CLI, 0, "incident", "replay", str(incident), "--test", str(written))
    assert (code, "a promise was broken" in printed) == (1, True), printed
    code, printed = run(TESTS, 0, str(written), folder=tmp_path)
    assert (code, "1 failed" in printed) == (1, True), printed
    code, printed = run(TESTS, -1, str(written), folder=tmp_path)
    assert (code, "1 passed" in printed) == (0, True), printed


if __name__ == "__main__":
    INCIDENT.write_bytes(record())
