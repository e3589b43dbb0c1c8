"""Measures what an installation costs: `python -m tools.footprint`, or with the extras that are to be measured.

A wheel of this checkout goes into an empty environment, for the core and for each extra in turn. A figure is the
seconds of the installation, its packages and megabytes, the seconds of its first program, or the milliseconds of
`import sluice`: the best of five processes, less those of an empty process, by the clock and in processor time. An
environment is removed before the next. The installation takes longer where uv's cache lacks packages.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sluice.cluster.base.arguments import ArgumentParser

ROOT = Path(__file__).resolve().parents[1]
CORE = """
import sluice
with sluice.connect(embedded=True) as client:
    client.create_topic("orders")
    client.create_producer("orders").send(b"paid", partition_key="customer-7")
    consumer = client.subscribe("orders", "billing", initial_position="earliest")
    consumer.acknowledge(consumer.receive(timeout_millis=20_000))
"""
RAY = """
import ray
import sluice
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
queue = sluice.KeyedQueue("orders")
queue.put("paid", key="customer-7")
assert queue.get(timeout=60).value == "paid"
queue.close()
"""
SPARK = """
from sluice.loadgen.spark.datasource import SluiceDataSource
"""
PROGRAMS = {"core": CORE, "ray": RAY, "spark": CORE + SPARK, "all": CORE + SPARK}
"""The first program of each installation, by its extra."""
TRIES = 5


def measured(extra: str, wheel: Path, uv: str) -> dict[str, float | str]:
    """Return the figures of one installation, which is removed. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="sluice-footprint-") as kept:
        folder = Path(kept)
        python = str(folder / "venv" / "bin" / "python")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
        wanted = str(wheel) if extra == "core" else f"sluice[{extra}] @ file://{wheel}"
        install = [uv, "pip", "install", "--quiet", "--python", python, "--link-mode", "copy", wanted]
        seconds, _ = _seconds(install, folder)
        listed = subprocess.run(
            [uv, "pip", "list", "--python", python, "--format", "json"], check=True, capture_output=True
        ).stdout
        tries = [[_seconds([python, "-c", code], folder) for _ in range(TRIES)] for code in ("", "import sluice")]
        empty, loaded = ([min(each) for each in zip(*seconds, strict=True)] for seconds in tries)
        return {
            "environment": extra,
            "install_s": round(seconds, 1),
            "packages": len(json.loads(listed)),
            "mb": round(_bytes(folder / "venv") / 1e6),
            "first_program_s": round(_seconds([python, "-c", PROGRAMS[extra]], folder)[0], 1),
            "import_ms": round(1000 * (loaded[0] - empty[0])),
            "import_cpu_ms": round(1000 * (loaded[1] - empty[1])),
        }


def _seconds(command: list[str], folder: Path) -> tuple[float, float]:
    """Run a command in a folder, with no other Python's packages in sight; return its seconds, and its processor's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY_", "SLUICE_"))}
    begun, before = time.perf_counter(), _processor_seconds()
    subprocess.run(command, cwd=folder, env=kept, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun, _processor_seconds() - before


def _processor_seconds() -> float:
    """Return what all children that have ended took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _bytes(folder: Path) -> int:
    """Return the bytes of all files, a file with two names once."""
    return sum({stat.st_ino: stat.st_size for path in folder.rglob("*") if (stat := path.lstat())}.values())


def main(words: list[str]) -> int:
    """Print a line of JSON for each environment; return 2 without uv."""
    parser = ArgumentParser(prog="python -m tools.footprint", description=__doc__)
    parser.add_argument("environment", nargs="*", help=f"of {', '.join(PROGRAMS)}; without one: all of these")
    asked = parser.parse_args(words).environment or [*PROGRAMS]
    if unknown := sorted({*asked} - {*PROGRAMS}):
        parser.error(f"there is no environment {unknown[0]}; there are: {', '.join(PROGRAMS)}")
    uv = shutil.which("uv")
    if uv is None:
        parser.error("uv is not installed: see https://docs.astral.sh/uv")
    with tempfile.TemporaryDirectory() as built:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(built).glob("*.whl")
        for extra in asked:
            print(json.dumps(measured(extra, wheel, uv)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
