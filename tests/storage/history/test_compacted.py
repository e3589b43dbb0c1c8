"""The last messages of keys: which they are, in any number of passes, and what comes out of their files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.storage.errors import Corrupt
from sluice.storage.format.batch import decode_body
from sluice.storage.format.position import position
from sluice.storage.history.compacted import (
    CompactedPiece,
    CompactedRows,
    CompactedWriter,
    LastOfKeys,
    SealedTable,
    decode_compacted_footer,
    decode_compacted_group,
    positions_in,
)
from sluice.storage.history.part import rows_of_runs
from tests.storage.history.test_part import LEDGER, followed

Message = tuple[bytes | None, bytes]


def table_of(messages: Sequence[Message], each: int = 3, **more: object) -> pa.Table:
    """Messages as rows of the history, so many in a run."""
    runs: list[dict[str, object]] = []
    for start in range(0, len(messages), each):
        keys, payloads = zip(*messages[start : start + each], strict=True)
        runs.append({"key": pa.array(keys, pa.binary()), "payload": pa.array(payloads, pa.binary())})
    return rows_of_runs(followed(runs))


def kept_of(messages: Sequence[Message], limit: int = 1 << 20, each: int = 3) -> tuple[list[Message], int]:
    """Return the messages found to be the last of their keys, and the number of passes."""
    rows = table_of(messages)
    last, passes = LastOfKeys(limit), 0
    while True:
        passes += 1
        for start in range(0, rows.num_rows, each):
            last.add(rows.slice(start, each))
        last.end()
        if not last.more:
            break
        last.again()
    kept = rows.filter(pa.array(last.mask(positions_in(rows))))
    return list(zip(kept.column("key").to_pylist(), kept.column("payload").to_pylist(), strict=True)), passes


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=2)), st.binary(max_size=3)), min_size=1, max_size=40),
    st.sampled_from([30, 1 << 20]),
    st.integers(1, 7),
)
def test_the_last_message_of_each_key_is_kept(messages: list[Message], limit: int, each: int) -> None:
    wanted = {key: (number, value) for number, (key, value) in enumerate(messages) if key is not None}
    found, _ = kept_of(messages, limit, each)
    assert found == [(key, value) for key, (_, value) in sorted(wanted.items(), key=lambda one: one[1][0])]


def test_keys_over_the_limit_are_found_in_another_pass() -> None:
    messages = [(b"key-%d" % (number % 100), b"%d" % number) for number in range(300)]
    found, passes = kept_of(messages, limit=1_000)
    assert found == messages[200:]
    assert passes > 2


def sealed(groups: Sequence[pa.Table]) -> SealedTable:
    writer = CompactedWriter()
    for rows in groups:
        writer.add(rows)
    return writer.finish()


def opened(table: SealedTable) -> list[CompactedRows]:
    data = bytes(table.data)
    footer = decode_compacted_footer(data[-table.footer_bytes :], len(data), table.footer_crc)
    return [
        decode_compacted_group(footer, number, data[one.start : one.start + one.length])
        for number, one in enumerate(footer.groups)
    ]


def values(piece: CompactedPiece) -> list[tuple[int, bytes]]:
    run = piece.run
    body = decode_body(run.payload[run.count * (12 if run.delayed else 4) :], run.shape, run.count)
    places = piece.first_entry + piece.cut.astype(np.int64)
    return list(zip(places.tolist(), body.column("payload").to_pylist(), strict=True))


MESSAGES: list[Message] = [(b"k%d" % number, b"" if number == 4 else b"%d" % number) for number in range(10)]


def test_rows_come_out_as_runs_with_gaps() -> None:
    rows = table_of(MESSAGES).filter(pa.array([number % 2 == 0 for number in range(10)]))
    table = sealed([rows.slice(0, 3), rows.slice(3)])
    first, second = opened(table)
    assert first.table.equals(table.rows[0])
    pieces, left = first.pieces(0, limit=100, max_bytes=1 << 20, empty=True)
    assert (values(pieces[0]), left) == ([(0, b"0"), (2, b"2"), (4, b"")], None)
    assert (pieces[0].ledger, pieces[0].count) == (LEDGER, 5)
    pieces, left = first.pieces(0, limit=100, max_bytes=1 << 20, empty=False)
    assert values(pieces[0]) == [(0, b"0"), (2, b"2")]
    pieces, left = first.pieces(position(LEDGER, 1), limit=1, max_bytes=1 << 20, empty=True)
    assert (values(pieces[0]), left) == ([(2, b"2")], position(LEDGER, 4))
    assert first.pieces(position(LEDGER, 3), limit=9, max_bytes=9, empty=False) == ([], None)
    pieces, left = second.pieces(0, limit=9, max_bytes=1, empty=True)
    assert (values(pieces[0]), left) == ([(6, b"6")], position(LEDGER, 8)), "one at least"
    assert pq.read_table(pa.BufferReader(table.data)).column("entry").to_pylist() == [0, 2, 4, 6, 8]


def test_a_damaged_table_is_never_believed() -> None:
    table = sealed([table_of(MESSAGES)])
    data = bytes(table.data)
    tail = data[-table.footer_bytes :]
    with pytest.raises(Corrupt, match="the footer does not fit"):
        decode_compacted_footer(tail[:-1] + b"!", len(data), table.footer_crc)
    footer, one = decode_compacted_footer(tail, len(data), table.footer_crc), table.groups[0]
    with pytest.raises(Corrupt, match="row group 0 does not fit"):
        decode_compacted_group(footer, 0, b"!" + data[one.start + 1 : one.start + one.length])
