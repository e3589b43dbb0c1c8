"""The judgement of a flood on Spark: histories are divided by key, and each part is judged as columns.

A key's sends, deliveries and acknowledgements all carry the same sticky hash, so `hash % parts` puts whole keys into
one part, and the findings of the parts add up. One part is about a quarter of a million messages: that many fit into
a worker's memory however long the run was. Consumers' events are few and go to every part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.loadgen.base.history import ACKS, DELIVERIES, EVENTS, RECEIVES, SENDS, SENT, confirm_acks
from sluice.loadgen.judge.checkers import Findings, judge
from sluice.loadgen.judge.measures import Measures, Span, measure
from sluice.loadgen.judge.recovery import RecoveryTimes, recover
from sluice.loadgen.judge.wrong_clocks import wrong_clocks

MESSAGES_PER_PART = 250_000
SLICES = 4
"""Tasks a core that cut the histories: enough that none is long waited for."""
KINDS = {"sends": SENT, "deliveries": DELIVERIES}
"""The histories that are cut by key: their folders, and what is in them."""


@dataclass
class Judgement:
    """The findings of the judge, the measures of the run, and its recovery from faults."""

    findings: Findings
    measures: Measures
    recovery: RecoveryTimes = field(default_factory=RecoveryTimes)


def judge_part(
    sent: pa.Table,
    delivered: pa.Table,
    events: pa.Table,
    span: Span,
    faults: Sequence[dict[str, Any]] = (),
    *,
    nack_order: str = "none",
) -> Judgement:
    """Judge one part: tables SENT, DELIVERIES and EVENTS of loadgen.base.history that hold whole keys; faults in
    order."""
    rows = np.flatnonzero(delivered.column("acked_at").to_numpy() > 0)
    released_at = delivered if len(rows) == delivered.num_rows else delivered.take(pa.array(rows))
    unconfirmed = pa.chunked_array([np.zeros(released_at.num_rows, np.int64)])
    acks = released_at.append_column("confirmed_at", unconfirmed).select(ACKS.names)
    # Each delivery stands in one row with its own acknowledgement.
    given = (sent.select(SENDS.names), delivered.select(RECEIVES.names), confirm_acks(acks, events), events)
    findings = judge(*given, acked_rows=rows, nack_order=nack_order, clocks=wrong_clocks(faults))
    return Judgement(findings, measure(sent, delivered, span), recover(sent, delivered, events, faults, span))


def judge_with_spark(
    context: Any,
    folder: Path,
    span: Span,
    messages: int,
    faults: Sequence[dict[str, Any]] = (),
    *,
    nack_order: str = "none",
) -> Judgement:
    """Judge the histories under `folder` (sends/, deliveries/, events/ as Parquet) with a SparkContext.

    Rows travel as columns, in files: tasks read pieces of the histories and cut them by part, and each part's task maps
    its files into memory. Through Spark's own shuffle every byte would go to Java and back.
    """
    parts = max(context.defaultParallelism, -(-messages // MESSAGES_PER_PART))
    pieces = [
        (kind, str(file), group)
        for kind in KINDS
        for file in sorted((folder / kind).glob("*.parquet"))
        for group in range(pq.read_metadata(file).num_row_groups)
    ]
    whole = Judgement(Findings(), Measures(span))
    with tempfile.TemporaryDirectory(dir=folder, prefix="parts-") as cut_to:
        if pieces:
            slices = min(len(pieces), SLICES * context.defaultParallelism)
            context.parallelize(pieces, slices).foreach(_cutter(parts, Path(cut_to)))
        task = _task(Path(cut_to), read_table(folder / "events", EVENTS), span, faults, nack_order)
        # Each part is judged, and has its share in what was checked, even if it is empty.
        for judged in context.parallelize(range(parts), parts).map(task).collect():
            whole.findings.merge(judged.findings)
            whole.measures.merge(judged.measures)
            whole.recovery.merge(judged.recovery)
    return whole


def _cutter(parts: int, cut_to: Path) -> Callable[[tuple[str, str, int]], None]:
    """The function that reads one piece of a file and writes a file of Arrow's stream format for each part."""

    def cut(piece: tuple[str, str, int]) -> None:
        kind, file, group = piece
        rows = pq.ParquetFile(file).read_row_group(group).select(KINDS[kind].names).cast(KINDS[kind])
        part = rows.column("hash").to_numpy() % parts
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(parts + 1))
        rows = rows.take(pa.array(order)).combine_chunks()
        for number in range(parts):
            mine = rows.slice(bounds[number], bounds[number + 1] - bounds[number])
            if mine.num_rows:
                target = cut_to / f"{number}-{kind}-{Path(file).stem}-{group}"
                # A task that is tried again writes the same file again.
                partial = target.with_name(f".{target.name}")
                with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_stream(sink, mine.schema) as stream:
                    stream.write_table(mine)
                partial.replace(target)

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
    cut_to: Path, events: pa.Table, span: Span, faults: Sequence[dict[str, Any]], nack_order: str
) -> Callable[[int], Judgement]:
    """The function that Spark runs for each part; it takes its small tables along."""

    def run(part: int) -> Judgement:
        sent, delivered = (
            pa.concat_tables(
                [schema.empty_table()]
                + [
                    pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
                    for file in sorted(cut_to.glob(f"{part}-{kind}-*"))
                ]
            )
            for kind, schema in KINDS.items()
        )
        return judge_part(sent, delivered, events, span, faults, nack_order=nack_order)

    return run
