"""A connection whose bytes are made by hand."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from sluice.actors.pulsar.codec.frames import Cutter, encode
from sluice.actors.pulsar.codec.protocol import Command, command, parse
from tests.cluster.gateway.clients import PATIENCE

HELLO = encode(command("connect", client_version="raw", protocol_version=20))


class Raw:
    """A connection whose bytes are made by hand."""

    def __init__(self, url: str, address: str = "127.0.0.1") -> None:
        at = "127.0.0.1", int(url.rpartition(":")[2])
        self.socket = socket.create_connection(at, source_address=(address, 0))
        self.socket.settimeout(PATIENCE / 1000)
        self._cutter = Cutter()
        self._frames: list[Any] = []

    def limit(self, size: int) -> None:
        """From now on a frame of more bytes is a failure."""
        self._cutter.limit = size

    def send(self, data: bytes) -> None:
        """Bytes, or as many as are taken of them."""
        with contextlib.suppress(OSError):  # it was closed meanwhile, which is what `closed` looks at
            self.socket.sendall(data)

    def read(self) -> Any:
        """The next command; None when the connection has ended."""
        while not self._frames:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames += [parse(Command, frame.command) for frame in self._cutter.feed(data)]
        return self._frames.pop(0)

    def refused(self) -> bool:
        """Whether it ends before it is let in."""
        self.send(HELLO)
        return self.read() is None

    def closed(self) -> bool:
        """Whether the connection ends, whatever comes before."""
        while self.read() is not None:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def greet(self) -> None:
        """Be let in."""
        self.send(HELLO)
        assert self.read().HasField("connected")

    def say(self, name: str, **values: Any) -> None:
        """Send a command."""
        self.send(encode(command(name, **values)))

    def next(self, name: str) -> Any:
        """The next command of a kind, past all others."""
        while (said := self.read()) is not None:
            if said.HasField(name):
                return getattr(said, name)
        raise AssertionError(f"the connection ended without {name}")
