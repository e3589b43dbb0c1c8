"""Spark's own doors while a session runs."""

from __future__ import annotations

import contextlib
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_no_port_but_loopback_is_open(spark: Any) -> None:
    """Of the Java process and of Python's workers; and who connects to Spark's own ports needs the session's secret."""
    rows = spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
    found = [place for process in psutil.Process().children(recursive=True) for place in _listening(process)]
    assert rows == 10
    assert found
    assert {host for host, _ in found} <= {"127.0.0.1", "::1"}, found
    assert spark.conf.get("spark.authenticate") == "true"


def _listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Addresses of TCP sockets that listen and of UDP sockets."""
    with contextlib.suppress(psutil.Error):
        return [
            (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
            for each in process.net_connections("inet")
            if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
        ]
    return []
