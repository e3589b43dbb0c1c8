"""Callers that each send one message, wait for its confirmation, and send the next, with Pulsar's Python client.

    .venv/bin/python benchmarks/callers.py [--callers 1,4,16,64] [--topics] [--pulsar FOLDER]

The broker is `sluice up --embedded`: one process, two copies, each synced to disk before a message is confirmed.
--pulsar adds Pulsar standalone from its unpacked distribution, one copy, its journal synced. All callers are threads of
this process and share a topic of 4 partitions; --topics gives a topic of one partition to each. Messages have 100 bytes
and keys at random. Rounds alternate between the brokers, and the figures are medians of the rounds: messages/s, ms until
confirmed, and processor time of the broker a message. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._peer_servers import Missing, PulsarSide, Side, _free_port, _need, _until
from sluice.cluster.base.arguments import ArgumentParser, amount, count

PARTITIONS = 4
KEYS = 1_000
Figures = dict[str, float]


class EmbeddedSide(Side):
    """A broker that `sluice up --embedded` starts."""

    def start(self) -> None:
        """See Side."""
        _need("pulsar")
        ports = [_free_port(), _free_port()]
        self.url = f"pulsar://127.0.0.1:{ports[0]}"
        command = [str(self.python), "-m", "sluice.cli.app", "up", "--embedded", "--data-dir", str(self.folder / "data")]
        command += ["--pulsar-port", str(ports[0]), "--port", str(ports[1])]
        process = self._run(command, self.folder / "log", stdout=subprocess.DEVNULL)
        _until(lambda: _listens(ports[0]), process, self.folder / "log")


def _listens(port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
