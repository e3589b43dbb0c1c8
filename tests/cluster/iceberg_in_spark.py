"""Reads an Iceberg table in Spark by Iceberg's own runtime, without a catalog: python FILE JAR METADATA SNAPSHOT.

Prints one JSON object: the rows of the table, and of an earlier snapshot, as Spark counts them.
"""

from __future__ import annotations

import json
import sys
import tempfile

from pyspark.sql import SparkSession


def main(jar: str, metadata: str, snapshot: str) -> None:
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
        told = {
            "rows": sorted(int(bytes(row.payload)) for row in table.select("payload").collect()),
            "files": table.select("_file").distinct().count(),
            "earlier": spark.read.format("iceberg").option("versionAsOf", snapshot).load(metadata).count(),
        }
        spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
