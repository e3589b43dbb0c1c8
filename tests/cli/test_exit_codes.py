"""Exit codes, one-line errors, and the quick start of the command itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.storage.errors import Corrupt, Fenced, Invalid, InvariantViolation, NotFound, Overloaded, Unavailable
from tests.cli.conftest import Cli, FakeClient

_HEAVY = (
    "ray", "pyspark", "numpy", "pandas", "pyarrow", "boto3", "pydantic_settings", "plotly", "msgspec", "grpc",
    "actors", "loadgen",
)  # fmt: skip


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom sluice.cli.exit_codes import run\nassert run(['topics', 'create', '--help']) == 0\n"
        f"print('HEAVY', [name for name in {_HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def failed_behind(first: BaseException) -> OSError:
    """An error of what had to be done because of another one."""
    try:
        try:
            raise first
        finally:
            raise OSError("the other end has gone")
    except OSError as error:
        return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Invalid("name x is bad"), 2, "sluice: name x is bad\n"),
        (NotFound("there is no\ntopic x"), 2, "sluice: there is no topic x\n"),
        (Unavailable("nothing answers at a:1"), 2, "sluice: nothing answers at a:1\n"),
        (Overloaded("too much"), 2, "sluice: too much\n"),
        (Fenced("newer owner"), 2, "sluice: newer owner\n"),
        (Corrupt("frame 3 fails its checksum"), 1, "sluice: frame 3 fails its checksum\n"),
        (InvariantViolation("two holders"), 1, "sluice: a promise of the broker was broken: two holders"),
        (FileNotFoundError(2, "No such file or directory", "a.csv"), 2, "sluice: No such file or directory: a.csv\n"),
        (OSError(28, "No space left on device"), 2, "sluice: No space left on device: make room there, or write els"),
        (KeyError("oops"), 1, "sluice: internal error: KeyError: 'oops' (SLUICE_DEBUG=1 shows the whole story)\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(signal.SIGTERM), 130, ""),
        (failed_behind(KeyboardInterrupt()), 130, ""),
        (failed_behind(ValueError()), 1, "sluice: internal error: OSError: the other end has gone"),
    ],
)
def test_each_error_has_its_code_and_its_line(
    cli: Cli, client: FakeClient, error: BaseException, code: int, said: str
) -> None:
    client.answers["topics"] = error
    assert cli("topics", "list")[0] == code
    _, out, err = cli("topics", "list")
    assert err.startswith(said)
    assert "Traceback" not in out + err
    assert len(err.splitlines()) <= 1
    assert client.closed == 2


def test_debug_shows_the_whole_story(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DEBUG", "1")
    client.answers["topics"] = KeyError("oops")
    assert "Traceback (most recent call last)" in cli("topics", "list")[2]


@pytest.mark.parametrize(
    "line",
    [
        "--nope", "nope", "topics nope", "topics create", "topics create ../x", "topics create x --partitions 0",
        "topics create x --partitions many", "topics create x --set a", "flood --policy nope", "flood --messages 0",
        "flood --delayed 1.5", "flood --key-column a", "flood --input a.csv", "chaos --every never", "chaos --every 0",
        "subscriptions explain a b", "subscriptions explain a b --key a --hash 1",
        "subscriptions explain a b --hash 70000",
        "subscriptions what-if a b", "subscriptions owner a b", "subscriptions blocked-keys a b -n 0",
        "subscriptions seek a b yesterday", "produce a --deliver-after 1s --deliver-at 2030-01-01", "consume a",
        "consume a -s ../b", "consume a -s b -p middle", "config show --set nope=1", "bench nope",
        "inspect ledger --data-dir nowhere", "status --config nowhere.toml",
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_line_and_exit_2(cli: Cli, client: FakeClient, line: str) -> None:
    code, out, err = cli(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith("sluice: ")
    assert len(err.splitlines()) == 1
    assert client.calls == []


def test_termination_ends_like_an_interruption(cli: Cli, client: FakeClient, fake_module: Callable[..., None]) -> None:
    def flood_command(**_: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
        return 0

    fake_module("sluice.loadgen.run.flood", flood_command=flood_command)
    assert cli("flood")[0] == 130


def test_a_signal_ignored_by_nohup_stays_ignored(
    cli: Cli, client: FakeClient, fake_module: Callable[..., None]
) -> None:
    def flood_command(**_: object) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 0

    fake_module("sluice.loadgen.run.flood", flood_command=flood_command)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli("flood")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


STREAMS = """
import socket, sys
from sluice.cli.output import prepare_streams, say, show_json
prepare_streams()
first = socket.socket()
assert first.fileno() > 2
print("\u20ac")
show_json("\u20ac")
say("told")
"""


@pytest.mark.parametrize(
    ("shell", "out", "err"),
    [
        ("PYTHONIOENCODING=ascii {}", '\\u20ac\n"\\u20ac"\n', "sluice: told\n"),
        ("PYTHONIOENCODING=utf-8 {}", '\u20ac\n"\u20ac"\n', "sluice: told\n"),
        ("PYTHONIOENCODING=utf-8 {} >&-", "", "sluice: told\n"),
        ("PYTHONIOENCODING=utf-8 {} 2>&-", '\u20ac\n"\u20ac"\n', ""),
        ("PYTHONIOENCODING=utf-8 {} <&- >&- 2>&-", "", ""),
    ],
)
def test_any_standard_stream_will_do(shell: str, out: str, err: str) -> None:
    command = shell.format(f"'{sys.executable}' -c '{STREAMS}'")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, err)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = "from sluice.cli import main; main()"
    command = f"'{sys.executable}' -c '{script}' config show | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["sluice.cluster.base.extras", "asyncio", "typer", "sluice.cluster.base.arrow"])
def test_an_interrupt_in_an_import_leaves_with_130(module: str) -> None:
    """No traceback, whatever is being imported: nothing was begun that would have to be ended."""
    program = f"""
import runpy, signal, sys
class Interrupts:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.meta_path.insert(0, Interrupts)
sys.argv[1:] = ["up", "--help"]
runpy.run_path({str(Path(sys.executable).with_name("sluice"))!r}, run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
