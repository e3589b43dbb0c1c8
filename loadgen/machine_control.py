"""Breaks what is between machines, for who runs on one of them: `sluice chaos` there asks who made the machines.

Who made them (loadgen.machines) serves a socket in the home folder of each, and sets a variable to its path; that is
how a run finds out that its cluster has machines of this kind. A request is a list in JSON, `[what, address, address,
milliseconds of delay, part that is lost]`, and its answer a line: empty, or why it could not be done.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from loadgen.machines import Machine, Network
from storage.errors import Invalid, Unavailable

VARIABLE = "SLUICE_INTERNAL_MACHINES"
SOCKET = "machines"
"""Its name in the home folder."""
LINE = 4096
"""Bytes of a request, and of an answer."""
ASK_S = 20.0


@contextlib.contextmanager
def served(network: Network, machines: list[Machine]) -> Iterator[None]:
    """Let these machines break the network and each other's disks."""
    lock = threading.Lock()
    with contextlib.ExitStack() as stack:
        for machine in machines:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(str(machine.folder / SOCKET))
            listener.listen()
            machine.variables[VARIABLE] = str(machine.home / SOCKET)
            thread = threading.Thread(target=_serve, args=(listener, network, lock), name="machines", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
        yield


def _serve(listener: socket.socket, network: Network, lock: threading.Lock) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock, contextlib.suppress(OSError):
            sock.settimeout(ASK_S)
            with lock:
                answer = _done(network, sock.recv(LINE))
            sock.sendall(answer.encode()[: LINE - 1] + b"\n")


def _done(network: Network, line: bytes) -> str:
    try:
        what, one, other, number, share = json.loads(line)
        by_address = {machine.address: machine for machine in network.machines}
        _do(network, str(what), by_address[one], by_address.get(other), float(number), float(share))
    except (ValueError, TypeError, KeyError) as error:
        return f"this is no request: {error!r}"
    except (OSError, AssertionError, subprocess.SubprocessError, Invalid) as error:
        return str(error) or type(error).__name__
    return ""


def _do(network: Network, what: str, one: Machine, other: Machine | None, number: float, share: float) -> None:
    if what == "fill":
        network.fill(one)
    elif what == "empty":
        network.empty(one)
    elif other is None:
        raise Invalid(f"{what} needs another machine")
    elif what == "cut":
        network.cut(one, other)
    elif what == "drop":
        network.drop(one, other)
    elif what == "hamper":
        network.hamper(one, other, delay_ms=number, loss=share)
    elif what == "join":
        network.join(one, other)
    else:
        raise Invalid(f"nobody can do {what}")


@dataclass(frozen=True)
class MachineControl:
    """Asks for it. path: of the socket."""

    path: str

    def ask(self, what: str, one: str, other: str = "", number: float = 0.0, share: float = 0.0) -> None:
        """Have something done. Raises Unavailable with the reason."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(ASK_S)
                sock.connect(self.path)
                sock.sendall(json.dumps([what, one, other, number, share]).encode())
                answer = sock.recv(LINE).decode()
        except OSError as error:
            raise Unavailable(f"who made the machines does not answer: {error}") from error
        if not answer.endswith("\n"):
            raise Unavailable("who made the machines has ended")
        if answer.strip():
            raise Unavailable(f"{what} of {one} {other}: {answer.strip()}")


def control_of_environment() -> MachineControl | None:
    """For who runs on a machine of this kind."""
    path = os.environ.get(VARIABLE)
    return MachineControl(path) if path else None
