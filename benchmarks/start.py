"""From the command to the first message of a flood: time and processor time, of this checkout or of several in turn.

    python benchmarks/start.py [--against DIR] [--rounds N] [--messages N]

Each round starts `flood` once from every checkout in turn, so that all suffer alike from what else the machine does;
with the interpreter of its own environment, if `./sluice` has made one there, else with this one. Times are seconds:
`first_message` from the command until a publishing task has told of a message that it sent, `processor` what all
processes of the run have taken until then, `judge` the judgement, `whole` all of it. The result is one JSON object with
the rounds and their medians.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from sluice.cluster.base.arguments import ArgumentParser, count

HERE = Path(__file__).resolve().parent.parent
COMMAND = "import sys; from sluice.cli import main; sys.argv[0] = 'sluice'; main()"
LOOK_EVERY_S = 0.05


def flood(checkout: Path, messages: int) -> dict[str, float]:
    """One flood from a checkout."""
    with tempfile.TemporaryDirectory(prefix="sluice-start-") as name:
        folder = Path(name)
        told = folder / "told.json"
        command = ["flood", "--messages", str(messages), "--data-dir", str(folder / "run"), "--json", str(told)]
        began = time.monotonic()
        process = subprocess.Popen(
            [interpreter(checkout), "-c", COMMAND, *command],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdout=subprocess.DEVNULL,
        )
        times: dict[int, float] = {}
        while not _sent(folder / "run") and process.poll() is None:
            _look(process.pid, times)
            time.sleep(LOOK_EVERY_S)
        first = time.monotonic() - began
        if process.wait():
            raise SystemExit(f"the flood from {checkout} ended with exit code {process.returncode}")
        phases = json.loads(told.read_text())["phases_s"]
        return {
            "first_message": round(first, 2),
            "processor": round(sum(times.values()), 2),
            "judge": phases["judge"],
            "whole": round(time.monotonic() - began, 2),
        }


def interpreter(checkout: Path) -> str:
    """What runs a checkout."""
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _sent(run: Path) -> bool:
    """Whether a publishing task has sent anything: it writes two numbers, sent and confirmed."""
    return any(any(file.read_bytes()) for file in (run / "histories" / "progress").glob("task-*"))


def _look(pid: int, times: dict[int, float]) -> None:
    """Note the processor time of a process and of all below it; those that end keep what they had."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                used = process.cpu_times()
                times[process.pid] = used.user + used.system


def main() -> None:
    """See the module."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, action="append", default=[])
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--messages", type=count, default=1_000_000)
    given = parser.parse_args()
    checkouts = {"this": HERE} | {path.name: path.resolve() for path in given.against}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(given.rounds):
        for name, checkout in checkouts.items():
            rounds[name].append(flood(checkout, given.messages))
            print(name, rounds[name][-1], file=sys.stderr, flush=True)
    medians: dict[str, Any] = {
        name: {what: statistics.median(one[what] for one in done) for what in done[0]} for name, done in rounds.items()
    }
    print(
        json.dumps({"benchmark": "start", "messages": given.messages, "medians": medians, "rounds": rounds}, indent=2)
    )


if __name__ == "__main__":
    main()
