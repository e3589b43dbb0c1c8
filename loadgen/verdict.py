"""The judgement of a flood, spread over Spark: histories are cut by key, each part is judged as columns.

A key's sends, deliveries and acknowledgements all carry the same sticky hash, so `hash % parts` puts whole keys into
one part, and the findings of the parts add up. One part is about a quarter of a million messages: that many fit into
a worker's memory however long the run was. Consumers' events are few and go to every part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
_RESULT = "findings string, measures string, recovery string"


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
    spark: Any, folder: Path, span: Span, messages: int, faults: Sequence[dict[str, Any]] = ()
) -> Judgement:
    """Judge the histories under `folder` (sends/, deliveries/, events/ as Parquet) with a Spark session."""
    from pyspark.sql.functions import col

    parts = max(spark.sparkContext.defaultParallelism, -(-messages // MESSAGES_PER_PART))
    part = (col("hash") % parts).alias("part")
    sent = _read(spark, folder / "sends", SENT).groupBy(part)
    delivered = _read(spark, folder / "deliveries", DELIVERIES).groupBy(part)
    spark.conf.set("spark.sql.shuffle.partitions", str(parts))
    task = _task(read_table(folder / "events", EVENTS), span, faults)
    rows = sent.cogroup(delivered).applyInArrow(task, _RESULT).collect()
    whole = Judgement(Findings(), Measures(span))
    for row in rows:
        whole.findings.merge(Findings(**json.loads(row["findings"])))
        whole.measures.merge(Measures.from_dict(json.loads(row["measures"])))
        whole.recovery.merge(Recovery.from_dict(json.loads(row["recovery"])))
    return whole


def read_table(folder: Path, schema: pa.Schema) -> pa.Table:
    """All Parquet files of a folder as one table of this schema; an empty one if there are none."""
    files = sorted(folder.glob("*.parquet")) if folder.exists() else []
    return pa.concat_tables([schema.empty_table(), *(pq.read_table(file, schema=schema) for file in files)])


def span_of(folder: Path) -> Span:
    """The time that the histories under `folder` cover, from the first send to the last acknowledgement."""
    starts, ends = [], []
    for kind, first, last in (("sends", "sent_at", "confirmed_at"), ("deliveries", "received_at", "acked_at")):
        for file in (folder / kind).glob("*.parquet"):
            table = pq.read_table(file, columns=[first, last])
            if table.num_rows:
                starts.append(pc.min(table.column(first)).as_py())
                ends.append(max(pc.max(table.column(first)).as_py(), pc.max(table.column(last)).as_py()))
    return Span.over(min(starts, default=0), max(ends, default=1))


def _read(spark: Any, folder: Path, schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.read.schema(from_arrow_schema(schema)).parquet(str(folder))


def _task(events: pa.Table, span: Span, faults: Sequence[dict[str, Any]]) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """The function that Spark runs for each part; it takes its small tables along."""
    rows = events.to_pylist()

    def run(sent: pa.Table, delivered: pa.Table) -> pa.Table:
        known = pa.Table.from_pylist(rows, EVENTS)
        part = judge_part(_shaped(sent, SENT), _shaped(delivered, DELIVERIES), known, span, faults)
        return pa.table(
            {
                "findings": [json.dumps(asdict(part.findings))],
                "measures": [json.dumps(part.measures.to_dict())],
                "recovery": [json.dumps(part.recovery.to_dict())],
            }
        )

    return run


def _shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema; Spark adds the grouping column and may widen types."""
    return table.select(schema.names).cast(schema) if table.num_columns else schema.empty_table()
