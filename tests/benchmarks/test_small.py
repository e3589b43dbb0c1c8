"""The benchmarks that need a cluster run for a few seconds each. The tests check their counts, not their figures.

The benchmark that also shows that nothing is lost or out of order runs each time. The others run with a release: each
starts clusters and clients of its own, only to show that it still measures. Each run plays the Java client against the
gateway in tests/cluster/gateway/test_java_client.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks._peer_servers import Missing

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]


def run(name: str) -> dict[str, Any]:
    """Return the JSON that a benchmark prints. Raises Missing if it needs something that is not installed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), "--small"], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode == 2 and done.stderr.startswith("sluice: "):
        raise Missing(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_end_to_end_delivers_everything_in_order() -> None:
    """Each message comes once, by the sentinel's checks, and nothing is left."""
    result = run("end_to_end.py")
    assert result["received"] == result["messages"] > 0
    assert result["backlog"] == 0
    assert result["order_violations"] == 0
    assert result["order_checked"] >= result["messages"]


@pytest.mark.release
@pytest.mark.timeout(900)
def test_java_clients_receive_everything() -> None:
    """The test is skipped without Java, Maven or the client. A message that does not come fails the run."""
    try:
        figures = run("java_clients.py")["rounds"]["gateway"]
    except Missing as error:
        pytest.skip(str(error))
    assert len(figures) == 1
    assert all(value > 0 for value in figures[0].values())


@pytest.mark.release
def test_a_pool_stands_beside_a_loop_by_hand() -> None:
    """The pool and the loop both handle all messages, one by one and as columns."""
    result = run("workers.py")["empty"]
    for what in ("messages", "columns"):
        assert all(result[f"{who}, {what}"]["messages_per_s"] > 0 for who in ("loop", "pool"))
        assert result[f"pool by loop, {what}"] > 0


@pytest.mark.release
def test_many_of_something_are_counted() -> None:
    """Each kind of work has its figures, in one process."""
    result = run("many.py")
    existing = result["works"].pop("existing")["metadata"]["100"]
    assert all(value > 0 for value in existing.values())
    assert {work: list(sides["embedded"]) for work, sides in result["works"].items()} == {
        "topics": ["3"],
        "partitions": ["4"],
        "consumers": ["3"],
    }
    for sides in result["works"].values():
        assert all(figures["idle_cores"] >= 0 for figures in sides["embedded"].values())


@pytest.mark.release
def test_callers_that_wait_then_each_number_has_figures() -> None:
    result = run("callers.py")["callers"]
    assert list(result) == ["1", "4"]
    assert all(value > 0 for sides in result.values() for value in sides["sluice"].values())


@pytest.mark.release
def test_recorder_is_measured_beside_none_in_every_work() -> None:
    result = run("recorder.py")["works"]
    assert list(result) == ["alone", "callers", "singles", "batches"]
    assert all(figures["quotient"] > 0 and figures["bytes_a_message"] > 0 for figures in result.values())
