"""Spark's own doors while a session runs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.session import SparkStart
from tests.cluster.helpers import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_no_port_but_loopback_is_open(spark: Any) -> None:
    """Of the Java process and of Python's workers; and who connects to Spark's own ports needs the session's secret."""
    rows = spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
    found = [place for process in psutil.Process().children(recursive=True) for place in _listening(process)]
    assert rows == 10
    assert found
    assert {host for host, _ in found} <= {"127.0.0.1", "::1"}, found
    assert spark.conf.get("spark.authenticate") == "true"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("launched", [False, True])
def test_a_start_that_is_given_up_ends(tmp_path: Path, launched: bool) -> None:
    """Whether Java is not launched yet, or is being launched: nothing hangs, and nothing runs on."""
    start = SparkStart(tmp_path)
    if launched:
        eventually(lambda: start.up or _launched(), "Java is not launched")
    start.close()
    assert not _launched()


def _launched() -> list[str]:
    """Command lines of the Java processes that are being launched for Spark."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            found += [word for word in process.cmdline() if "SparkSubmit" in word or "spark-submit" in word]
    return found


def _listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Addresses of TCP sockets that listen and of UDP sockets."""
    with contextlib.suppress(psutil.Error):
        return [
            (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
            for each in process.net_connections("inet")
            if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
        ]
    return []
