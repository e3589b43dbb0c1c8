"""Several machines on one: each has an address, processes, a home folder and a network of its own, as a container has.

A machine is three namespaces of Linux: of its network, of its processes and of its mounts. What runs on it has its own
loopback, sees no other machine's processes, and reaches the others at their addresses only. The home folder lies at the
same path on all of them, and is another folder on each; the rest of the file system is that of the one real machine.

The machines are joined by a router in a namespace of its own, so nothing outside of these namespaces is touched, and
several runs that use the same addresses at the same time do not meet. The router lets packets vanish in either
direction (`Network.drop`): as with a cable that is cut, nobody is told. Others it delays, or loses in part
(`tests.kit.relay`). The folder with the data of Sluice can be a file system of its own, which can be filled.
Namespaces need the rights of an administrator: `missing` says what is lacking.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.kit import relay as detour

PREFIX = "sluice"
NETWORK, ROUTER = "10.77.0", "10.77.255"
"""The prefixes of the machines' addresses, and of the router's; they lead nowhere else."""
END_S = 10.0
RUN_S = 120.0
"""How long a command may take on a busy machine."""
COMMANDS = ("ip", "nsenter", "unshare", "mount")
DATA = "sluice-data"
"""The folder of Sluice's data, in the home folder."""
INIT = """
mount --bind "$1" "$2" || exit
[ "$3" = 0 ] || { mkdir "$2/$4" && mount -t tmpfs -o "size=$3,mode=700" data "$2/$4"; } || exit
echo ready && read -r _
"""
"""The first process of a machine: it collects what ends there, and all others end with it."""
_TABLE = "77"
"""The router's table of routes for packets that make a detour."""
_numbers = itertools.count()


def missing() -> str | None:
    """Why machines cannot be made here, in one line; None if they can."""
    for command in COMMANDS:
        if shutil.which(command) is None:
            return f"several machines need the command `{command}`"
    name = f"{PREFIX}-{os.getpid()}-probe"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"network namespaces cannot be made here: {' '.join(tried.stderr.split())}"
    _ip("netns", "delete", name)
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"namespaces cannot be made here: {' '.join(tried.stderr.split())}"
    return None


@dataclass(frozen=True)
class Machine:
    """One of them. name: of its network's namespace. first: its first process, as this one sees it.

    home: its home folder, as it sees it; short enough for the sockets that are made in it. folder: the same, as this
    process sees it. variables: what its processes have in their environment besides.
    """

    name: str
    address: str
    home: Path
    folder: Path
    first: int
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a login shell on this machine, without what the tests or Sluice set for themselves."""
        commands = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        home = str(self.home)
        return {"PATH": commands, "HOME": home, "TMPDIR": home, "RAY_TMPDIR": home, "LANG": "C.UTF-8"} | self.variables

    def begin(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command on this machine, in its home folder; its output can be read."""
        return subprocess.Popen(
            self.here(command),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: Sequence[str], timeout_s: float = RUN_S) -> str:
        """The output of a command on this machine. Raises AssertionError with its messages if it fails."""
        code, output, errors = self.try_to_run(command, timeout_s)
        assert code == 0, f"{' '.join(command)} on {self.address} ended with {code}: {errors or output}"
        return output

    def try_to_run(self, command: Sequence[str], timeout_s: float = RUN_S) -> tuple[int, str, str]:
        """Exit code, output and errors of a command on this machine."""
        child = self.begin(command)
        try:
            output, errors = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            for process in psutil.Process(child.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            output, errors = child.communicate()
            raise AssertionError(
                f"{' '.join(command)} on {self.address} takes more than {timeout_s} s: {errors}"
            ) from None
        return child.returncode, output, errors

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this machine but its first one, whichever process started them; without zombies."""
        found = []
        with contextlib.suppress(OSError):  # the machine is gone
            mine = os.stat(f"/proc/{self.first}/ns/pid").st_ino
            for process in psutil.process_iter():
                with contextlib.suppress(OSError):  # it has ended, or is a zombie
                    if os.stat(f"/proc/{process.pid}/ns/pid").st_ino == mine and process.pid != self.first:
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
        entered = ["nsenter", f"--target={self.first}", "--net", "--mount", "--pid"]
        return [*entered, "env", f"--chdir={self.home}", *command]


@dataclass(frozen=True)
class Network:
    """Machines and the router between them. hub: its namespace."""

    hub: str
    machines: list[Machine]
    _dropped: dict[tuple[str, str], None] = field(default_factory=dict)
    _hampered: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    _relay: list[subprocess.Popen[str]] = field(default_factory=list)

    def drop(self, sender: Machine, receiver: Machine) -> None:
        """Let what one machine sends another one vanish on its way; nobody is told."""
        pair = sender.address, receiver.address
        if pair not in self._dropped:
            _ip("-n", self.hub, "rule", "add", "from", pair[0], "to", pair[1], "blackhole")
            self._dropped[pair] = None

    def cut(self, one: Machine, other: Machine) -> None:
        """Cut two machines from each other, in both directions."""
        self.drop(one, other)
        self.drop(other, one)

    def isolate(self, machine: Machine, *, but: Sequence[Machine] = ()) -> None:
        """Cut a machine from all others, except for those in `but`."""
        for other in self.machines:
            if other is not machine and other not in but:
                self.cut(machine, other)

    def join(self, one: Machine, other: Machine) -> None:
        """Let everything through between two machines again, unhampered."""
        for sender, receiver in ((one.address, other.address), (other.address, one.address)):
            if (sender, receiver) in self._dropped:
                _ip("-n", self.hub, "rule", "delete", "from", sender, "to", receiver, "blackhole")
                del self._dropped[sender, receiver]
            if (sender, receiver) in self._hampered:
                del self._hampered[sender, receiver]
                _ip("-n", self.hub, "rule", "delete", *self._detour(sender, receiver))
        if self._relay:
            self._tell_relay()

    def heal(self) -> None:
        """Let everything through again."""
        for one, other in itertools.combinations(self.machines, 2):
            self.join(one, other)

    def hamper(self, one: Machine, other: Machine, *, delay_ms: float = 0.0, loss: float = 0.0) -> None:
        """Delay what two machines send each other, in each direction, and lose a part of it. Raises OSError."""
        for sender, receiver in ((one.address, other.address), (other.address, one.address)):
            new = (sender, receiver) not in self._hampered
            self._hampered[sender, receiver] = delay_ms, loss
            self._tell_relay()
            if new:
                _ip("-n", self.hub, "rule", "add", *self._detour(sender, receiver))

    def fill(self, machine: Machine) -> None:
        """Leave no room in the file system with the data of a machine."""
        machine.try_to_run(
            ["sh", "-c", f"dd if=/dev/zero of={DATA}/filled bs=1M; dd if=/dev/zero bs=1k >>{DATA}/filled"]
        )

    def empty(self, machine: Machine) -> None:
        """Give that room back."""
        machine.run(["rm", "-f", f"{DATA}/filled"])

    def close(self) -> None:
        """End what runs beside the machines."""
        for relay in self._relay:
            relay.communicate()  # its input ends, and so does it
        self._relay.clear()

    def _detour(self, sender: str, receiver: str) -> list[str]:
        port = f"port{sender.rpartition('.')[2]}"
        return ["iif", port, "from", sender, "to", receiver, "lookup", _TABLE]

    def _tell_relay(self) -> None:
        if not self._relay:
            program = [sys.executable, "-P", detour.__file__]
            self._relay.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.hub, *program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            self._await_relay()
            _ip("-n", self.hub, "link", "set", detour.DEVICE, "up")
            _ip("-n", self.hub, "route", "add", "default", "dev", detour.DEVICE, "table", _TABLE)
        (relay,) = self._relay
        assert relay.stdin is not None
        relay.stdin.write(json.dumps([[*pair, *how] for pair, how in self._hampered.items()]) + "\n")
        relay.stdin.flush()
        self._await_relay()

    def _await_relay(self) -> None:
        (relay,) = self._relay
        assert relay.stdout is not None
        if relay.stdout.readline() != "ready\n":
            raise OSError("packets cannot make a detour here: is there a /dev/net/tun?")


@contextlib.contextmanager
def machines(count: int, *, data_bytes: int = 0) -> Iterator[Network]:
    """Make `count` machines on one network; afterwards no process, namespace or file of them is left.

    data_bytes: the size of each machine's data folder, a file system in memory.
    """
    run = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
    with contextlib.ExitStack() as cleanup:
        home = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="slm-", dir="/tmp"))
        hub = cleanup.enter_context(_namespace(f"{run}-hub"))
        # Packets that come back from a detour do not come from where their sender is.
        settings = "cd /proc/sys/net/ipv4 && echo 1 > ip_forward && echo 0 > conf/all/rp_filter"
        forwards = ["ip", "netns", "exec", hub, "sh", "-c", f"{settings} && echo 0 > conf/default/rp_filter"]
        subprocess.run(forwards, check=True, capture_output=True)
        numbers = range(1, count + 1)
        made = [cleanup.enter_context(_machine(run, hub, Path(home), number, data_bytes)) for number in numbers]
        network = Network(hub, made)
        cleanup.callback(network.close)
        yield network


@contextlib.contextmanager
def _machine(run: str, hub: str, home: Path, number: int, data_bytes: int) -> Iterator[Machine]:
    with (
        tempfile.TemporaryDirectory(prefix=f"{home.name}-", dir=home.parent, ignore_cleanup_errors=True) as folder,
        _namespace(f"{run}-{number}") as name,
    ):
        address, router, port = f"{NETWORK}.{number}", f"{ROUTER}.{number}", f"port{number}"
        _ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", hub, "address", "add", f"{router}/32", "dev", port)
        _ip("-n", hub, "link", "set", port, "up")
        _ip("-n", name, "address", "add", f"{address}/32", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        _ip("-n", hub, "route", "add", f"{address}/32", "dev", port)
        _ip("-n", name, "route", "add", router, "dev", "eth0")
        # Programs look at this route when they want to know the address of their machine.
        _ip("-n", name, "route", "add", "default", "via", router, "dev", "eth0", "src", address)
        spaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        init = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                name,
                *spaces,
                "bash",
                "-c",
                INIT,
                "init",
                folder,
                str(home),
                str(data_bytes),
                DATA,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert init.stdin is not None
        assert init.stdout is not None
        try:
            if init.stdout.readline() != "ready\n":
                raise OSError(f"the machine {name} does not start")
            first = psutil.Process(init.pid).children()[0].pid
            yield Machine(name, address, home, Path(folder), first)
        finally:
            init.stdin.close()  # its first process ends, and the kernel ends all others before that is over
            init.wait()
            init.stdout.close()


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
