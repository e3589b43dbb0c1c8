"""Payloads that several processes of one machine read without a copy through each socket.

A payload of some size is written once, into memory without a name (a memfd), and sealed: from then on nobody can change
or shrink it, its author included. A descriptor of it travels beside the frame on the Unix-domain socket, and the
process that gets it maps it. The kernel counts the holders. Nothing of the payload is left when the last holder
releases it or is killed, in any order, and it outlives the process that shared it.

Between machines, and where descriptors run short, the bytes travel in the frame instead; a reader cannot tell.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.actors.ports.wire import Packed
from sluice.cluster.base.descriptors import PAYLOADS, at_most
from sluice.cluster.wire.frames import ATTACHED, MAX_DESCRIPTORS, MalformedFrame, WireFrame, encode
from sluice.storage.errors import Unavailable
from sluice.storage.format.frame import Buffer

SHARE_FROM = 256 * 1024
"""Payloads of at least so many bytes are shared; smaller ones travel in the frame, which is cheaper for them."""
MOST_OPEN = 8192
"""Descriptors of payloads that a process keeps, if it may open as many. Beyond them payloads travel in the frame."""

POSSIBLE = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if POSSIBLE else 0
_PIECE = 1 << 30

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAPPED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # it is going to be read whole: no fault for each page
_FAILED = ctypes.c_void_p(-1).value


class SharedPayload:
    """A sealed payload: a descriptor, a mapping of it, or both. Views keep it alive; it cleans up after itself.

    It maps by hand because Python's own mmap keeps a second descriptor for as long as the mapping lives.
    """

    open = 0
    """Descriptors that are held now, in this process."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.descriptor = descriptor
        self._address: int | None = None
        SharedPayload.open += 1

    @classmethod
    def create(cls, *parts: Buffer) -> SharedPayload | None:
        """Write the parts of a payload into memory of its own; None where that cannot be had now."""
        if not POSSIBLE or cls.open >= _most_open():
            return None
        try:
            descriptor = os.memfd_create("sluice", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return None
        try:
            for part in parts:
                left = memoryview(part).cast("B")
                while left:
                    left = left[os.write(descriptor, left[:_PIECE]) :]
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(descriptor)
            return None
        return cls(descriptor, sum(map(len, parts)))

    @classmethod
    def received(cls, descriptor: int) -> SharedPayload:
        """The contents of a descriptor, which is taken over. Raises MalformedFrame unless it can never be changed."""
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            if seals & _SEALS != _SEALS:
                raise MalformedFrame("a payload was shared that its author can still change")
            return cls(descriptor, os.fstat(descriptor).st_size)
        except (OSError, MalformedFrame) as error:
            os.close(descriptor)
            raise MalformedFrame(f"the shared descriptor is not a payload: {error}") from None

    @classmethod
    def behind(cls, view: Buffer) -> SharedPayload | None:
        """Return the shared payload that a view shows completely, if it can be passed on.

        Where too many came from others, this process keeps the payload for itself from now on, and its bytes travel in
        the frame.
        """
        base = getattr(view.obj, "base", None) if isinstance(view, memoryview) else None
        if not isinstance(base, cls) or base.descriptor < 0 or base.size != len(view):
            return None
        if cls.open > _most_open():
            base.keep_mapping()
            return None
        return base

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The mapping, for numpy: an array over it keeps this object, and with it the mapping."""
        return {"data": (self._address, True), "shape": (self.size,), "typestr": "|u1", "version": 3}

    def view(self) -> memoryview:
        """Return the bytes of the payload, read-only. Raises OSError if they cannot be mapped."""
        if not self.size:
            return memoryview(b"")
        if self._address is None:
            address = _libc.mmap(None, self.size, mmap.PROT_READ, _MAPPED, self.descriptor, 0)
            if address == _FAILED:
                number = ctypes.get_errno()
                raise OSError(number, errno.errorcode.get(number, ""))
            self._address = address
        return np.asarray(self).data

    def keep_mapping(self) -> SharedPayload:
        """Keep the mapping alone: it is going to be read, and not passed on. Returns itself."""
        with contextlib.suppress(OSError):  # it is tried again when it is read
            self.view()
            self._close()
        return self

    def _close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            SharedPayload.open -= 1

    def __del__(self) -> None:
        self._close()
        if self._address is not None:
            _libc.munmap(self._address, self.size)
            self._address = None


def _most_open() -> int:
    return at_most(MOST_OPEN, PAYLOADS)


def written(kind: int, number: int, route: bytes, packed: Packed, passes: bool) -> tuple[list[Buffer], Sequence[int]]:
    """A message as the pieces of a frame, and the descriptors that go with it. passes: the connection takes them.

    Raises Unavailable if a payload cannot be read, Invalid if the message does not fit a frame.
    """
    handles: list[SharedPayload] = packed.handles
    if not handles:
        return encode(kind, number, route, packed.head, packed.attachments), ()
    descriptors = [handle.descriptor for handle in handles]
    if passes and len(handles) <= MAX_DESCRIPTORS and min(descriptors) >= 0:
        return encode(kind, number, route, packed.head, packed.attachments, len(handles)), descriptors
    try:
        parts = [*packed.attachments, *(handle.view() for handle in handles)]
    except OSError as error:
        raise Unavailable(f"a shared payload cannot be read here: {error}") from None
    return encode(kind | ATTACHED, number, route, packed.head, parts, len(handles)), ()


def read(frame: WireFrame, *, settle: bool) -> Packed:
    """The message of a frame. settle: payloads are read here and not passed on. Raises MalformedFrame."""
    if frame.attached:
        cut = len(frame.parts) - frame.attached
        return Packed(frame.head, list(frame.parts[:cut]), list(frame.parts[cut:]))
    handles: list[Any] = []
    try:
        while frame.descriptors:
            payload = SharedPayload.received(frame.descriptors.pop(0))
            handles.append(payload.keep_mapping() if settle else payload)
    finally:
        frame.close()
    return Packed(frame.head, list(frame.parts), handles)
