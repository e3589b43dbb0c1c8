"""The judgement of a flood, spread over Spark: histories are cut by key, each part is judged as columns.

A key's sends, deliveries and acknowledgements all carry the same sticky hash, so `hash % parts` puts whole keys into
one part, and the findings of the parts add up. One part is about a quarter of a million messages: that many fit into
a worker's memory however long the run was. Consumers' events are few and go to every part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen.checkers import Findings, judge
from loadgen.history import ACKS, DELIVERIES, EVENTS, RECEIVES, SENDS, SENT, confirm_acks
from loadgen.measures import Measures, Span, measure
from loadgen.recovery import Recovery, recover

MESSAGES_PER_PART = 250_000
KINDS = {"sends": SENT, "deliveries": DELIVERIES}
"""The histories that are cut by key: their folders, and what is in them."""


@dataclass
class Judgement:
    """What the judge found, what the run was like, and how it recovered from its faults."""

    findings: Findings
    measures: Measures
    recovery: Recovery = field(default_factory=Recovery)


def judge_part(
    sent: pa.Table, delivered: pa.Table, events: pa.Table, span: Span, faults: Sequence[dict[str, Any]] = ()
) -> Judgement:
    """Judge one part: tables SENT, DELIVERIES and EVENTS of loadgen.history that hold whole keys; faults in order."""
    let_go = delivered.filter(pc.greater(delivered.column("acked_at"), 0))
    unconfirmed = pa.chunked_array([np.zeros(let_go.num_rows, np.int64)])
    acks = let_go.append_column("confirmed_at", unconfirmed).select(ACKS.names)
    findings = judge(sent.select(SENDS.names), delivered.select(RECEIVES.names), confirm_acks(acks, events), events)
    return Judgement(findings, measure(sent, delivered, span), recover(sent, delivered, events, faults, span))


def judge_with_spark(
    context: Any, folder: Path, span: Span, messages: int, faults: Sequence[dict[str, Any]] = ()
) -> Judgement:
    """Judge the histories under `folder` (sends/, deliveries/, events/ as Parquet) with a SparkContext.

    Rows travel as columns: a task reads a piece of a file and cuts it by part, and what Spark moves are a few blocks
    of bytes. Spark's own frames would take every row apart and put it together again in Java, twice.
    """
    parts = max(context.defaultParallelism, -(-messages // MESSAGES_PER_PART))
    pieces = [
        (kind, str(file), group)
        for kind in KINDS
        for file in sorted((folder / kind).glob("*.parquet"))
        for group in range(pq.read_metadata(file).num_row_groups)
    ]
    task = _task(read_table(folder / "events", EVENTS), span, faults)
    blocks = context.parallelize(pieces, max(len(pieces), 1)).flatMap(_cutter(parts))
    # Each part is judged, and has its share in what was checked, even if it is empty.
    empty = context.parallelize([(part, ("", b"")) for part in range(parts)], 1)
    whole = Judgement(Findings(), Measures(span))
    for row in empty.union(blocks).partitionBy(parts, _same).mapPartitions(task).collect():
        whole.findings.merge(Findings(**json.loads(row["findings"])))
        whole.measures.merge(Measures.from_dict(json.loads(row["measures"])))
        whole.recovery.merge(Recovery.from_dict(json.loads(row["recovery"])))
    return whole


def _same(part: int) -> int:
    return part


def _cutter(parts: int) -> Callable[[tuple[str, str, int]], Iterator[tuple[int, tuple[str, bytes]]]]:
    """The function that reads one piece of a file and gives a block of Arrow's stream format for each part."""

    def cut(piece: tuple[str, str, int]) -> Iterator[tuple[int, tuple[str, bytes]]]:
        kind, file, group = piece
        rows = pq.ParquetFile(file).read_row_group(group).select(KINDS[kind].names).cast(KINDS[kind])
        part = rows.column("hash").to_numpy() % parts
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(parts + 1))
        rows = rows.take(pa.array(order)).combine_chunks()
        for number in range(parts):
            mine = rows.slice(bounds[number], bounds[number + 1] - bounds[number])
            if mine.num_rows:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, mine.schema) as stream:
                    stream.write_table(mine)
                yield number, (kind, sink.getvalue().to_pybytes())

    return cut


def read_table(folder: Path, schema: pa.Schema) -> pa.Table:
    """All Parquet files of a folder as one table of this schema; an empty one if there are none."""
    files = sorted(folder.glob("*.parquet")) if folder.exists() else []
    return pa.concat_tables([schema.empty_table(), *(pq.read_table(file, schema=schema) for file in files)])


def span_of(folder: Path, cuts: Sequence[int] = ()) -> Span:
    """The time that the histories under `folder` cover, from the first send to the last acknowledgement; cuts: Span."""
    starts, ends = [], []
    for kind, first, last in (("sends", "sent_at", "confirmed_at"), ("deliveries", "received_at", "acked_at")):
        for file in (folder / kind).glob("*.parquet"):
            table = pq.read_table(file, columns=[first, last])
            if table.num_rows:
                starts.append(pc.min(table.column(first)).as_py())
                ends.append(max(pc.max(table.column(first)).as_py(), pc.max(table.column(last)).as_py()))
    return Span.over(min(starts, default=0), max(ends, default=1), cuts=cuts)


def _task(
    events: pa.Table, span: Span, faults: Sequence[dict[str, Any]]
) -> Callable[[Iterator[tuple[int, tuple[str, bytes]]]], Iterator[dict[str, str]]]:
    """The function that Spark runs for each part; it takes its small tables along."""
    rows = events.to_pylist()

    def run(blocks: Iterator[tuple[int, tuple[str, bytes]]]) -> Iterator[dict[str, str]]:
        known = pa.Table.from_pylist(rows, EVENTS)
        tables: dict[str, list[pa.Table]] = {kind: [schema.empty_table()] for kind, schema in KINDS.items()}
        for _, (kind, block) in blocks:
            if kind:
                tables[kind].append(pa.ipc.open_stream(block).read_all())
        sent, delivered = (pa.concat_tables(tables[kind]) for kind in KINDS)
        part = judge_part(sent, delivered, known, span, faults)
        yield {
            "findings": json.dumps(asdict(part.findings)),
            "measures": json.dumps(part.measures.to_dict()),
            "recovery": json.dumps(part.recovery.to_dict()),
        }

    return run
