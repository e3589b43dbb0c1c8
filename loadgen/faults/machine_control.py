"""Breaks what is between machines, for a process on one of them: `sluice chaos` there asks the program that made them.

That program (tests/kit/machine_server.py) serves a socket in the home folder of each machine, and sets a variable to
its path; so a run finds out that its cluster has machines of this kind. Another variable is set to the address of Ray's
head, if the program can start it again. A request is a list in JSON, `[what, address, address, milliseconds of delay,
part that is lost]`, and its answer a line: empty, or why it could not be done.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass

from sluice.storage.errors import Unavailable

VARIABLE = "SLUICE_INTERNAL_MACHINES"
HEAD_VARIABLE = "SLUICE_INTERNAL_HEAD"
LINE = 4096
"""Bytes of a request, and of an answer."""
ASK_S, START_S = 20.0, 180.0
"""How long an answer may take; Ray's head takes longer to start."""


@dataclass(frozen=True)
class MachineControl:
    """Asks for it. path: of the socket. head: address of Ray's head, empty if a head that was lost is lost."""

    path: str
    head: str = ""

    def ask(self, what: str, one: str, other: str = "", number: float = 0.0, share: float = 0.0) -> None:
        """Ask for something to be done. Raises Unavailable with the reason."""
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
    """Return the control of machines that the environment names; None without one."""
    path = os.environ.get(VARIABLE)
    return MachineControl(path, os.environ.get(HEAD_VARIABLE, "")) if path else None
