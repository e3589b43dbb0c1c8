"""Answers a SQL query about topics with a Spark of its own: each topic that the query names is a table.

A table has the columns of cluster.bulk.READABLE, with times as timestamps. Keys and payloads are bytes, as they were
published: `cast(key as string)` is text.

Spark does not tell a data source which columns a query uses. So a table gets only those columns whose names stand
somewhere in the query, which is never too few: one that is not named is only used by a star, which means all.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from cluster.bulk import READABLE, TIMES
from cluster.java import ensure_java
from loadgen.datasource import SluiceDataSource
from loadgen.session import cause_of, spark_session
from storage.errors import Invalid

_STAR = re.compile(r"(?<!count\()\*", re.IGNORECASE)
_SPARKS = {pa.binary(): "binary", pa.int64(): "long", pa.int32(): "int"}


def query(text: str, topics: Iterable[str], options: Mapping[str, str], *, cores: int = 2) -> list[dict[str, Any]]:
    """The rows of the answer. topics: of which those that the query names are tables. options: of a read.

    Raises Invalid if Spark cannot answer it.
    """
    import os

    os.environ.update(ensure_java())
    with tempfile.TemporaryDirectory(prefix="sluice-sql-") as folder, spark_session(Path(folder), cores=cores) as spark:
        from pyspark.errors import PySparkException

        spark.dataSource.register(SluiceDataSource)
        try:
            for topic in (topic for topic in topics if _names(text, topic)):
                frame = spark.read.format("sluice").schema(table_schema(text)).options(topic=topic, **options).load()
                frame.createOrReplaceTempView(f"`{topic}`")
            return [row.asDict() for row in spark.sql(text).collect()]
        except PySparkException as error:
            raise Invalid(f"the query has no answer: {cause_of(error)}") from None


def table_schema(text: str) -> str:
    """The columns that a query may use, in Spark's words; at least one."""
    star = _STAR.search(text) is not None
    wanted = [name for name in READABLE if star or _names(text, name)]
    return ", ".join(f"`{name}` {_type(name)}" for name in wanted or ["entry"])


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE) is not None


def _type(name: str) -> str:
    if name in TIMES:
        return "timestamp"
    return "map<string, string>" if pa.types.is_map(READABLE[name]) else _SPARKS[READABLE[name]]
