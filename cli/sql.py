"""`sluice sql`: a query over topics, answered by Spark."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from sluice.cli.options import AddressOption, DataDirOption, JsonOption
from sluice.cli.output import show
from sluice.cli.target import joined
from sluice.cluster.base.extras import require

History = Literal["auto", "only", "off"]


def sql(
    query: Annotated[str, typer.Argument(help='As "SELECT count(*) FROM orders"; a topic is a table.')],
    history: Annotated[
        History, typer.Option(help="only: what is in the object store, without a broker. off: all from the brokers.")
    ] = "auto",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only what was published from then on: 2026-11-24T12:00:00Z.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only what was published before.")] = "",
    key: Annotated[str, typer.Option("--key", "-k", help="Only messages with this key.")] = "",
    address: AddressOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Answer a SQL query over topics, as of now, with a Spark that is started for it.

    What is in the object store is read there, and the rest from the brokers. Columns: key, payload, publish_time,
    properties and others; docs/history.md has them all.
    """
    require("a query", "pyspark")
    from sluice.cluster.history.scan import StoreUrls, stored_topics
    from sluice.cluster.settings.config import load
    from sluice.loadgen.spark.log_read import ONLY
    from sluice.loadgen.spark.sql import query as answer

    values = load(None, address=address, data_dir=data_dir).values
    settings = values.cluster_options().settings()
    urls = StoreUrls(settings["metadata"], settings["objects"], settings["s3_endpoint_url"])
    if history == ONLY:
        topics = stored_topics(urls)
    else:
        with joined(address, data_dir) as client:
            topics = [row["topic"] for row in client.topics()]
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
    show(answer(query, topics, options), json)
