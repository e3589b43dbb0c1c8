"""Inflates payloads that clients compressed with Pulsar's LZ4, ZLIB, ZSTD and SNAPPY.

The size that a payload will have is in its metadata, and is compared with the limit before anything is inflated; what
becomes longer or shorter than it says is refused. Arrow's LZ4 and SNAPPY do not tell how much they wrote, and what
they did not write is whatever the memory held before: SNAPPY says its size itself, and of LZ4 one byte less must fail.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from sluice.actors.pulsar.codec.protocol import MalformedCommand
from sluice.actors.pulsar.codec.varints import number_of
from sluice.storage.format.batch import MAX_MESSAGE_BYTES

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)
CODECS = (LZ4, ZLIB, ZSTD, SNAPPY)
_ARROW = {LZ4: "lz4_raw", ZSTD: "zstd", SNAPPY: "snappy"}
MAX_INFLATED = MAX_MESSAGE_BYTES
"""Bytes that one frame's payload may become here; what would become more is not inflated."""
MOST_TRIED = 64 * 1024 * 1024
"""The most bytes for which a try shows whether LZ4 data has the size that it claims."""
MOST_FOLD = {LZ4: 255, ZLIB: 1_032, ZSTD: 1 << 16, SNAPPY: 32}
"""A byte becomes so many at most."""


def inflate(codec: int, payload: memoryview, size: int, most: int = MAX_INFLATED) -> memoryview:
    """Return the payload as it was. size: what the metadata say of it. most: bytes. Raises MalformedCommand."""
    if codec == NONE:
        return payload
    if size > most:
        raise MalformedCommand(f"a payload would become {size} bytes, the limit is {most}")
    if codec == ZLIB:
        return _unzip(payload, size)
    if codec not in _ARROW:
        raise MalformedCommand(f"there is no compression {codec}")
    if codec == SNAPPY and _snappy_size(payload) != size:
        raise MalformedCommand(f"a payload says that it becomes {_snappy_size(payload)} bytes, its metadata say {size}")
    try:
        found = _arrow(codec, payload, size)
    except (pa.lib.ArrowException, OSError, ValueError) as error:
        raise MalformedCommand(f"a payload cannot be inflated: {error}") from None
    if codec == LZ4 and size and _fits(payload, size - 1):
        raise MalformedCommand(f"a payload becomes less than the {size} bytes that its metadata say")
    return memoryview(found).cast("B")


def check_lz4(payload: memoryview, size: int) -> None:
    """Check the inflated size that a payload claims: a wrong size overruns the C++ client's buffer.

    Raises MalformedCommand. A size of more than MOST_TRIED bytes is not checked.
    """
    if size <= MOST_TRIED and not (_fits(payload, size) and not _fits(payload, size - 1)):
        raise MalformedCommand(f"a payload does not become the {size} bytes that its metadata say")


def _arrow(codec: int, payload: memoryview, size: int) -> pa.Buffer:
    return pa.Codec(_ARROW[codec]).decompress(pa.py_buffer(payload), decompressed_size=size)


def _fits(payload: memoryview, size: int) -> bool:
    try:
        _arrow(LZ4, payload, size)
    except (pa.lib.ArrowException, OSError, ValueError):
        return False
    return True


def _snappy_size(payload: memoryview) -> int:
    """Return the length that stands at the head of a SNAPPY block, as a varint; -1 if none does."""
    head = bytes(payload[:5])
    for end, byte in enumerate(head, 1):
        if byte < 0x80:
            return number_of(head[:end])
    return -1


def _unzip(payload: memoryview, size: int) -> memoryview:
    machine = zlib.decompressobj()
    try:
        found = machine.decompress(payload, size + 1)
    except zlib.error as error:
        raise MalformedCommand(f"a payload cannot be inflated: {error}") from None
    if len(found) != size:
        raise MalformedCommand(f"a payload became {len(found)} bytes or more, its metadata say {size}")
    return memoryview(found).cast("B")
