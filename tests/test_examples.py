"""The programs in examples/ run as they stand, and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATIENCE_S = 900.0
"""For a cluster, Spark and what is done with them, on a machine that runs other tests besides."""

pytestmark = pytest.mark.timeout(1200)


def run(name: str, folder: Path) -> list[str]:
    """Run an example, and return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_orders_go_on_after_a_restart_in_each_customers_order(tmp_path: Path) -> None:
    lines = run("orders.py", tmp_path)
    assert [line.partition(":")[0] for line in lines] == ["before the restart"] + ["after the restart"] * 8
    steps = [line.partition(": ")[2].split() for line in lines]
    for customer in ("ada", "ben", "cyd"):
        assert [step for name, step in steps if name == customer] == ["placed", "paid", "shipped"]


def test_reminders_come_when_they_are_due(tmp_path: Path) -> None:
    assert run("reminders.py", tmp_path) == [
        "invoice-2: paid, reminder cancelled",
        "invoice-1: please pay",
        "invoice-3: please pay",
    ]


def test_a_model_is_loaded_once_in_each_worker(tmp_path: Path) -> None:
    assert run("scoring.py", tmp_path) == [
        "customer-7 paid 1000, 50.0 times the usual",
        "2000 payments scored; the model was loaded 2 times",
    ]


@pytest.mark.ray
@pytest.mark.spark
@pytest.mark.slow
def test_alarms_are_what_spark_lets_through(tmp_path: Path) -> None:
    lines = run("alarms.py", tmp_path)
    assert [line for line in lines if "oven" in line] == [f"alarm: oven has {degrees} degrees" for degrees in (95, 99)]
    assert [line for line in lines if "press" in line] == ["alarm: press has 83 degrees"]


def test_a_pipeline_that_is_killed_has_each_result_once(tmp_path: Path) -> None:
    assert run("pipeline.py", tmp_path) == [
        "killed in the middle: yes, before all 200 orders were handled",
        "bookings: 395 of 395",
        "there twice: 0, missing: 0",
    ]


def test_a_service_publishes_and_waits(tmp_path: Path) -> None:
    assert run("service.py", tmp_path) == ["placed: 16", "refused: 422", "ids: 16", "articles on disk: 16"]


def test_a_pool_behind_a_service_answers_in_order(tmp_path: Path) -> None:
    assert run("answers.py", tmp_path) == [f"{customer} 1 3 6 10" for customer in ("ada", "ben", "cyd")]


@pytest.mark.ray
@pytest.mark.slow
def test_a_nightly_batch_adds_up_the_orders_of_a_day(tmp_path: Path) -> None:
    lines = run("nightly.py", tmp_path)
    assert lines[-2:] == ["orders of the day: 1000", "totals: 20, right: 20"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(find_spec("grpc_reflection") is None, reason='Ray Serve is not installed: pip install "ray[serve]"')
def test_replicas_of_serve_keep_each_customers_order(tmp_path: Path) -> None:
    lines = run("serving.py", tmp_path)
    assert lines[-2:] == ["scores: 600 of 600, there twice: 0", "customers out of order: 0, replicas that scored: 2"]


def test_every_example_is_run_here_and_named_in_a_page() -> None:
    page = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("python-client.md", "workers.md"))
    mine = Path(__file__).read_text(encoding="utf-8")
    names = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    assert len(names) == 9
    assert [name for name in names if f"examples/{name}" not in page or f'run("{name}"' not in mine] == []
