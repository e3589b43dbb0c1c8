"""One socket: what it was sent and nobody takes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket

import pytest

from sluice.cluster.wire.carrier import FramedSocket
from sluice.cluster.wire.frames import HEADER, MAX_FRAME, REQUEST, MalformedFrame, WireFrame, encode

NO_FRAME = bytes(HEADER.size)


def frame(number: int) -> bytes:
    return b"".join(encode(REQUEST, number, b"a Ping", b"", (), 1))


@pytest.mark.parametrize("sent", [frame(1) + frame(1), frame(1) + NO_FRAME])
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


def carrier_and_peer() -> tuple[FramedSocket, socket.socket]:
    """The peer's socket keeps what each system call wrote apart."""
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.setblocking(False)
    return FramedSocket(mine, lambda frame: None, lambda error: None, MAX_FRAME), other


def written(peer: socket.socket) -> list[bytes]:
    """By system calls."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while piece := peer.recv(1 << 20):
            found.append(piece)
    return found


async def test_small_frames_of_one_turn_go_together() -> None:
    carrier, peer = carrier_and_peer()
    for turn in (0, 10):
        for number in range(turn, turn + 10):
            carrier.send([frame(number)])
        assert written(peer) == [frame(turn)], "the first one waits for nothing"
        await asyncio.sleep(0)
        assert written(peer) == [b"".join(frame(number) for number in range(turn + 1, turn + 10))]
    assert carrier.waiting == 0
    carrier.close()
    peer.close()


async def test_a_larger_frame_goes_behind_those_of_its_turn() -> None:
    carrier, peer = carrier_and_peer()
    carrier.send([frame(1)])
    carrier.send([frame(2)])
    carrier.send([b"head", memoryview(b"payload")])
    carrier.send([frame(3)])
    await asyncio.sleep(0)
    assert b"".join(written(peer)) == frame(1) + frame(2) + b"headpayload" + frame(3)
    carrier.close()
    peer.close()


async def test_frames_sent_before_the_close_arrive() -> None:
    carrier, peer = carrier_and_peer()
    for number in range(100):
        carrier.send([frame(number)])
    carrier.close()
    assert b"".join(written(peer)) == b"".join(frame(number) for number in range(100))
    peer.close()


async def test_frames_that_the_peer_does_not_take_wait_in_order() -> None:
    carrier, peer = carrier_and_peer()
    sent, number = [], 0
    while carrier.waiting < 1 << 20:
        for _ in range(50):
            sent.append(frame(number) + bytes(10_000))
            carrier.send([sent[-1]])
            number += 1
        await asyncio.sleep(0)
    came = b""
    while carrier.waiting:
        came += b"".join(written(peer))
        await asyncio.sleep(0)
    assert came + b"".join(written(peer)) == b"".join(sent)
    carrier.close()
    peer.close()


async def test_a_connection_without_a_descriptor_to_spare_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame whose payloads cannot wait was not sent: nobody may go on as if it were."""
    mine, other = socket.socketpair(socket.AF_UNIX)
    lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    carrier = FramedSocket(mine, lambda frame: None, lost.set_result, MAX_FRAME)
    reading, writing = os.pipe()
    while carrier.waiting < 1 << 24:  # the kernel does not take so much
        carrier.send([bytes(1 << 20)])
    duplicate, made = os.dup, list[int]()

    def short(descriptor: int) -> int:
        if made:
            raise OSError(errno.EMFILE, "too many open files")
        made.append(duplicate(descriptor))
        return made[-1]

    monkeypatch.setattr(os, "dup", short)
    carrier.send([frame(1)], [writing, writing])
    assert isinstance(await lost, OSError)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
    for descriptor in (reading, writing):
        os.close(descriptor)
    other.close()


async def test_an_empty_end_of_a_frame_is_not_waited_for() -> None:
    """The event loop was awake for nothing until something else was sent."""
    mine, other = socket.socketpair(socket.AF_UNIX)
    other.setblocking(False)
    carrier = FramedSocket(mine, lambda frame: None, lambda error: None, MAX_FRAME)
    pieces = encode(REQUEST, 1, b"a Ping", b"", (bytes(1 << 24), b""))
    carrier.send(pieces)
    assert carrier.waiting
    left = sum(len(piece) for piece in pieces)
    loop = asyncio.get_running_loop()
    while left:
        left -= len(await loop.sock_recv(other, 1 << 20))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not carrier._writing
    carrier.close()
    other.close()
