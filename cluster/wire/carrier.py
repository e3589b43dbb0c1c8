"""One open socket: it reads and writes frames, and counts the bytes that wait.

It works on the bare socket and not on asyncio's transports, because those copy everything into one buffer before
writing, and cannot pass descriptors. Writing gathers: what the kernel takes at once is never copied here. What it does
not take waits; of that, columns are copied, as their owner may change them, and payloads are not, as nobody may.

The first small frame in a turn of the event loop is written at once; the others go together when the turn is over.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from sluice.cluster.base.forks import keep_from_children
from sluice.cluster.wire.frames import MAX_DESCRIPTORS, FrameReader, MalformedFrame, WireFrame
from sluice.cluster.wire.handshake import HandshakeRefused
from sluice.cluster.wire.tls import NotTls, Secured
from sluice.storage.format.frame import Buffer

HIGH, LOW = 16 * 1024 * 1024, 4 * 1024 * 1024
"""Bytes that wait to be written: above the first nobody may add to them, until they are below the second."""
SOCKET_BUFFER = 4 * 1024 * 1024
_GATHER = 64
_SEALED = 256 * 1024
"""Read so much of a sealed connection at once."""
_READS = 8
"""Reads of one socket before the others have their turn."""
_MOST_IN_HAND = 8 * MAX_DESCRIPTORS
_CUT_OFF = int(socket.MSG_CTRUNC)
"""As a bare number: `&` with a member of an enumeration takes ten times as long."""
_ANCILLARY = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


class FramedSocket:
    """A connected socket of this event loop.

    on_received: called with each frame. on_lost: called once when the connection has ended, with the reason; not called
    after `close`. on_malformed: what to tell the other side before the connection ends because it is not understood.
    secured: what seals the bytes; without it they travel as they are.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_received: Callable[[WireFrame], None],
        on_lost: Callable[[Exception], None],
        limit: int,
        on_malformed: Callable[[MalformedFrame], list[Buffer]] | None = None,
        secured: Secured | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        keep_from_children(sock.fileno())
        self._on_received, self._on_lost, self._on_malformed = on_received, on_lost, on_malformed
        self._reader = FrameReader(limit)
        self._secured = secured
        self._sealed = memoryview(bytearray(_SEALED if secured is not None else 0))
        self._passes = sock.family == socket.AF_UNIX
        self._line: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._waiting = 0
        self._room = asyncio.Event()
        self._room.set()
        self._open, self._reading, self._writing = True, False, False
        self._in_turn = False
        """A small frame was sent in this turn of the event loop."""
        _tune(sock)
        self.resume()
        self._pour()

    @property
    def is_open(self) -> bool:
        """Whether frames can still be sent."""
        return self._open

    @property
    def passes(self) -> bool:
        """Whether descriptors can be passed."""
        return self._passes

    @property
    def binding(self) -> bytes:
        """A value that only the two ends of this connection know; empty without TLS."""
        return b"" if self._secured is None else self._secured.binding

    @property
    def waiting(self) -> int:
        """Bytes that the other side has not taken yet."""
        return self._waiting

    @property
    def full(self) -> bool:
        """Whether so much waits that more should not be added."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait until there is room for more, or the connection has ended."""
        await self._room.wait()

    def admit(self, limit: int) -> None:
        """Take frames of up to this number of bytes from now on."""
        self._reader.limit = limit

    def send(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> None:
        """Write a frame, now or as soon as the other side takes it. Descriptors are duplicated if they must wait."""
        if not self._open:
            return
        if self._secured is not None:
            pieces = [self._secured.sealed(pieces)]
            if not len(pieces[0]):
                return
        if len(pieces) == 1 and not descriptors and self._sent_whole(pieces[0]):
            return
        if self._line and not self._writing:
            self._flush()  # what waits for the end of the turn goes before this
        views = [memoryview(piece).cast("B") for piece in pieces]
        if not self._line:
            try:
                sent = self._write(views, descriptors)
            except OSError as error:
                self._fail(error)
                return
            if sent:
                descriptors = ()
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if not views:
                return
            views[0] = views[0][sent:]
        try:
            kept = _duplicated(descriptors)
        except OSError as error:
            self._fail(error)
            return
        for view in filter(len, views):  # of an empty one the kernel would take nothing, again and again
            self._wait_to_write(view if view.readonly else memoryview(bytes(view)), kept)
            kept = []

    def _pour(self) -> None:
        """Send what TLS has to say of its own."""
        if self._secured is not None:
            self.send(())

    def _wait_to_write(self, view: memoryview, descriptors: Sequence[int]) -> None:
        self._append(view, descriptors)
        self._write_when_possible()

    def _append(self, view: memoryview, descriptors: Sequence[int]) -> None:
        self._line.append((view, descriptors))
        self._waiting += len(view)
        if self._waiting > HIGH:
            self._room.clear()

    def _write_when_possible(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._socket.fileno(), self._flush)

    def _sent_whole(self, piece: Buffer) -> bool:
        """Write a small frame, or have it wait for the end of the turn if another one went before it."""
        if self._writing or not isinstance(piece, bytes):
            return False
        if self._in_turn:
            self._append(memoryview(piece), ())
            return True
        self._in_turn = True
        self._loop.call_soon(self._turn_over)
        try:
            sent = self._socket.send(piece)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._fail(error)
            return True
        if sent < len(piece):
            self._wait_to_write(memoryview(piece)[sent:], ())
        return True

    def _turn_over(self) -> None:
        self._in_turn = False
        if self._line and not self._writing:
            self._flush()

    def pause(self) -> None:
        """Read nothing for a while: the other side will have to wait."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        if self._open and not self._reading:
            self._reading = True
            self._loop.add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        """End the connection; what the other side has not taken is dropped. Idempotent."""
        if not self._open:
            return
        if not self._writing:
            with contextlib.suppress(OSError):
                self._write_line()  # it waited for nothing but the end of the turn
        self.pause()
        self._open = False
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        for _, descriptors in self._line:
            _close_all(descriptors)
        self._line.clear()
        self._waiting = 0
        self._room.set()
        self._reader.close()
        self._socket.close()

    def _fail(self, error: Exception) -> None:
        if self._open:
            self.close()
            # Not from within `send`: who sends does not expect that what it waits for ends meanwhile.
            self._loop.call_soon(self._on_lost, error)

    def _read(self) -> None:
        try:
            for _ in range(_READS):
                room = self._reader.buffer() if self._secured is None else self._sealed
                count = self._receive(room)
                if not count:
                    raise ConnectionResetError("the other side has closed the connection")
                if self._secured is None:
                    self._advance(count)
                else:
                    self._unseal(self._secured, room[:count])
                if count < len(room) or not self._reading:
                    return
        except (BlockingIOError, InterruptedError):
            return
        except MalformedFrame as error:
            if isinstance(error, NotTls):
                self._secured = None  # who does not speak TLS is told so in clear
            if self._on_malformed is not None:
                self.send(self._on_malformed(error))
            self._fail(error)
        except HandshakeRefused as error:
            self._pour()
            self._fail(error)
        except OSError as error:
            self._fail(error)

    def _advance(self, count: int) -> None:
        frames = self._reader.advance(count)
        try:
            for frame in frames:
                if self._open:
                    self._on_received(frame)
        finally:
            for frame in frames:  # descriptors that nobody took: of one that was refused, and of those behind it
                frame.close()

    def _unseal(self, secured: Secured, data: memoryview) -> None:
        """All of it at once, also when nothing more is to be read: no event of the socket would bring the rest."""
        secured.receive_data(data)
        self._pour()
        while self._open and (count := secured.read(self._reader.buffer())):
            self._advance(count)
        self._pour()

    def _receive(self, room: memoryview) -> int:
        if not self._passes:
            return self._socket.recv_into(room)
        count, ancillary, flags, _ = self._socket.recvmsg_into([room], _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                came = array.array("i")
                came.frombytes(data[: len(data) - len(data) % came.itemsize])
                self._reader.descriptors.extend(came)
        if flags & _CUT_OFF or len(self._reader.descriptors) > _MOST_IN_HAND:
            raise MalformedFrame("more descriptors came than can be taken")
        return count

    def _write(self, views: Sequence[memoryview], descriptors: Sequence[int]) -> int:
        """Bytes that the kernel took; 0 if it takes none now."""
        try:
            if descriptors:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                return self._socket.sendmsg(views[:_GATHER], ancillary)
            if len(views) == 1:
                return self._socket.send(views[0])
            return self._socket.sendmsg(views[:_GATHER])
        except (BlockingIOError, InterruptedError):
            return 0

    def _write_line(self) -> None:
        while self._line:
            first, descriptors = self._line[0]
            if descriptors:
                sent = self._write([first], descriptors)
            else:
                sent = self._write(self._next_views(), ())
            if not sent:
                break
            self._took(sent)

    def _flush(self) -> None:
        try:
            self._write_line()
        except OSError as error:
            self._fail(error)
            return
        if self._waiting < LOW:
            self._room.set()
        if self._line:
            self._write_when_possible()
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket.fileno())

    def _next_views(self) -> list[memoryview]:
        views: list[memoryview] = []
        for view, descriptors in self._line:
            if descriptors or len(views) == _GATHER:
                break
            views.append(view)
        return views

    def _took(self, sent: int) -> None:
        self._waiting -= sent
        while sent:
            view, descriptors = self._line.popleft()
            _close_all(descriptors)
            if len(view) > sent:
                self._line.appendleft((view[sent:], ()))
                return
            sent -= len(view)


def _duplicated(descriptors: Sequence[int]) -> list[int]:
    """Raises OSError if there are not so many to spare."""
    made: list[int] = []
    try:
        for descriptor in descriptors:
            made.append(os.dup(descriptor))
    except OSError:
        _close_all(made)
        raise
    return made


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A machine that died says nothing: what it does not acknowledge, or does not answer when idle, ends. The kernel
        # acknowledges for a process that is busy or frozen. Without an end it would send again later and later, and
        # after a heal nobody would know that before the next time.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", 1),
            ("TCP_KEEPINTVL", 1),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 3_000),
        ):
            if (number := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, number, value)
