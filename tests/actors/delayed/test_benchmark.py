"""The benchmark's small run works, and its result has the form that its readers expect."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_small_run(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/delayed.py", "--small", "--folder", str(tmp_path)]
    environ = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(case["tracker"], case["messages"]) for case in report["curve"]] == [
        ("memory", 60_000),
        ("bucket", 60_000),
        ("bucket", 300_000),
    ]
    large = report["curve"][-1]
    assert large["buckets"] > 0
    for part in ("adding", "delivering"):
        assert large[part]["messages_per_cpu_second"] > 0
    assert report["recovery"]["messages"] == 200_000
    assert list(tmp_path.iterdir()) == [], "nothing is left in the folder"
