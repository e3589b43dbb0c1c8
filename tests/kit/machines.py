"""Several machines on one: network namespaces with an address each, joined by a bridge.

What runs on such a machine has its own loopback, its own home folder and its own folder for temporary files, and sees
the others at their addresses only; the file system and the processes are those of the one real machine. The bridge lies
in a namespace of its own, so nothing outside of these namespaces is touched, and several runs that use the same
addresses at the same time do not meet. Namespaces need the rights of an administrator: `missing` says what is lacking.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PREFIX = "sluice-test"
NETWORK = "10.77.0"
"""Of the machines' addresses; it leads nowhere but to the bridge between them."""
END_S = 10.0
RAY_PORT = 6379
START_S = 120.0
"""How long Ray may take to start on a busy machine."""
OBJECT_STORE_BYTES = 80 << 20
_numbers = itertools.count()


def missing() -> str | None:
    """Why network namespaces cannot be made here, in one line; None if they can."""
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip` of iproute2"
    name = f"{PREFIX}-{os.getpid()}-probe"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"network namespaces cannot be made here: {' '.join(tried.stderr.split())}"
    _ip("netns", "delete", name)
    return None


@dataclass(frozen=True)
class Machine:
    """One of them. name: of its namespace. folder: its home folder, short enough for the sockets that are made in it.

    variables: what its processes have in their environment besides.
    """

    name: str
    address: str
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What a login shell on this machine would have: nothing of what the tests or Sluice set for themselves."""
        commands = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        home = str(self.folder)
        return {"PATH": commands, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"} | self.variables

    def begin(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command on this machine; its output can be read."""
        return subprocess.Popen(
            self.here(command),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: Sequence[str], timeout_s: float = START_S) -> str:
        """What a command on this machine prints. Raises AssertionError with what it said if it fails."""
        code, output, errors = self.try_to_run(command, timeout_s)
        assert code == 0, f"{' '.join(command)} on {self.address} ended with {code}: {errors or output}"
        return output

    def try_to_run(self, command: Sequence[str], timeout_s: float = START_S) -> tuple[int, str, str]:
        """Exit code, output and errors of a command on this machine."""
        child = self.begin(command)
        try:
            output, errors = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            output, errors = child.communicate()
            raise AssertionError(
                f"{' '.join(command)} on {self.address} takes more than {timeout_s} s: {errors}"
            ) from None
        return child.returncode, output, errors

    def processes(self) -> list[psutil.Process]:
        """Everything that runs on this machine, whoever started it; without zombies."""
        mine = os.stat(f"/run/netns/{self.name}").st_ino
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):  # it has ended, or is a zombie
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == mine:
                    found.append(process)
        return found

    def end_processes(self) -> None:
        """End everything that runs on this machine, process by process."""
        while running := self.processes():
            for process in running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(running, END_S)

    def here(self, command: Sequence[str]) -> list[str]:
        """The command that runs a command on this machine."""
        return ["ip", "netns", "exec", self.name, *command]


@contextlib.contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """So many machines on one network; afterwards nothing of them is left: no process, no namespace, no file."""
    run = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
    with contextlib.ExitStack() as cleanup:
        hub = cleanup.enter_context(_namespace(f"{run}-hub"))
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        yield [cleanup.enter_context(_machine(run, hub, number)) for number in range(1, count + 1)]


def start_ray(head: Machine, *others: Machine) -> str:
    """Start Ray on these machines as deploy/README.md says; returns the address of its head.

    The temporary files of each lie in its own folder: on one file system they would take each other's sockets.
    """
    token = secrets.token_hex(32)
    address = f"{head.address}:{RAY_PORT}"
    role = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
    for machine in (head, *others):
        machine.variables["RAY_AUTH_MODE"] = "token"
        (machine.folder / ".ray").mkdir(mode=0o700)
        file = machine.folder / ".ray" / "auth_token"
        file.touch(mode=0o600)
        file.write_text(token)
        common = ["--metrics-export-port=8080", "--disable-usage-stats", f"--temp-dir={machine.folder}/ray"]
        machine.run(["ray", "start", *role, *common, f"--object-store-memory={OBJECT_STORE_BYTES}"])
        role = [f"--address={address}"]
    return address


@contextlib.contextmanager
def _machine(run: str, hub: str, number: int) -> Iterator[Machine]:
    with (
        tempfile.TemporaryDirectory(prefix="slm-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        _namespace(f"{run}-{number}") as name,
    ):
        machine = Machine(name, f"{NETWORK}.{number}", Path(folder))
        port = f"port{number}"
        _ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
        _ip("-n", name, "address", "add", f"{machine.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        # Programs look at this route when they want to know the address of their machine; nobody answers behind it.
        _ip("-n", name, "route", "add", "default", "dev", "eth0")
        try:
            yield machine
        finally:
            machine.end_processes()


@contextlib.contextmanager
def _namespace(name: str) -> Iterator[str]:
    """A network namespace; whatever devices are in it go away with it."""
    _ip("netns", "add", name)
    try:
        yield name
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
