"""`sluice sql`: a query over topics, answered by DuckDB in this process, or by Spark."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any, Literal

import typer

from sluice.cli.output import show
from sluice.cli.target import Target, takes
from sluice.cluster.base.extras import require

History = Literal["auto", "only", "off"]
Engine = Literal["duckdb", "spark"]


@takes("json")
def sql(
    target: Target,
    query: Annotated[str, typer.Argument(help='As "SELECT count(*) FROM orders"; a topic is a table.')],
    history: Annotated[
        History, typer.Option(help="only: what is in the object store, without a broker. off: all from the brokers.")
    ] = "auto",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only what was published from then on: 2026-11-24T12:00:00Z.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only what was published before.")] = "",
    key: Annotated[str, typer.Option("--key", "-k", help="Only messages with this key.")] = "",
    engine: Annotated[
        Engine, typer.Option(help="duckdb: in this process, at once. spark: a Spark that is started for it.")
    ] = "duckdb",
) -> None:
    """Answer a SQL query over topics, as of now, with DuckDB.

    What is in the object store is read there, and the rest from the brokers. Columns: key, payload, publish_time,
    properties and others; docs/history.md has them all.
    """
    require("a query", "duckdb" if engine == "duckdb" else "pyspark")
    from sluice.cluster.history.log_read import ONLY
    from sluice.cluster.history.scan import StoreUrls, stored_topics
    from sluice.cluster.settings.config import load

    values = load(None, address=target.address, data_dir=target.data_dir).values
    settings = values.cluster_options().settings()
    urls = StoreUrls(settings["metadata"], settings["objects"], settings["s3_endpoint_url"])
    options = {
        "history": history,
        "startingTimestamp": since,
        "endingTimestamp": until,
        "key": key,
        "dataDir": settings["data_dir"],
        "metadata": urls.metadata,
        "objects": urls.objects,
        "s3EndpointUrl": urls.endpoint or "",
        "address": values.address or "",
    }
    with nullcontext() if history == ONLY else target.join() as client:
        topics = stored_topics(urls) if client is None else [row["topic"] for row in client.topics()]
        if engine == "duckdb":
            show(_answer(query, topics, options, client), target.json)
            return
    from sluice.loadgen.spark.sql import query as answer

    show(answer(query, topics, options), target.json)


def _answer(query: str, topics: list[str], options: dict[str, str], client: Any) -> list[dict[str, Any]]:
    from sluice.cluster.history.log_read import LogRead
    from sluice.cluster.history.sql import query as answer

    return answer(query, topics, lambda topic: LogRead.from_options(options, topic, lambda: nullcontext(client)))
