"""A snapshot of the whole state of the decisions as bytes, and the state from such bytes.

A flight recorder begins with it where the calls since the start are not kept any more. The bytes are a pickle. A reader
takes the plain classes below and refuses any other name; arrays, settings and methods travel as values of their own. So
bytes of a stranger can damage a replay and run nothing.
"""

from __future__ import annotations

import pickle
from enum import Enum
from types import MethodType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.messages import SubscriptionSettings
from sluice.storage.errors import Corrupt

_STATE = "sluice.actors.key_shared.state."
_MOVED = {
    f"{_STATE}position_table": f"{_STATE}window",
    f"{_STATE}carried_redeliveries": f"{_STATE}given_back",
    f"{_STATE}delays": f"{_STATE}given_back",
    f"{_STATE}hash_groups": f"{_STATE}tables",
}
"""The modules of these names in snapshots of earlier versions, and where their classes are now."""
_OTHERS = {
    ("collections", "Counter"),
    ("collections", "deque"),
    ("sortedcontainers.sorteddict", "SortedDict"),
    ("sluice.storage.format.redeliveries", "Redeliveries"),
}
_TYPES = ("<i8", "<u8", "<i4", "<u4", "<i2", "<u2", "|i1", "|u1", "|b1", "<f8")
_PROTOCOL = 5
_LONG, _LONGEST = 1 << 15, 1 << 26
"""Bytes of an array that may be written by its exceptions, and the most rows that a reader makes of them."""


class _Freezer(pickle.Pickler):
    """Arrays, settings, methods and callbacks as plain values."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _sparse(value) or (
                "array",
                _TYPES.index(value.dtype.newbyteorder("<").str),
                value.shape,
                value.tobytes(),
            )
        if isinstance(value, np.generic):
            return "number", _TYPES.index(value.dtype.str), value.tobytes()
        if isinstance(value, type) and issubclass(value, np.generic):
            return "type", _TYPES.index(np.dtype(value).str)
        if isinstance(value, Enum):  # Python 3.11.2 would name the function getattr
            return "enum", type(value), value.value
        if isinstance(value, SubscriptionSettings):
            return "settings", msgspec.msgpack.encode(value)
        if isinstance(value, MethodType):
            return ("nothing",)
        return None


def _sparse(array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
    """Return a long array that mostly has its last value by the rows with another one; None for other arrays."""
    if array.ndim != 1 or array.nbytes < _LONG:
        return None
    rows = np.flatnonzero(array != array[-1])
    if 2 * rows.nbytes > array.nbytes:
        return None
    kind = _TYPES.index(array.dtype.newbyteorder("<").str)
    return "sparse", kind, len(array), array[-1:].tobytes(), rows.tobytes(), array[rows].tobytes()


class _Thawer(pickle.Unpickler):
    """Refuses every name but the classes of the state."""

    def find_class(self, module: str, name: str, /) -> Any:
        module = _MOVED.get(module, module)
        known = module.startswith(_STATE) and "." not in name
        if not known and (module, name) not in _OTHERS:
            raise Corrupt(f"a snapshot names {module}.{name}, which is no part of the state")
        found = super().find_class(module, name)
        if not isinstance(found, type) or found.__module__ != module:
            raise Corrupt(f"a snapshot names {module}.{name}, which is no part of the state")
        return found

    def persistent_load(self, value: Any) -> Any:
        match value:
            case "array", int(kind), tuple(shape), bytes(data):
                return np.frombuffer(data, _TYPES[kind]).reshape(shape).copy()
            case "sparse", int(kind), int(length), bytes(last), bytes(rows), bytes(data) if 0 <= length <= _LONGEST:
                column = np.full(length, np.frombuffer(last, _TYPES[kind])[0])
                column[np.frombuffer(rows, "<i8")] = np.frombuffer(data, _TYPES[kind])
                return column
            case "number", int(kind), bytes(data):
                return np.frombuffer(data, _TYPES[kind])[0]
            case "type", int(kind):
                return np.dtype(_TYPES[kind]).type
            case "enum", type() as kind, member if issubclass(kind, Enum):
                return kind(member)
            case "settings", bytes(data):
                return msgspec.msgpack.decode(data, type=SubscriptionSettings)
            case ("nothing",) | ("describe", _):  # an earlier version named the state's method
                return None
        raise Corrupt("a snapshot has a value of an unknown kind")


def freeze(core: DispatchState) -> bytes:
    """Return the state as bytes. No array of it belongs to two parts, so each is written where it is found."""
    out = pa.BufferOutputStream()
    _Freezer(out, _PROTOCOL).dump(core)
    return bytes(out.getvalue())


def thaw(data: bytes) -> DispatchState:
    """Return the state that `freeze` wrote. Raises Corrupt."""
    try:
        core = _Thawer(pa.BufferReader(data)).load()
    except Corrupt:
        raise
    except Exception as error:
        raise Corrupt(f"a snapshot of the decisions cannot be read: {type(error).__name__}: {error}") from None
    if not isinstance(core, DispatchState):
        raise Corrupt("a snapshot has no state of the decisions")
    return core
