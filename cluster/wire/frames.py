"""Frames: the units that travel on a connection.

A frame is a header of fixed size, the route (which actor and which request), a msgpack head, a table with the length
of each attachment, and the attachments, each beginning at a multiple of eight bytes, so that columns can be read in
place. The magic and the version stand first and keep their places in every version, so that two processes of different
versions can tell each other.

`FrameReader` takes bytes as they come. Small frames are read many at a time into one buffer and copied out of it; a
large one gets a buffer of its own, which its attachments are views of. Nothing is allocated before the announced
length has been checked against the limit of the moment, which is tiny until the other side has proved who it is.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sluice.storage.errors import Invalid
from sluice.storage.format.frame import Buffer

MAGIC = b"SLCE"
VERSION = 1
HEADER = struct.Struct("<4sBBHQIHHQ")
"""magic, version, kind, bytes of the route, correlation id, bytes of the head, attachments, descriptors, bytes of all
that follows the header."""
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8

HELLO, CHALLENGE, PROOF, WELCOME, REFUSED = 1, 2, 3, 4, 5
REQUEST, REPLY, ERROR, NO_ANSWER = 16, 17, 18, 19
ATTACHED = 0x80
"""Added to a kind: the shared payloads of this frame are its last attachments, and no descriptors come with it."""
KINDS = frozenset((HELLO, CHALLENGE, PROOF, WELCOME, REFUSED, REQUEST, REPLY, ERROR, NO_ANSWER))

MAX_FRAME = 256 * 1024 * 1024
"""Most bytes of one frame. A producer's largest run is far below."""
MAX_PARTS = 0xFFFF
"""Most attachments of one frame: their number stands in two bytes."""
MAX_DESCRIPTORS = 250
"""Most descriptors of one frame: the kernel takes 253 at once."""
SCRATCH = 64 * 1024
JOIN_BELOW = 16 * 1024
"""A frame of so few bytes is written as one piece: gathering costs more than copying it."""


class MalformedFrame(Exception):
    """The bytes are not a frame of this version. Nothing after them can be understood, so the connection ends."""


class OtherVersion(MalformedFrame):
    """The other side speaks another version."""


@dataclass(slots=True)
class WireFrame:
    """One frame. parts: the attachments, read-only. attached: how many of the last ones are shared payloads.

    descriptors: of shared payloads; owned by the code that takes the frame.
    """

    kind: int
    correlation: int
    route: bytes
    head: bytes
    parts: list[memoryview]
    descriptors: list[int] = field(default_factory=list)
    attached: int = 0
    size: int = 0

    def close(self) -> None:
        """Close the descriptors of a frame that nobody takes."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def encode(
    kind: int, correlation: int, route: bytes, head: bytes, parts: Sequence[Buffer] = (), descriptors: int = 0
) -> list[Buffer]:
    """The pieces of a frame, to be written behind one another; attachments are not copied unless they are small.

    Raises Invalid if the other side would refuse the frame: the limit is checked where one request pays for it, because
    a reader that meets such a frame can only end the connection, and with it what everybody else has asked.
    """
    if not parts:
        size = len(route) + len(head)
        _check_size(size)
        start = HEADER.pack(MAGIC, VERSION, kind, len(route), correlation, len(head), 0, descriptors, size)
        return [start + route + head]
    if len(parts) > MAX_PARTS:
        raise Invalid(f"a message has {len(parts)} attachments, and a frame takes {MAX_PARTS}")
    views = [memoryview(part).cast("B") for part in parts]
    table = b"".join(_LENGTH.pack(view.nbytes) for view in views)
    at = len(route) + len(head) + len(table)
    pieces: list[Buffer] = [b"", route, head, table]
    for view in views:
        gap = -at % _ALIGNMENT
        if gap:
            pieces.append(bytes(gap))
        pieces.append(view)
        at += gap + view.nbytes
    _check_size(at)
    pieces[0] = HEADER.pack(MAGIC, VERSION, kind, len(route), correlation, len(head), len(views), descriptors, at)
    if at < JOIN_BELOW:
        return [b"".join(pieces)]
    return [b"".join(pieces[:4]), *pieces[4:]]


def _check_size(body: int) -> None:
    if HEADER.size + body > MAX_FRAME:
        raise Invalid(f"a message of {HEADER.size + body} bytes does not fit a frame, which takes {MAX_FRAME}")


class FrameReader:
    """Cuts incoming bytes into frames. limit: the most bytes of one frame from now on."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.descriptors: deque[int] = deque()
        """Received with the bytes, and not yet given out with a frame."""
        self._scratch = memoryview(bytearray(SCRATCH))
        self._start = self._end = 0
        self._header: _Header | None = None
        self._body = memoryview(b"")
        """Of the large frame that is being read."""
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return the room for the next bytes; never empty."""
        return self._body[self._filled :] if self._header is not None else self._scratch[self._end :]

    def advance(self, count: int) -> list[WireFrame]:
        """Read bytes that were written to `buffer`; return the frames that are complete now. Raises MalformedFrame."""
        if self._header is not None:
            self._filled += count
            if self._filled < len(self._body):
                return []
            frame = self._frame(self._header, self._body.toreadonly())
            self._header, self._body = None, memoryview(b"")
            return [frame]
        self._end += count
        found: list[WireFrame] = []
        try:
            return self._small_frames(found)
        except MalformedFrame:
            for frame in found:
                frame.close()
            raise

    def _small_frames(self, found: list[WireFrame]) -> list[WireFrame]:
        """The frames that are complete in the scratch buffer, appended to `found` one by one. Raises MalformedFrame."""
        while self._end - self._start >= HEADER.size:
            header = _read_header(self._scratch, self._start, self.limit)
            begin = self._start + HEADER.size
            if begin + header.body <= self._end:
                self._start = begin + header.body
                found.append(self._frame(header, bytes(self._scratch[begin : self._start])))
            elif HEADER.size + header.body > SCRATCH:
                self._begin_large(header, self._scratch[begin : self._end])
                return found
            else:
                break
        self._move_down()
        return found

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        while self.descriptors:
            os.close(self.descriptors.popleft())

    def _begin_large(self, header: _Header, begun: memoryview) -> None:
        self._body = np.empty(header.body, np.uint8).data
        self._body[: len(begun)] = begun
        self._header, self._filled = header, len(begun)
        self._start = self._end = 0

    def _move_down(self) -> None:
        left = self._end - self._start
        if left and self._start:
            self._scratch[:left] = bytes(self._scratch[self._start : self._end])
        self._start, self._end = 0, left

    def _frame(self, header: _Header, body: bytes | memoryview) -> WireFrame:
        kind, route, correlation, head, count, descriptors, size, attached = header
        if not attached and len(self.descriptors) < descriptors:
            raise MalformedFrame(f"a frame announces {descriptors} descriptors, and {len(self.descriptors)} came")
        at = route + head
        frame = WireFrame(kind, correlation, bytes(body[:route]), bytes(body[route:at]), [], size=HEADER.size + size)
        if count:
            at = _cut(memoryview(body), at, count, frame.parts)
        if at != size:
            raise MalformedFrame(f"a frame of {size} bytes has {size - at} too many")
        if attached:
            frame.attached = descriptors
        elif descriptors:
            frame.descriptors = [self.descriptors.popleft() for _ in range(descriptors)]
        return frame


def _cut(body: memoryview, table: int, count: int, parts: list[memoryview]) -> int:
    """Cut out the attachments of a frame by their table of lengths; returns where they end. Raises MalformedFrame."""
    at = table + count * _LENGTH.size
    for number in range(count):
        (length,) = _LENGTH.unpack_from(body, table + number * _LENGTH.size)
        at += -at % _ALIGNMENT
        if at + length > len(body):
            raise MalformedFrame("an attachment reaches beyond the end of its frame")
        parts.append(body[at : at + length])
        at += length
    return at


class _Header(NamedTuple):
    """body: bytes of all that follows the header; the others count, see HEADER."""

    kind: int
    route: int
    correlation: int
    head: int
    parts: int
    descriptors: int
    body: int
    attached: bool


def _read_header(data: memoryview, at: int, limit: int) -> _Header:
    """The header that begins there. Raises MalformedFrame."""
    magic, version, kind, route, correlation, head, parts, descriptors, body = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise MalformedFrame("the bytes do not begin like a frame")
    if version != VERSION:
        raise OtherVersion(f"the other side speaks version {version} of the wire protocol, this one {VERSION}")
    attached, kind = bool(kind & ATTACHED), kind & ~ATTACHED
    if kind not in KINDS:
        raise MalformedFrame(f"there is no frame of kind {kind}")
    if HEADER.size + body > limit:
        raise MalformedFrame(f"a frame of {HEADER.size + body} bytes is more than the {limit} that are allowed here")
    if route + head + parts * _LENGTH.size > body or descriptors > (parts if attached else MAX_DESCRIPTORS):
        raise MalformedFrame("the lengths in a frame's header contradict each other")
    return _Header(kind, route, correlation, head, parts, descriptors, body, attached)
