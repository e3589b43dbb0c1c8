"""One socket: what it was sent and nobody takes."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from cluster.wire.carrier import FramedSocket
from cluster.wire.frames import HEADER, MAX_FRAME, REQUEST, MalformedFrame, WireFrame, encode

GOOD = b"".join(encode(REQUEST, 1, b"a Ping", b"", (), 1))
NO_FRAME = bytes(HEADER.size)


@pytest.mark.parametrize("sent", [GOOD + GOOD, GOOD + NO_FRAME])
async def test_descriptors_behind_a_broken_frame_are_closed(sent: bytes) -> None:
    """Frames that came together with one that is refused are dropped with what was passed along with them."""
    mine, other = socket.socketpair(socket.AF_UNIX)
    lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def refuse(frame: WireFrame) -> None:
        raise MalformedFrame(f"a frame of kind {frame.kind} is not welcome")

    carrier = FramedSocket(mine, refuse, lost.set_result, MAX_FRAME)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    socket.send_fds(other, [sent], [writing, writing])
    os.close(writing)
    assert isinstance(await lost, MalformedFrame)
    assert not carrier.is_open
    assert os.read(reading, 1) == b"", "somebody still has the other end of the pipe"
    os.close(reading)
    other.close()
