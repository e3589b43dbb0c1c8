"""`sluice test`, `simulate`, `bench` and `site`: commands that need the whole checkout."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.output import say
from sluice.cluster.base.version import IS_CHECKOUT, ROOT
from sluice.storage.errors import Invalid, NotFound

FOLDERS = ("src/sluice", "tests", "benchmarks", "tools")
"""What is checked for types."""

LANES = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--tb", "short", "--durations", "10")
"""How the whole suite runs: three files of tests at a time, of which two may wait for a real cluster while the third
computes (tests.lanes)."""

_EXAMPLES = """\
  ./sluice test                                            everything
  ./sluice test tests/storage                              a folder
  ./sluice test tests/storage/format/test_frame.py -k crc  a file's tests with this in their names
  ./sluice test -m "not ray and not spark"                 without real clusters
  ./sluice test tests/actors --hypothesis-profile fresh    new random examples
"""
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Typer settings of commands that hand their arguments on, `--help` included."""


def checkout() -> Path:
    """The folder of the checkout that this code runs from. Raises Invalid if it was installed without one."""
    if not IS_CHECKOUT:
        raise Invalid("this command needs a checkout of the repository: git clone it and use its ./sluice")
    return ROOT


def test(context: typer.Context) -> int:
    """Check style, and run all tests, three files at a time, while the types are checked beside them.

    With `--all` also those that only a release runs: every planted defect at its seed, long series of seeds, and all
    benchmarks, small. Other arguments go to pytest in place of that: `./sluice test tests/storage -k frame`.
    `./sluice test --python 3.13`, a version or a path, uses another Python, in an environment of its own.
    """
    root = checkout()
    python = sys.executable
    if {"-h", "--help"} & {*context.args}:
        print(f"{inspect.cleandoc(test.__doc__ or '')}\n\n{_EXAMPLES}\nOptions of pytest:\n", flush=True)
        return hand_over([python, "-m", "pytest", "--help"], root)
    release = [one for one in context.args if one == "--all"]
    arguments = context.args if len(context.args) > len(release) else [*LANES, *release]
    checks = {"ruff check": ["ruff", "check", "."], "ruff format": ["ruff", "format", "--check", "--quiet", "."]}
    failed = [name for name, command in checks.items() if _failed(name, [python, "-m", *command], root)]
    with ThreadPoolExecutor(1) as beside:
        types = beside.submit(_types, root)
        tests = hand_over([python, "-m", "pytest", "-q", *arguments], root)
        say("mypy --strict", prefix="== ")
        print(types.result().stdout, end="", flush=True)
    if types.result().returncode != 0:
        failed.append("mypy --strict")
    if failed:
        say(f"failed: {', '.join(failed)}")
    return int(bool(failed) or tests != 0)


def simulate(context: typer.Context) -> int:
    """Run simulated clusters from seeds, with faults, and judge them. `./sluice simulate --help` shows the options."""
    command = [sys.executable, "-m", "tests.sim.cli", *context.args]
    return hand_over(command, checkout())


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which one. Default: list them.")] = "",
) -> int:
    """Run a benchmark; it prints its figures as JSON. Further arguments go to it. Without a name: list them."""
    scripts = {path.stem: path for path in sorted((checkout() / "benchmarks").glob("[!_]*.py"))}
    if not name or name in ("-h", "--help"):
        for stem, path in scripts.items():
            print(f"{stem:16} {_first_line(path)}")
        return 0
    if name not in scripts:
        raise NotFound(f"there is no benchmark {name!r}; there are: {', '.join(scripts)}")
    return hand_over([sys.executable, str(scripts[name]), *context.args])


def site(context: typer.Context) -> int:
    """Build the reference site, or `serve` it. `./sluice site --help` shows the options."""
    return hand_over([sys.executable, "-m", "tools.site", *context.args], checkout())


def hand_over(command: list[str], folder: Path | None = None) -> int:
    """Run a command to its end, in a folder if one is given; return its exit code.

    The command may have started a cluster, so an interruption waits until the command has cleaned up. A Ctrl-C reaches
    both processes. A termination reaches this process alone, which passes it on. A second interruption ends the command
    at once.
    """
    with subprocess.Popen(command, cwd=folder) as child:
        try:
            return child.wait()
        except KeyboardInterrupt as interrupt:
            if interrupt.args:
                deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
                child.send_signal(signal.SIGTERM if deaf else signal.SIGINT)
            try:
                child.wait()
            finally:
                child.kill()  # without an effect on one that has ended
            raise


def _failed(name: str, command: list[str], root: Path) -> bool:
    say(name, prefix="== ")
    return subprocess.run(command, cwd=root, check=False).returncode != 0


def _types(root: Path) -> subprocess.CompletedProcess[str]:
    """The type check; its words are kept until the tests have had theirs."""
    command = [sys.executable, "-m", "mypy", "--strict", *_with_python(root)]
    return subprocess.run(command, cwd=root, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _with_python(root: Path) -> list[str]:
    """The folders that hold Python; a folder without any would end the type check."""
    return [name for name in FOLDERS if next((root / name).rglob("*.py"), None)]


def _first_line(script: Path) -> str:
    """The first line of a script's docstring, read without running it."""
    import ast

    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]
