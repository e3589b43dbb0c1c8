"""The addresses at which a process listens, as it gives them to callers that know its name."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile

import msgspec

from sluice.cluster.node.process_watch import space

PATH_LIMIT = 107
"""Bytes of the path of a Unix-domain socket, on Linux."""


class Endpoint(msgspec.Struct, frozen=True):
    """The addresses at which a process listens.

    machine: the machine that sees its files, and with them the socket at `path`; network: the one whose loopback is
    also the loopback of the process; host and port: for callers elsewhere.

    secret: proves that the caller was given this endpoint, where the cluster has no token of its own; else empty. tls:
    the files that this process speaks TLS with (cluster.wire.tls.TlsFiles), empty if it does not. A caller without
    files of its own uses those at the same paths.
    """

    name: str
    machine: str
    network: str
    path: str
    host: str
    port: int
    secret: str = ""
    tls: tuple[str, ...] = ()

    @property
    def is_near(self) -> bool:
        """Whether its socket is a file that this process sees."""
        return bool(self.machine) and self.machine == this_machine()


def this_machine() -> str:
    """This boot of this machine and its view of the files; empty where that cannot be known."""
    return space("mnt")


def this_network() -> str:
    """This boot of this machine and its view of the network; empty where that cannot be known."""
    return space("net")


class SocketFolder:
    """A folder of mode 0700 for the socket of one process; short enough, and removed with it."""

    def __init__(self, wanted: str = "") -> None:
        """wanted: the folder in which it is made, if its path is short enough; it goes away with that one at last."""
        name = f"w{secrets.token_hex(6)}"
        root = wanted if wanted and len(os.fsencode(wanted)) + len(name) + 4 <= PATH_LIMIT else tempfile.gettempdir()
        try:
            self._folder = os.path.join(root, name)
            os.mkdir(self._folder, 0o700)
        except OSError:
            self._folder = tempfile.mkdtemp(prefix="sluice-")
        self.path = os.path.join(self._folder, "s")

    def listen(self) -> socket.socket:
        """Listen there; only this user can connect. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(self.path)
            os.chmod(self.path, 0o600)
            sock.listen(128)
            return sock
        except OSError:
            sock.close()
            raise

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)
