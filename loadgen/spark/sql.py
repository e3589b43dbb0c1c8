"""Answers a SQL query about topics with a Spark of its own: each topic that the query names is a table.

A table has the columns of cluster.client.bulk.READABLE, with times as timestamps. Keys and payloads are bytes, as they
were published: `cast(key as string)` is text.

Spark does not tell a data source which columns a query uses. So a table gets only those columns whose names stand
somewhere in the query, which is never too few: one that is not named is only used by a star, which means all. What lies
in the object store Spark reads itself (loadgen.spark.topic_frame).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.cluster.client.bulk import READABLE, TIMES
from sluice.cluster.history.log_read import ATTEMPTS, FOLDER
from sluice.cluster.node.stale_folders import claim, clear
from sluice.loadgen.spark.datasource import SluiceDataSource
from sluice.loadgen.spark.java import ensure_java
from sluice.loadgen.spark.session import cause_of, spark_session
from sluice.loadgen.spark.topic_frame import is_gone, topic_frame
from sluice.storage.errors import Invalid

_STAR = re.compile(r"(?<!count\()\*", re.IGNORECASE)
_SPARKS = {pa.binary(): "binary", pa.int64(): "long", pa.int32(): "int"}


def query(text: str, topics: Iterable[str], options: Mapping[str, str], *, cores: int = 2) -> list[dict[str, Any]]:
    """Return the rows of the answer. topics: those that the query names become tables. options: of a read.

    Raises Invalid if Spark cannot answer the query.
    """
    import os

    os.environ.update(ensure_java())
    clear(Path(tempfile.gettempdir()), FOLDER)
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder, spark_session(Path(folder), cores=cores) as spark:
        claim(Path(folder))
        from pyspark.errors import PySparkException

        spark.dataSource.register(SluiceDataSource)
        for attempt in range(ATTEMPTS):
            try:
                for topic in (topic for topic in topics if _names(text, topic)):
                    frame = topic_frame(spark, table_schema(text), {"topic": topic, **options})
                    frame.createOrReplaceTempView(f"`{topic}`")
                return [row.asDict() for row in spark.sql(text).collect()]
            except Exception as error:  # what a task fails with may come as an error of Java's
                gone = is_gone(error)
                if gone and attempt + 1 < ATTEMPTS:
                    continue
                if not gone and not isinstance(error, PySparkException):
                    raise
                why = f"objects went away in {ATTEMPTS} tries; ask again" if gone else cause_of(error)
                raise Invalid(f"the query has no answer: {why}") from None
    raise AssertionError("the last attempt answers or raises")


def table_schema(text: str) -> dict[str, str]:
    """The columns that a query may use, with their types in Spark's words; at least one."""
    star = _STAR.search(text) is not None
    wanted = [name for name in READABLE if star or _names(text, name, alone=False)]
    return {name: _type(name) for name in wanted or ["entry"]}


def _names(text: str, name: str, *, alone: bool = True) -> bool:
    """Whether a name stands in a text. alone: not behind a dot, as a column's does that follows its table's."""
    before = r"[\w.-]" if alone else r"[\w-]"
    return re.search(rf"(?<!{before}){re.escape(name)}(?![\w-])", text, re.IGNORECASE) is not None


def _type(name: str) -> str:
    if name in TIMES:
        return "timestamp"
    return "map<string, string>" if pa.types.is_map(READABLE[name]) else _SPARKS[READABLE[name]]
