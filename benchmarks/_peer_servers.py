"""The brokers that are compared: each started in a folder of its own, on the loopback or a Unix-domain socket, with a
sync to disk before a message is confirmed, and ended afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil

from sluice.cluster.base.arguments import count

CLIENT = Path(__file__).with_name("_peer_client.py")
START_S = 120


class Missing(Exception):
    """An error: something is not installed. The message names it, and how to get it."""


class Side:
    """One broker. kind: which client it takes; python: with what that runs."""

    kind = ""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.url = ""
        self.python = Path(sys.executable)
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the broker; return when clients can connect. Raises Missing, RuntimeError."""
        raise NotImplementedError

    def make_topic(self, topic: str, partitions: int) -> str:
        """Make a topic, unless the broker's clients make it, and return its full name."""
        return topic

    def cpu(self) -> float:
        """Processor seconds of all its processes so far."""
        return sum(map(_seconds, self.processes()))

    def memory(self) -> int:
        """Bytes of memory of all its processes."""
        return sum(map(_resident, self.processes()))

    def threads(self) -> dict[str, tuple[float, float]]:
        """Return, by thread of the broker, the seconds for which it ran, and for which it waited for a processor."""
        found = {}
        for process in self.processes():
            for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # it has ended
                    ran, waited, _ = map(int, file.read_text().split())
                    found[file.parent.name] = ran / 1e9, waited / 1e9
        return found

    def processes(self) -> list[psutil.Process]:
        """All of them, without the clients'."""
        assert self._process is not None
        try:
            root = psutil.Process(self._process.pid)
        except psutil.NoSuchProcess:
            raise RuntimeError(f"{self.name} has ended") from None
        return [root, *root.children(recursive=True)]

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        else:
            self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _run(self, command: list[str], log: Path, **more: Any) -> subprocess.Popen[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with log.open("w") as errors:
            self._process = subprocess.Popen(command, stderr=errors, text=True, cwd=self.folder, **more)
        return self._process


class SluiceSide(Side):
    """Sluice as it comes: three bookies, two copies. checkout: another one, with an environment of its own."""

    kind = "sluice"

    def __init__(self, name: str, folder: Path, checkout: Path | None = None) -> None:
        super().__init__(name, folder)
        if checkout is not None:
            self.python = checkout.resolve() / ".venv" / "bin" / "python"
            if not self.python.exists():
                raise Missing(f"{checkout} has no environment; run its ./sluice once")
        self.environment = {"RAY_AUTH_TOKEN_PATH": str(folder / "data" / "token")}

    def start(self) -> None:
        command = [str(self.python), str(CLIENT), json.dumps({"keep": str(self.folder / "data")})]
        log = self.folder / "log"
        process = self._run(command, log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.url = heard(process.stdout, log)["url"]


class GatewaySide(Side):
    """Sluice in one process or in many, three bookies and two copies, with Pulsar's own client."""

    kind = "pulsar"

    def __init__(self, name: str, folder: Path, *, one_process: bool = True) -> None:
        super().__init__(name, folder)
        self._one_process = one_process
        self._log = folder / "log"

    def start(self) -> None:
        _need("pulsar")
        wanted = {"gateway": str(self.folder / "data"), "one_process": self._one_process}
        command = [str(self.python), str(CLIENT), json.dumps(wanted)]
        process = self._run(command, self._log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.url = heard(process.stdout, self._log)["url"]

    def make_topic(self, topic: str, partitions: int) -> str:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"topic": topic, "partitions": partitions}) + "\n")
        self._process.stdin.flush()
        heard(self._process.stdout, self._log)
        return topic


class PulsarSide(Side):
    """Pulsar standalone from its distribution, one copy, RocksDB for its metadata, its journal synced."""

    kind = "pulsar"

    def __init__(self, name: str, folder: Path, home: str | None) -> None:
        super().__init__(name, folder)
        found = home or os.environ.get("SLUICE_PULSAR_HOME")
        self._home = Path(found) if found else None
        self._web = 0

    def start(self) -> None:
        if self._home is None:
            raise Missing("no Pulsar; unpack its distribution and name the folder with --pulsar or SLUICE_PULSAR_HOME")
        program = self._home.resolve() / "bin" / "pulsar"
        if not program.is_file():
            raise Missing(f"no Pulsar in {self._home}: there is no bin/pulsar")
        _need("pulsar")
        port, self._web = _free_port(), _free_port()
        self.url = f"pulsar://127.0.0.1:{port}"
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "standalone.conf"
        shipped = (self._home / "conf" / "standalone.conf").read_text()
        settings.write_text(configured(shipped, pulsar_settings(port, self._web)))
        environ = os.environ | {
            "PULSAR_LOG_DIR": str(self.folder),
            "PULSAR_LOG_LEVEL": "warn",
            "PULSAR_STANDALONE_CONF": str(settings),
            "PULSAR_GC_LOG": " ",
        }
        command = [str(program), "standalone", "--config", str(settings), "--num-bookies", "1", "-nfw", "-nss"]
        # With relative folders it writes into its distribution, and finds the same topics there the next time.
        data = [f"{self.folder.resolve()}/{name}" for name in ("bookies", "metadata")]
        command += ["--bookkeeper-dir", data[0], "--metadata-dir", data[1], "-a", "127.0.0.1"]
        process = self._run(command, self.folder / "log", stdout=subprocess.DEVNULL, env=environ)
        _until(self._answers, process, self.folder / "log")

    def make_topic(self, topic: str, partitions: int) -> str:
        status, answer = self._admin("PUT", f"persistent/public/default/{topic}/partitions", str(partitions))
        if status >= 300:
            raise RuntimeError(f"Pulsar made no topic: HTTP {status}: {answer}")
        return topic

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._admin("GET", "namespaces/public/default")[0] == 200
        return False

    def _admin(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._web, timeout=60)
        try:
            connection.request(method, f"/admin/v2/{path}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()


def names_of(known: list[str]) -> Callable[[str], list[str]]:
    """Make the parser of an option with names between commas."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if wrong := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {wrong[0]!r}; there are {', '.join(known)}")
        return names

    return parse


def counts_of(text: str) -> list[int]:
    return [count(one) for one in text.split(",")]


def print_compared(compare: Callable[[argparse.Namespace], dict[str, Any]], options: argparse.Namespace) -> None:
    """Compare, print one line of JSON, and end the brokers on SIGTERM as well."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        print(json.dumps(compare(options)))
    except (Missing, RuntimeError) as error:
        print(f"sluice: {error}", file=sys.stderr)
        sys.exit(2)


def pulsar_settings(port: int, web: int) -> dict[str, str]:
    """Ports, the loopback alone, a journal that syncs (standalone ships with one that does not), one copy, and no
    limit that Sluice's side of the comparison has not.
    """
    return {
        "brokerServicePort": str(port),
        "webServicePort": str(web),
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "webSocketServiceEnabled": "false",
        "journalWriteData": "true",
        "journalSyncData": "true",
        "managedLedgerDefaultEnsembleSize": "1",
        "managedLedgerDefaultWriteQuorum": "1",
        "managedLedgerDefaultAckQuorum": "1",
        "maxUnackedMessagesPerConsumer": "0",
        "maxUnackedMessagesPerSubscription": "0",
        "keySharedLookAheadMsgInReplayThresholdPerConsumer": "50000",
        "keySharedLookAheadMsgInReplayThresholdPerSubscription": "400000",
    }


def configured(text: str, wanted: dict[str, str]) -> str:
    """A properties file with these values in place of its own."""
    kept = [line for line in text.splitlines() if line.partition("=")[0].strip() not in wanted]
    return "\n".join([*kept, *(f"{name}={value}" for name, value in wanted.items()), ""])


class Worker:
    """A client process of one side. options: see _peer_client."""

    def __init__(self, side: Side, **options: Any) -> None:
        given = {"kind": side.kind, "url": side.url, "batching": "key"}
        self._log = side.folder / "client.log"
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                [str(side.python), str(CLIENT), json.dumps(given | options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=side.folder,
                env=os.environ | side.environment,
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        end_by_input(self._process)

    def tell(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def hear(self) -> dict[str, Any]:
        return heard(self._process.stdout, self._log)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.hear()


def end_by_input(process: subprocess.Popen[str]) -> None:
    """End a process that serves until its input ends."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def heard(stream: IO[str] | None, log: Path) -> dict[str, Any]:
    """The next line of JSON of a process. Raises RuntimeError with its last words if it has ended."""
    assert stream is not None
    for line in stream:
        if line.startswith("{"):
            return dict(json.loads(line))
    raise RuntimeError(f"a process ended early: {_last_words(log)}")


def _need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise Missing(f"no Python package for {module}; install the extra: uv pip install -e '.[peers]'")


def _until(ready: Any, process: subprocess.Popen[str], log: Path) -> None:
    limit = time.monotonic() + START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"{log.parent.name} did not start: {_last_words(log)}")
        time.sleep(0.1)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it said nothing"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
