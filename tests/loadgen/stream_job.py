"""A Spark program that copies topics through streams, for the tests to kill: source -> middle -> sink.

The first query reads a stream into `foreachBatch`, which writes a batch under a name made of the micro-batch's number;
the second one writes a stream. Each has its checkpoint and its spool in the folder that is given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sluice.loadgen.spark.datasource import SluiceDataSource
from sluice.loadgen.spark.session import spark_session


def main(address: str, token_file: str, folder: Path) -> None:
    """Run both queries until one of them fails or the process is killed."""
    place = {"address": address, "tokenFile": token_file}

    def read(spark: Any, topic: str) -> Any:
        options = {"topic": topic, "subscription": "copy", "spool": str(folder / f"spool-{topic}")}
        return spark.readStream.format("sluice").options(**options, **place).load().select("key", "payload")

    def copy(frame: Any, batch: int) -> None:
        options = {"topic": "middle", "producer": f"copy-{batch}"}
        frame.write.format("sluice").options(**options, **place).mode("append").save()

    with spark_session(folder / "spark") as spark:
        spark.dataSource.register(SluiceDataSource)
        by_batch = read(spark, "source").writeStream.foreachBatch(copy)
        by_batch.option("checkpointLocation", str(folder / "checkpoint-source")).start()
        by_stream = read(spark, "middle").writeStream.format("sluice").options(topic="sink", **place)
        by_stream.option("checkpointLocation", str(folder / "checkpoint-middle")).start()
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
