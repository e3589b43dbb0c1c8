"""Lets who runs on machines in namespaces break what is between them (loadgen.faults.machine_control asks)."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator

from sluice.loadgen.faults.machine_control import ASK_S, HEAD_VARIABLE, LINE, VARIABLE
from sluice.storage.errors import Invalid
from tests.kit.machines import Machine, Network

SOCKET = "machines"
"""The socket's name in the home folder."""


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
