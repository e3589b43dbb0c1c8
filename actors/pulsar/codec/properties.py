"""Properties of many messages at once: pairs of text, any number of them in a message.

In: where the pairs lie is found as every field is, then all of them are read at once. Out: all pairs are encoded as one
column, and each message has a range of that column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.actors.pulsar.codec.fields import Bytes, Slices, encode_fields, join, lengths_of, read_fields
from sluice.actors.pulsar.codec.protocol import tags
from sluice.actors.pulsar.codec.varints import Ints, field, side_by_side

KIND = pa.map_(pa.string(), pa.string())
_NAME, _VALUE = tags("KeyValue", "key", "value")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of some messages, m of them, ascending by message, and in their order. rows: whose each is; int64."""

    rows: Ints
    names: pa.Array
    values: pa.Array

    def column(self, count: int) -> pa.Array:
        """Return a column of n messages, null where there are none."""
        many = np.bincount(self.rows, minlength=count)
        offsets = np.concatenate([[0], np.cumsum(many)]).astype(np.int32)
        valid = pa.py_buffer(np.packbits(many > 0, bitorder="little"))
        entries = pa.StructArray.from_arrays([self.names, self.values], fields=[KIND.key_field, KIND.item_field])
        return pa.Array.from_buffers(KIND, count, [valid, pa.py_buffer(offsets)], children=[entries])


def read_pairs(source: Bytes, several: list[Slices], count: int) -> tuple[Pairs | None, npt.NDArray[np.bool_]]:
    """(The pairs of n messages, None if there are none; bool (n,): the messages whose pairs are no plain text)."""
    odd = np.zeros(count, bool)
    if not several:
        return None, odd
    rows, at, size = (np.concatenate(parts) for parts in zip(*several, strict=True))
    order = np.argsort(rows, kind="stable")
    rows, at, size = rows[order], at[order], size[order]
    read = read_fields(source, at, at + size, (_NAME, _VALUE))
    wrong = read.odd | (read.value[_NAME] < 0) | (read.value[_VALUE] < 0)
    if not wrong.any():
        columns = [source.slices(read.at[tag], read.value[tag]) for tag in (_NAME, _VALUE)]
        try:
            return Pairs(rows, columns[0].cast(pa.string()), columns[1].cast(pa.string())), odd
        except pa.ArrowInvalid:  # properties of one message are not UTF-8: look at each message alone
            wrong[:] = True
    odd[rows[wrong]] = True
    return None, odd


def encode_pairs(column: pa.Array, tag: int) -> pa.Array:
    """Return the properties of each message as its fields of this tag: a binary column of n rows, empty without them.

    A value that is null, as only columns of Sluice's own have it, is an empty one: clients refuse a pair without value.
    """
    bounds = column.offsets.to_numpy().astype(np.int64)
    first, end = int(bounds[0]), int(bounds[-1])
    if first == end:
        return pa.repeat(pa.scalar(b"", pa.binary()), len(column))
    names, values = (part[first:end].cast(pa.binary()) for part in (column.keys, column.items.fill_null("")))
    parts, size = encode_fields(end - first, [(_NAME, names), (_VALUE, values)])
    head = side_by_side(end - first, field(tag, size))
    pairs = join(head.column(), *parts)
    ends = np.concatenate([[0], np.cumsum(lengths_of(pairs))])
    offsets = ends[bounds - first].astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(offsets), pairs.buffers()[2]])


def plain(column: pa.Array) -> bool:
    """Return whether messages without properties have no range in the column, as encode_pairs wants it."""
    without = column.is_null().to_numpy(zero_copy_only=False)
    return not np.diff(column.offsets.to_numpy())[without].any()
