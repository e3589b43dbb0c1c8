"""A Parquet file that is read in parts. Each part is accepted only by its checksum.

The record that names a file keeps the checksum of its footer. The footer holds, under METADATA, the values that Parquet
has no place for, and for each row group the start of its bytes, their number and their checksum. So one row group is
read with two requests, and nothing else of the file.
"""

from __future__ import annotations

import base64
import io
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import google_crc32c
import msgpack
import pyarrow as pa

from sluice.storage.errors import Corrupt

FORMAT = 2
"""What is written. Code that does not know it refuses the file, because it would take its times for others."""
IN_MILLISECONDS = 1
"""The format before, which is read as well: its times are milliseconds, and since then microseconds."""
METADATA = b"sluice"
_MAGIC = b"PAR1"
_LEVEL = 1


class RowGroupBytes(Protocol):
    """Bytes start .. start+length-1 of the file are a row group. crc: their CRC32C."""

    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def crc(self) -> int: ...


class CheckedFooter(Protocol):
    """metadata: Parquet's own. size: of the whole file, in bytes."""

    metadata: Any
    size: int

    @property
    def groups(self) -> Sequence[RowGroupBytes]: ...


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file that is to be stored. The last footer_bytes of data are the footer, whose checksum is footer_crc."""

    data: memoryview
    footer_bytes: int
    footer_crc: int


class CheckedWriter:
    """Makes one file in memory. repeating: columns that are worth a dictionary."""

    def __init__(self, schema: pa.Schema, repeating: list[str]) -> None:
        from pyarrow import parquet

        self._sink = io.BytesIO()
        self._writer = parquet.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=repeating,
            write_page_checksum=True,
            store_schema=False,
        )
        self._end = len(_MAGIC)

    def add(self, rows: pa.Table) -> tuple[int, int, int]:
        """Write rows as one row group; its start, length and checksum."""
        start = self._end
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._end = self._sink.tell()
        written = bytes(self._sink.getbuffer()[start:])
        return start, len(written), google_crc32c.value(written)

    def finish(self, values: dict[str, Any]) -> SealedFile:
        """The file; nothing can be added any more. values: what else stands in the footer."""
        packed = base64.b64encode(zlib.compress(msgpack.packb({"format": FORMAT, **values})))  # a value there is text
        self._writer.add_key_value_metadata({METADATA: packed})
        self._writer.close()
        data = self._sink.getbuffer()
        tail = bytes(data[self._end :])
        return SealedFile(data, len(tail), google_crc32c.value(tail))


def footer_in(data: bytes) -> tuple[int, int]:
    """Length and checksum of the footer of a whole file, for one that nobody has named. Raises Corrupt."""
    size = int.from_bytes(data[-8:-4], "little") + 8
    if data[-4:] != _MAGIC or not 8 < size <= len(data) - len(_MAGIC):
        raise Corrupt("the file does not end with a footer")
    return size, google_crc32c.value(data[-size:])


def read_footer(tail: bytes, crc: int) -> tuple[Any, dict[str, Any]]:
    """Parquet's metadata of a file, and what stands in it under METADATA. Raises Corrupt."""
    from pyarrow import parquet

    if google_crc32c.value(tail) != crc:
        raise Corrupt("the footer does not fit its checksum")
    try:
        metadata = parquet.read_metadata(pa.BufferReader(_MAGIC + tail))
        packed = zlib.decompress(base64.b64decode(metadata.metadata[METADATA]))
        values: dict[str, Any] = msgpack.unpackb(packed)
        if values["format"] not in (FORMAT, IN_MILLISECONDS):
            raise Corrupt(
                f"a file of the history has format {values['format']}, known are {IN_MILLISECONDS} and {FORMAT}"
            )
        return metadata, values
    except (pa.lib.ArrowException, KeyError, TypeError, ValueError, IndexError, zlib.error) as error:
        raise Corrupt(f"the footer cannot be read: {error}") from error


def read_group(footer: CheckedFooter, number: int, data: bytes, columns: list[str] | None = None) -> pa.Table:
    """The rows of a row group, from its bytes. columns: None is all. Raises Corrupt if the checksum is another one."""
    group = footer.groups[number]
    if len(data) != group.length or google_crc32c.value(data) != group.crc:
        raise Corrupt(f"row group {number} does not fit its checksum")
    return read_pieces(footer, number, [(group.start, data)], columns, pages=False)  # all bytes were compared


def read_pieces(
    footer: CheckedFooter,
    number: int,
    pieces: list[tuple[int, bytes]],
    columns: list[str] | None,
    *,
    pages: bool = True,
) -> pa.Table:
    """Columns of a row group, None: all, from pieces of the file: where each begins, and its bytes, in order.

    pages: compare the checksum of each page. Raises Corrupt.
    """
    from pyarrow import parquet

    source = pa.PythonFile(_Pieces(pieces, footer.size), "r")
    try:
        file = parquet.ParquetFile(source, metadata=footer.metadata, pre_buffer=False, page_checksum_verification=pages)
        return file.read_row_group(number, columns=columns)
    except (pa.lib.ArrowException, OSError, ValueError) as error:
        raise Corrupt(f"row group {number} cannot be read: {error}") from error


class _Pieces(io.RawIOBase):
    """A file that holds only some of its pieces. Arrow asks for no others."""

    def __init__(self, pieces: list[tuple[int, bytes]], size: int) -> None:
        self._pieces, self._starts, self._size, self._at = pieces, [start for start, _ in pieces], size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        number = bisect_right(self._starts, self._at) - 1
        start, data = self._pieces[number]
        begin = self._at - start
        if number < 0 or size < 0 or begin + size > len(data):
            raise OSError(f"{size} bytes from {self._at} on are not here")
        self._at += size
        return data[begin : begin + size]
