"""The benchmark runs, in its small form, and what it prints makes sense."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_small_form_runs_every_case() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/dispatch.py", "--small"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    assert {(case["keys"], case["draining_hashes"]) for case in result["cases"]} == {
        (10, 0),
        (10, 10_000),
        (1_000_000, 0),
        (1_000_000, 10_000),
    }
    for case in result["cases"]:
        assert case["messages_per_second"] > 0
        assert case["order_violations"] == 0
        assert case["messages_waiting_behind_draining"] == (300 if case["draining_hashes"] else 0)
    assert 0 < result["hash_table_bytes"] <= 65_536 * 8
