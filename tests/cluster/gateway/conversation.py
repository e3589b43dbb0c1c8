"""Conversations of real clients as text: recorded between a client and the gateway, and played again without a client.

One line a frame: `C` from the client, `S` from the gateway, the command's name, its fields; of frames that carry
messages also their metadata and payload. Record again with

    .venv/bin/python -m tests.cluster.gateway.record [SCENE...]

Played, the client's frames are sent byte for byte as they were, and each frame of the gateway must equal the next one
of its kind. Only the order between different kinds is left open: a receipt and a delivery may overtake each other.
"""

from __future__ import annotations

import ast
import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from sluice.actors.pulsar.codec.frames import Buffer, CommandFrame, Cutter, body_of, encode, encode_message
from sluice.actors.pulsar.codec.protocol import FIELD_OF, Command, Metadata, parse
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway

FOLDER = Path(__file__).parent / "conversations"
URL = "pulsar://127.0.0.1:6650"
ANSWER_S = 60.0
UNASKED = ("ping", "pong")


@dataclass(frozen=True)
class Line:
    """One frame as text."""

    who: str
    name: str
    fields: str
    metadata: str = ""
    payload: bytes = b""

    def text(self) -> str:
        """As it stands in the file."""
        carried = f" | {self.metadata} | {self.payload!r}" if self.metadata else ""
        return f"{self.who} {self.name} {self.fields}{carried}".rstrip()

    @staticmethod
    def read(text: str) -> Line:
        """Back from the file."""
        head, _, carried = text.partition(" | ")
        who, name, fields = [*head.split(" ", 2), ""][:3]
        metadata, _, payload = carried.partition(" | ")
        return Line(who, name, fields, metadata, ast.literal_eval(payload) if payload else b"")

    def frame(self) -> bytes:
        """The bytes of a client's line."""
        asked = Command()
        number = next(number for number, name in FIELD_OF.items() if name == self.name)
        asked.type = number
        getattr(asked, self.name).SetInParent()
        text_format.Parse(self.fields, getattr(asked, self.name))
        if not self.metadata:
            return encode(asked)
        metadata = text_format.Parse(self.metadata, Metadata())
        return encode_message(asked.SerializeToString(), metadata.SerializeToString(), self.payload)


def line_of(who: str, frame: CommandFrame) -> Line:
    """A frame as text."""
    told = parse(Command, frame.command)
    name = FIELD_OF[told.type]
    fields = one_line(getattr(told, name))
    if not frame.rest:
        return Line(who, name, fields)
    body = body_of(frame.rest)
    return Line(who, name, fields, one_line(parse(Metadata, body.metadata)), bytes(body.payload))


def one_line(message: Any) -> str:
    """A message of protobuf as text, without what is not known of it."""
    return str(text_format.MessageToString(message, as_one_line=True))


class Wire:
    """The bytes of a connection that has no socket. Implements actors.pulsar.conversation.gateway.gateway.Link."""

    def __init__(self) -> None:
        self.peer = "text"
        self.lines: list[Line] = []
        self.came = asyncio.Event()
        self._cutter = Cutter()

    def write(self, *data: Buffer) -> None:
        """See Link."""
        frames = self._cutter.feed(b"".join(data))
        self.lines += [line for frame in frames if (line := line_of("S", frame)).name not in UNASKED]
        self.came.set()

    def close(self) -> None:
        """See Link."""

    def pause(self) -> None:
        """See Link."""

    def unsent(self) -> int:
        """See Link."""
        return 0

    def resume(self) -> None:
        """See Link."""

    async def next(self, name: str) -> Line:
        """The next frame of that kind."""
        while True:
            for place, line in enumerate(self.lines):
                if line.name == name:
                    return self.lines.pop(place)
            self.came.clear()
            async with asyncio.timeout(ANSWER_S):
                await self.came.wait()


async def play(gateway: Gateway, lines: list[Line]) -> None:
    """Play a conversation. Raises AssertionError where the gateway says something else."""
    wires: dict[str, tuple[ClientConnection, Wire]] = {}
    for line in lines:
        number = line.who[1:]
        if number not in wires:
            wire = Wire()
            wires[number] = (ClientConnection(gateway, wire), wire)
        connection, wire = wires[number]
        if line.who.startswith("C"):
            connection.data(line.frame())
        else:
            said = await wire.next(line.name)
            assert said.text().removeprefix("S ") == line.text().removeprefix(f"{line.who} ")
    left = [said.text() for _, wire in wires.values() for said in wire.lines]
    for connection, _ in wires.values():
        connection.over()
    assert left == []
