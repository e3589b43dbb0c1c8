"""Spark's own doors while a session runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.loadgen.spark.session import SparkStart
from tests.cluster.helpers import PYTHON, ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_no_port_but_loopback_is_open(spark: Any) -> None:
    """Ports of the Java process and of Python's workers count; a client of Spark's own ports needs the session's
    secret.
    """
    rows = spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
    found = [place for process in psutil.Process().children(recursive=True) for place in _listening(process)]
    assert rows == 10
    assert found
    assert {host for host, _ in found} <= {"127.0.0.1", "::1"}, found
    assert spark.conf.get("spark.authenticate") == "true"


GIVEN_UP = """
import sys, time
from pathlib import Path
from sluice.loadgen.spark.session import SparkStart, launched
start = SparkStart(Path(sys.argv[1]))
while sys.argv[2] == "launched" and not start.up and not launched():
    time.sleep(0.01)
start.close()
print(len(launched()))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["at once", "launched"])
def test_a_start_that_is_given_up_ends(tmp_path: Path, when: str) -> None:
    """Whether Java is not launched yet, or is being launched: nothing hangs, and nothing runs on."""
    command = [PYTHON, "-c", GIVEN_UP, str(tmp_path), when]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr


WRONG_QUERY = """
from sluice.loadgen.spark.sql import query
from sluice.storage.errors import Invalid
try:
    query("SELECT nope FROM nowhere", [], {})
except Invalid as error:
    print(error)
"""


@pytest.mark.timeout(600)
def test_a_wrong_query_is_told_in_one_line() -> None:
    command = [PYTHON, "-c", WRONG_QUERY]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    assert ran.stdout.startswith("the query has no answer: [TABLE_OR_VIEW_NOT_FOUND]"), ran.stderr
    assert (ran.stdout.count("\n"), ran.stderr) == (1, "")


OWN_SPARK = """
import os
from sluice.loadgen.spark.java import ensure_java
os.environ.update(ensure_java())
from pyspark.sql import SparkSession
from sluice.loadgen.spark.datasource import SluiceDataSource
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(SluiceDataSource)
try:
    spark.read.format("sluice").options(topic="t", startingOfsets="latest").load().count()
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.timeout(600)
def test_workers_run_the_python_of_a_program_of_its_own(tmp_path: Path) -> None:
    """No environment is activated, and the first python3 on PATH has none of the packages."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    env = kept | {"PATH": f"{tmp_path}:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [PYTHON, "-c", OWN_SPARK]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT, env=env)
    assert "did you mean 'startingOffsets'" in ran.stdout, ran.stdout + ran.stderr[-3000:]


def test_a_start_that_is_given_up_leaves_others_alone(spark: Any, tmp_path: Path) -> None:
    start = SparkStart(tmp_path)  # fails or not: this process has a Spark already
    start.close()
    assert spark.range(10).count() == 10


def _listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Addresses of TCP sockets that listen and of UDP sockets."""
    with contextlib.suppress(psutil.Error):
        return [
            (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
            for each in process.net_connections("inet")
            if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
        ]
    return []
