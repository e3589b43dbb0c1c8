"""A program that holds the interpreter's lock in one long call: it is not heard, and loses its keys."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import sluice
from sluice.cluster.launch import launch, standalone
from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT, eventually, values

pytestmark = pytest.mark.timeout(300)

HOLDER = """
import ctypes, pathlib, sys, time
import sluice

folder = pathlib.Path(sys.argv[1])
with sluice.connect(data_dir=folder) as client:
    consumer = client.subscribe("orders", "billing", consumer_name="holder", initial_position="earliest")
    message = consumer.receive(60_000)
    (folder / "held").touch()
    ctypes.PyDLL(None).sleep(600)
"""
"""A call into C by `PyDLL` keeps the lock: no thread of this process runs meanwhile."""


def test_program_that_keeps_the_lock_loses_its_keys(tmp_path: Path) -> None:
    standalone.up(values(tmp_path))
    child = None
    try:
        with sluice.connect(data_dir=tmp_path) as client:
            client.create_topic("orders")
            client.subscribe("orders", "billing", initial_position="earliest", lease_ms=2_000).close()
            with client.create_producer("orders") as producer:
                producer.send(b"1", partition_key="k")
            child = subprocess.Popen([PYTHON, "-c", HOLDER, str(tmp_path)], cwd=ROOT)
            eventually((tmp_path / "held").exists, lambda: f"nothing is held: {child.poll()}")
            assert client.subscribe("orders", "billing").receive(round(PATIENCE_S * 1000)).data() == b"1"
            assert child.poll() is None, "it lives, and is not heard"
    finally:
        if child is not None:
            child.kill()
            child.wait(PATIENCE_S)
        launch.down(tmp_path)
