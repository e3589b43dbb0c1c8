"""Coverage-guided fuzzing of every decoder: `python -m tests.sim.fuzz --seconds 60` (all), or with names.

Needs atheris (`pip install --group fuzz`), which is no part of the development tools: it exists for few platforms. What
is decoded, from which samples, and what counts as a refusal is what the tests have (`tests.sim.test_decoders`). A body
behind a checksum is changed and sealed again, or no input would ever get past the checksum.

Each decoder runs in a process of its own, with 512 MB at most. Exit code 1: an input was met with an error that is no
refusal, or with more memory; its file is named.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.cluster.base.arguments import ArgumentParser

MEMORY_MB = 512
LONGEST = 4096
"""Bytes of an input."""


def fuzz(name: str, seconds: int, folder: Path) -> None:
    """Fuzz one decoder in this process; ends it."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["actors", "storage"]):
        decoders: Any = importlib.import_module("tests.sim.test_decoders")
    decoder = decoders.DECODERS[name]
    sealed = decoder.body_at >= 0
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "sample").write_bytes(decoder.sample()[max(decoder.body_at, 0) :])

    def once(data: bytes) -> None:
        with contextlib.suppress(*decoders.REFUSALS):
            decoder.decode(decoder.seal(data) if sealed else data)

    limits = (f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MB}", f"-max_len={LONGEST}")
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}/", str(corpus)], once)
    atheris.Fuzz()


def run(name: str, seconds: int, folder: Path) -> bool:
    """Fuzz one decoder in a process of its own and tell how it went; False if it found something."""
    command = [sys.executable, "-m", "tests.sim.fuzz", "--seconds", str(seconds), "--inside", str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    inputs = re.search(r"Done (\d+) runs", done.stderr)
    edges = re.findall(r"cov: (\d+)", done.stderr)
    if done.returncode == 0 and inputs:
        print(f"{name}: {int(inputs[1]):,} inputs, {int(edges[-1]) if edges else 0} edges, nothing found", flush=True)
        return True
    print(f"{name}: FAILED, inputs in {folder}\n{done.stderr[-2000:]}", flush=True)
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", help="which decoders; all if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside:
        fuzz(given.names[0], given.seconds, given.inside)
    names = given.names or list(importlib.import_module("tests.sim.test_decoders").DECODERS)
    folder = Path(tempfile.mkdtemp(prefix="sluice-fuzz-"))
    clean = True
    for name in names:
        place = folder / name.replace(" ", "-")
        place.mkdir()
        clean &= run(name, given.seconds, place)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
