"""Taking connections where one fails."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import pytest

from sluice.cluster.base import acceptor
from sluice.cluster.base.acceptor import AT_ONCE, Acceptor


class Failing(socket.socket):
    """Listens. Cannot take the first connections, for these reasons."""

    def __init__(self, reasons: tuple[int, ...]) -> None:
        super().__init__()
        self.reasons = reasons
        self.then: Callable[[], object] = bool

    def accept(self) -> tuple[socket.socket, object]:
        if self.reasons:
            reason, self.reasons = self.reasons[0], self.reasons[1:]
            asyncio.get_running_loop().call_soon(self.then)
            raise OSError(reason, "it cannot be taken")
        return super().accept()


def listening(*reasons: int) -> Failing:
    sock = Failing(reasons)
    sock.bind(("127.0.0.1", 0))
    sock.listen(2 * AT_ONCE)
    return sock


@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENOBUFS, errno.ECONNABORTED, errno.EAGAIN, errno.EINTR])
async def test_a_connection_that_could_not_be_taken_is_taken_later(
    reason: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "AGAIN_S", 0.001)
    sock, taken, came = listening(reason, reason), list[tuple[socket.socket, object]](), asyncio.Event()
    accepts = Acceptor("a test")

    def take(accepted: socket.socket, address: object) -> None:
        taken.append((accepted, address))
        if len(taken) == AT_ONCE + 1:
            came.set()

    accepts.listen(sock, take)
    others = [socket.create_connection(sock.getsockname()) for _ in range(AT_ONCE + 1)]
    await asyncio.wait_for(came.wait(), 60)
    assert [address for _, address in taken] == [other.getsockname() for other in others]
    assert not any(accepted.getblocking() for accepted, _ in taken)
    accepts.close()
    accepts.close()
    assert sock.fileno() == -1
    for one in [*others, *(accepted for accepted, _ in taken)]:
        one.close()


async def test_an_acceptor_closed_meanwhile_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "AGAIN_S", 0.001)
    sock, accepts, problems = listening(errno.EMFILE), Acceptor("a test"), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, problem: problems.append(problem))
    accepts.listen(sock, lambda *_: problems.append("it took one"))
    other = socket.create_connection(sock.getsockname())
    tried = asyncio.Event()

    def close() -> None:
        accepts.close()
        loop.call_later(0.01, tried.set)

    sock.then = close
    await asyncio.wait_for(tried.wait(), 60)
    assert problems == []
    other.close()
