"""The sticky hash: Murmur3 x86 32-bit, seed 0, masked to 31 bits, over a whole Arrow column at once (KS-1).

A selector reduces the masked value to its own range with `reduce_hash` (KS-2, KS-3): 1..65535 for consistent
hashing, 0..65535 with 0 folded to 1 for the two range selectors. The masked value travels with each message,
because neither 16-bit form can be computed from the other.
"""

from __future__ import annotations

import base64

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.storage.errors import Invalid

MASK = 0x7FFFFFFF
HASH_RANGE = 65536
"""Size of every table that is indexed by a reduced hash. Value 0 is reserved for "not known" (KS-2)."""

Hashes = npt.NDArray[np.uint32]

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)


def key_bytes(key: str | bytes) -> bytes:
    """A key as messages carry it. Text is UTF-8; the argument of a command may be none, and keeps its bytes.

    Raises Invalid for text that stands for no bytes.
    """
    if isinstance(key, bytes):
        return key
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Invalid(f"the key {key!r} is no text") from None


def masked_hash(key: bytes) -> int:
    """Masked Murmur3 of one key, 0 .. 2^31-1 (KS-1)."""
    return mmh3.hash(key, 0, signed=False) & MASK


def reduce_hash(masked: Hashes, *, size: int = 65535, start: int = 1) -> npt.NDArray[np.uint16]:
    """Reduce masked hashes to `start .. start+size-1`; a result of 0 becomes 1 (KS-2). Returns uint16, shape kept."""
    if size & (size - 1) == 0:
        reduced = masked & np.uint32(size - 1)
    else:
        reduced = masked % np.uint32(size)
    if start:
        reduced += np.uint32(start)
    else:
        reduced[reduced == 0] = 1
    return reduced.astype(np.uint16)


def hash_column(keys: pa.Array) -> Hashes:
    """Masked Murmur3 of a binary or string Arrow column without nulls, shape (len(keys),), dtype uint32.

    Works block by block over all rows at once: the Python loop runs once per four bytes of the longest key.
    """
    keys = keys.cast(pa.large_binary())
    count = len(keys)
    if count == 0:
        return np.empty(0, np.uint32)
    data, starts, lengths = _bytes_of(keys)
    if len(data) == count * int(lengths[0]) and len(data) and bool((lengths == lengths[0]).all()):
        return _hash_even(data.reshape(count, -1))
    # Three bytes of padding let every tail be read as one whole block and masked.
    padded = np.zeros(len(data) + 4, np.uint8)
    padded[: len(data)] = data
    state = np.zeros(count, np.uint32)
    for block in range(int(lengths.max()) // 4):
        whole = lengths >= 4 * (block + 1)
        everyone = bool(whole.all())
        rows = slice(None) if everyone else np.flatnonzero(whole)
        state[rows] = _mix_block(state[rows], _load(padded, starts[rows] + 4 * block))
    tail = lengths & 3
    if tail.any():
        word = _load(padded, starts + (lengths - tail))
        word &= (np.uint32(1) << (tail * 8).astype(np.uint32)) - np.uint32(1)
        state ^= np.where(tail > 0, _scramble(word), np.uint32(0))
    return _finish(state ^ lengths.astype(np.uint32)) & np.uint32(MASK)


def _hash_even(keys: npt.NDArray[np.uint8]) -> Hashes:
    """The same of keys of one length, uint8 (n, length): their blocks need not be looked for."""
    count, length = keys.shape
    padded = np.zeros((count, -(-length // 4) * 4), np.uint8)
    padded[:, :length] = keys
    words = np.ascontiguousarray(padded.view("<u4").T)
    state = np.zeros(count, np.uint32)
    for word in words[: length // 4]:
        state = _mix_block(state, word)
    for word in words[length // 4 :]:
        state ^= _scramble(word)
    return _finish(state ^ np.uint32(length)) & np.uint32(MASK)


def _bytes_of(keys: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(All bytes of a large_binary column, where each key starts in them, its length)."""
    buffers = keys.buffers()
    offsets = np.frombuffer(buffers[1], np.int64)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
    return data[int(offsets[0]) : int(offsets[-1])], offsets[:-1] - offsets[0], np.diff(offsets)


def _load(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> Hashes:
    """Little-endian 32-bit words at arbitrary byte offsets."""
    words = np.lib.stride_tricks.as_strided(
        data[:4].view(np.uint32), shape=(data.size - 3,), strides=(1,), writeable=False
    )
    return words[at]


def _rotate(value: Hashes, bits: int) -> Hashes:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


def _scramble(word: Hashes) -> Hashes:
    return _rotate(word * _C1, 15) * _C2


def _mix_block(state: Hashes, word: Hashes) -> Hashes:
    return _rotate(state ^ _scramble(word), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(state: Hashes) -> Hashes:
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)
    return state


def java_hash_column(keys: pa.Array) -> Hashes:
    """Java's `String.hashCode` of a binary or string column without nulls, masked to 31 bits; uint32, as hash_column.

    Source: Pulsar's JavaStringHash, the default routing of its Java client. Java counts units of UTF-16; a key that is
    no text travels, and is hashed, in base64. Text of ASCII is done block by block, other keys by a loop.
    """
    keys = keys.cast(pa.large_binary())
    count = len(keys)
    if count == 0:
        return np.empty(0, np.uint32)
    data, starts, lengths = _bytes_of(keys)
    state = np.zeros(count, np.uint32)
    for index in range(int(lengths.max())):
        rows = np.flatnonzero(lengths > index)
        state[rows] = state[rows] * np.uint32(31) + data[starts[rows] + index]
    above = np.concatenate([np.zeros(1, np.int64), np.cumsum(data > 0x7F)])
    for row in np.flatnonzero(above[starts + lengths] > above[starts]).tolist():
        state[row] = _java_hash(keys[row].as_py())
    return state & np.uint32(MASK)


def _java_hash(key: bytes) -> int:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(key).decode()
    units, state = text.encode("utf-16-be"), 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        state = (state * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return state
