"""Reads an Iceberg table in Spark by Iceberg's own runtime, without a catalog: python FILE JAR METADATA SNAPSHOT WHERE.

Prints one JSON object: the rows where WHERE is true, each with its times in milliseconds, how many of the table's files
were not looked into for them, and how many rows an earlier snapshot has.
"""

from __future__ import annotations

import json
import sys
import tempfile

from pyspark.sql import SparkSession


def main(jar: str, metadata: str, snapshot: str, where: str) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory(prefix="sluice_") as folder:
        options = {
            "spark.jars": jar,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.local.dir": folder,
            "spark.sql.session.timeZone": "UTC",
        }
        builder = SparkSession.builder.master("local[2]")
        for name, value in options.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        table = spark.read.format("iceberg").load(metadata)
        rows = table.where(where).selectExpr("payload", "unix_millis(publish_time)", "unix_millis(deliver_at)")
        found = sorted((int(bytes(row[0])), row[1], row[2]) for row in rows.collect())
        scan = rows._jdf.queryExecution().executedPlan().collectLeaves().head()
        told = {
            "rows": found,
            "skipped": scan.metrics().apply("skippedDataFiles").value(),
            "earlier": spark.read.format("iceberg").option("versionAsOf", snapshot).load(metadata).count(),
        }
        spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
