"""The messages between actors: typed requests and replies, msgpack for the small parts, buffers beside it for the big.

`pack` turns a message into one msgpack head plus a list of attachments that are never copied into it; `unpack` gives
it back, checked field by field while decoding. numpy columns and `Blob`s of more than INLINE bytes become
attachments, which a connection writes beside the head (`cluster/wire/frames.py`), or which two processes of one machine
share. The same bytes travel in the simulator: a defect of the codec shows there first.

Nothing here is ever unpickled. Unknown fields are ignored, missing ones take their default, a wrong type is Invalid.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, cast

import msgspec
import numpy as np

from sluice.storage.errors import WIRE_ERRORS, Invalid, SluiceError
from sluice.storage.format.checked_payload import holder
from sluice.storage.format.frame import Buffer

INLINE = 2048
"""Columns and blobs up to this many bytes travel inside the head."""
SPARE = 8
"""A part of a buffer keeps all of it alive, if the rest is at most this fraction of the part."""
SHOWN = 40
"""The number of characters shown of a text that cannot travel."""

_DTYPES = frozenset(("<i8", "<u4", "<i4", "<u2", "|u1", "|b1"))


class Blob:
    """A payload on the move: bytes in hand, or a handle of the host's shared memory, or both.

    data: the bytes if they are here (read-only view). handle: opaque to actors. Use Net.share and Net.fetch. decoded:
    the value that this process encoded as these bytes; it does not travel.
    """

    __slots__ = ("data", "decoded", "handle", "size")

    def __init__(
        self,
        data: Buffer | None = None,
        handle: object | None = None,
        size: int | None = None,
        decoded: object | None = None,
    ) -> None:
        self.decoded = decoded
        self.data = None if data is None else memoryview(data).cast("B").toreadonly()
        self.handle = handle
        self.size = len(self.data) if self.data is not None else int(size or 0)

    def __repr__(self) -> str:
        return f"Blob({self.size} bytes, {'here' if self.data is not None else 'by handle'})"


def owned(data: Buffer) -> memoryview:
    """A copy for a receiver that keeps it, because data of another process may lie in shared memory.

    Its room is small, and needed for what is on its way. Bytes of this process that little else lies in stay as they
    are.
    """
    if isinstance(data, memoryview):
        held = holder(data)
        if isinstance(held, bytes) and len(held) - len(data) <= len(data) // SPARE:
            return data
    return memoryview(bytes(data))


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of every reply."""


R = TypeVar("R", bound=Reply)


class Request(msgspec.Struct, Generic[R], kw_only=True, omit_defaults=True):
    """Base of every request. reply is the class of its answer; repeatable: asked twice it does what it does once.

    removes: what it names is gone when it was carried out, so nothing of the name is there at a second try. Its answer
    is Done.
    """

    reply: ClassVar[type[Reply]]
    repeatable: ClassVar[bool] = True
    removes: ClassVar[bool] = False


@cache
def is_value(kind: type[Request[Any] | Reply]) -> bool:
    """Whether a message of this class never changes, so that actors of one process may share it as it is."""
    fields = msgspec.structs.fields(kind)
    return kind.__struct_config__.frozen and all(field.type in _VALUES for field in fields)


_VALUES = (bool, int, float, str, bytes, Blob, int | None, tuple[int, ...], tuple[str, ...])


class Packed(msgspec.Struct, frozen=True):
    """A message ready for the wire: head, attachments by index, shared-memory handles by index."""

    head: bytes
    attachments: list[Any]
    handles: list[Any]

    @property
    def size(self) -> int:
        """Bytes that travel."""
        return len(self.head) + sum(memoryview(part).nbytes for part in self.attachments)

    def copied(self) -> Packed:
        """The same, safe from later writes by its sender: columns are copied; payloads are read-only already."""
        if not self.attachments:
            return self
        kept = [part if memoryview(part).readonly else bytes(memoryview(part)) for part in self.attachments]
        return Packed(self.head, kept, list(self.handles))


def pack(message: Request[Any] | Reply) -> Packed:
    """Encode a message; big columns and blobs are referred to, not copied. Raises Invalid if a value cannot travel."""
    attachments: list[Any] = []
    handles: list[Any] = []

    def attach(value: object) -> Any:
        if isinstance(value, np.ndarray):
            flat = np.ascontiguousarray(value)
            if flat.dtype.str not in _DTYPES or flat.ndim != 1:
                raise Invalid(f"a column of {flat.dtype} with {flat.ndim} dimensions cannot travel")
            if flat.nbytes <= INLINE:
                return [flat.dtype.str, flat.tobytes()]
            attachments.append(flat.view(np.uint8))
            return [flat.dtype.str, len(attachments) - 1]
        if isinstance(value, Blob):
            return _attach_blob(value, attachments, handles)
        raise Invalid(f"{type(value).__name__} cannot travel")

    try:
        return Packed(msgspec.msgpack.encode(message, enc_hook=attach), attachments, handles)
    except OverflowError:
        raise Invalid(f"{type(message).__name__} cannot be sent: a number in it has more than 64 bits") from None
    except UnicodeEncodeError as error:
        text = error.object[:SHOWN]
        raise Invalid(f"{type(message).__name__} cannot be sent: {text!r} is no text that UTF-8 has") from None


M = TypeVar("M", bound=msgspec.Struct)


def unpack(kind: type[M], head: bytes, attachments: Sequence[Any], handles: Sequence[Any]) -> M:
    """Decode a message of a known class. Columns are read-only views of the attachments. Raises Invalid."""

    def detach(wanted: type, value: Any) -> Any:
        if wanted is Blob:
            return _detach_blob(value, attachments, handles)
        dtype, where = value
        if dtype not in _DTYPES:
            raise Invalid(f"a column of {dtype!r} cannot travel")
        data = where if isinstance(where, bytes) else attachments[where]
        return np.frombuffer(data, np.dtype(dtype))

    try:
        return msgspec.msgpack.decode(head, type=kind, dec_hook=detach)
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
        raise Invalid(f"a {kind.__name__} could not be read: {error}") from error


def pack_error(error: SluiceError) -> tuple[str, str]:
    """An error as (class name, message), the only form in which one crosses a process border."""
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in WIRE_ERRORS), "Unavailable")
    return name, str(error)


def unpack_error(name: str, message: str) -> SluiceError:
    """The error back, as one of the classes of storage.errors."""
    return WIRE_ERRORS.get(name, SluiceError)(message)


def _attach_blob(blob: Blob, attachments: list[Any], handles: list[Any]) -> list[Any]:
    if blob.handle is not None:
        handles.append(blob.handle)
        return [1, len(handles) - 1, blob.size]
    data = cast(memoryview, blob.data)
    if blob.size <= INLINE:
        return [2, bytes(data), blob.size]
    attachments.append(data)  # as it is: who gets it here sees whose bytes these are
    return [0, len(attachments) - 1, blob.size]


def _detach_blob(value: Any, attachments: Sequence[Any], handles: Sequence[Any]) -> Blob:
    where, what, size = value
    if where == 1 and not isinstance(handles[what], memoryview):
        return Blob(handle=handles[what], size=size)
    # A shared payload may have travelled as its bytes, where its handle could not.
    blob = Blob(what if where == 2 else handles[what] if where == 1 else attachments[what])
    if blob.size != size:
        raise Invalid(f"an attachment of {size} bytes arrived with {blob.size}")
    return blob
