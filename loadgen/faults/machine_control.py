"""Breaks what is between machines, for who runs on one of them: `sluice chaos` there asks who made the machines.

Who made them (loadgen.faults.machines) serves a socket in the home folder of each, and sets a variable to its path;
that is how a run finds out that its cluster has machines of this kind. Another variable is set to the address of Ray's
head, if who made the machines can start it again. A request is a list in JSON, `[what, address, address, milliseconds
of delay, part that is lost]`, and its answer a line: empty, or why it could not be done.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.loadgen.faults.machines import Machine, Network
from sluice.storage.errors import Invalid, Unavailable

VARIABLE = "SLUICE_INTERNAL_MACHINES"
HEAD_VARIABLE = "SLUICE_INTERNAL_HEAD"
SOCKET = "machines"
"""The socket's name in the home folder."""
LINE = 4096
"""Bytes of a request, and of an answer."""
ASK_S, START_S = 20.0, 180.0
"""How long an answer may take; Ray's head takes longer to start."""


@contextlib.contextmanager
def served(network: Network, machines: list[Machine], start_head: Callable[[], object] | None = None) -> Iterator[None]:
    """Let these machines break the network and each other's disks.

    start_head: starts Ray on the first of them again, as its head; None if a head that was lost is lost.
    """
    lock = threading.Lock()
    with contextlib.ExitStack() as stack:
        for machine in machines:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(str(machine.folder / SOCKET))
            listener.listen()
            machine.variables[VARIABLE] = str(machine.home / SOCKET)
            if start_head is not None:
                machine.variables[HEAD_VARIABLE] = machines[0].address
            arguments = (listener, network, lock, start_head)
            thread = threading.Thread(target=_serve, args=arguments, name="machines", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
        yield


def _serve(
    listener: socket.socket, network: Network, lock: threading.Lock, start_head: Callable[[], object] | None
) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock, contextlib.suppress(OSError):
            sock.settimeout(ASK_S)
            with lock:
                answer = _done(network, sock.recv(LINE), start_head)
            sock.sendall(answer.encode()[: LINE - 1] + b"\n")


def _done(network: Network, line: bytes, start_head: Callable[[], object] | None) -> str:
    try:
        what, one, other, number, share = json.loads(line)
        by_address = {machine.address: machine for machine in network.machines}
        if what == "start head" and start_head is not None:
            start_head()
        else:
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
    elif what == "kill":
        one.end_processes()
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
    """Asks for it. path: of the socket. head: address of Ray's head, empty if a head that was lost is lost."""

    path: str
    head: str = ""

    def ask(self, what: str, one: str, other: str = "", number: float = 0.0, share: float = 0.0) -> None:
        """Have something done. Raises Unavailable with the reason."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(START_S if what == "start head" else ASK_S)
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
    return MachineControl(path, os.environ.get(HEAD_VARIABLE, "")) if path else None
