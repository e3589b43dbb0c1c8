"""A Spark stream from one topic into another: of all readings of all machines, those that are too hot.

    .venv/bin/python examples/alarms.py

Needs a Java for Spark. The topics live in a Ray cluster on this machine, which this program starts and ends; with one
that `./sluice up` started, the address would be that one's.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import sluice
from sluice.cluster.launch import launch
from sluice.loadgen.spark.datasource import SluiceDataSource
from sluice.loadgen.spark.session import spark_session

READINGS = [("press", 61), ("oven", 95), ("press", 83), ("oven", 70), ("oven", 99), ("press", 64)]
HOT = 80


def start(spark: Any, folder: Path, place: dict[str, str]) -> Any:
    """The query. Its checkpoint and its spool let it go on after a crash without a loss or a repetition."""
    spark.dataSource.register(SluiceDataSource)
    source = {"topic": "readings", "subscription": "alarms", "spool": str(folder / "spool")}
    readings = spark.readStream.format("sluice").options(**source, **place).load()
    hot = readings.selectExpr("key", "payload").where(f"cast(cast(payload as string) as int) > {HOT}")
    into = hot.writeStream.format("sluice").options(topic="alarms", **place)
    return into.option("checkpointLocation", str(folder / "checkpoint")).start()


def main() -> None:
    """Publish readings, and print the alarms that Spark makes of them."""
    with tempfile.TemporaryDirectory() as temporary, launch.local(Path(temporary) / "data") as running:
        folder = Path(temporary)
        place = {"address": running.address, "tokenFile": os.environ["RAY_AUTH_TOKEN_PATH"]}
        with sluice.connect(running.address) as client, spark_session(folder / "spark") as spark:
            client.create_topic("readings", partitions=2)
            client.create_topic("alarms", partitions=2)
            query = start(spark, folder, place)
            with client.create_producer("readings") as producer:
                for machine, degrees in READINGS:
                    producer.send(str(degrees), partition_key=machine)
            with client.subscribe("alarms", "operator", initial_position="earliest") as consumer:
                for _ in range(sum(degrees > HOT for _, degrees in READINGS)):
                    message = consumer.receive(timeout_millis=600_000)
                    print(f"alarm: {message.partition_key()} has {message.data().decode()} degrees")
                    consumer.acknowledge(message)
                consumer.wait_acknowledged()
            query.stop()


if __name__ == "__main__":
    main()
