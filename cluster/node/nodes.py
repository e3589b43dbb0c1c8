"""Starts Ray nodes that outlive the command, and ends them cleanly.

`ray start` makes them; every process of a node carries the session's own temporary folder on its command line or is a
child of one that does, so they can be ended by process id, one by one, and nothing else on the machine is touched
(`ray stop` would end every Ray process there is).
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from typing import Any

from sluice.cluster.node.environment import LOOPBACK, ray_folder
from sluice.cluster.node.sessions import stop_session
from sluice.storage.errors import Unavailable

START_TIMEOUT = 180.0
START_TRIES = 3

RAY_COMMAND = """
import sys
sys.modules["ray.serve.scripts"] = None
from ray.scripts import scripts
class Constants:
    ENABLE_RAY_CLUSTER = True
    def __getattr__(self, name):
        return getattr(plain, name)
plain, scripts.ray_constants = scripts.ray_constants, Constants()
scripts.get_ray_client_dependency_error = lambda: "nothing needs it"
from sluice.cluster.node.minimal_ray import bare_nodes
with bare_nodes():
    scripts.main()
"""
"""The `ray` command. The switch that keeps Ray on the loopback makes the command refuse a second node, and nothing
else: the nodes themselves work. So only the command gets the switch as off. It would also open a port for Ray's remote
clients, which nothing here uses, if it did not believe that they cannot be served. Ray Serve, whose command Ray adds
where it can, takes longer to import than the rest of the command.
"""

SLOW_START = "timed out during startup"
"""What Ray says when a node was not there in time, which happens on a busy machine. Then it is tried again."""


def start_head(session: str, *, cpus: int | None, object_store_bytes: int) -> str:
    """Start a head node on the loopback; returns its address `host:port`. Raises Unavailable with Ray's own words."""
    port = free_port()
    _ray_start(
        session,
        "--head",
        f"--port={port}",
        "--include-dashboard=false",
        "--no-monitor",
        f"--temp-dir={ray_folder(session)}",
        f"--num-cpus={cpus or os.cpu_count()}",
        f"--object-store-memory={object_store_bytes}",
    )
    return f"{LOOPBACK}:{port}"


def add_node(session: str, address: str, *, cpus: int | None = None, object_store_bytes: int) -> None:
    """Start one more node on this machine and join it to the cluster at `address`.

    Ray starts as many workers of a node at a time as it has processors; with one, a broker would wait in line.
    """
    cpus = cpus or os.cpu_count() or 1
    _ray_start(session, f"--address={address}", f"--num-cpus={cpus}", f"--object-store-memory={object_store_bytes}")


def _ray_start(session: str, *arguments: str) -> None:
    # Workers listen on ports that the system chooses: two raylets on one machine would deal out the same range.
    # Nobody asked for an autoscaler, and nobody reads the workers' logs from afar.
    fixed = (
        "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false", "--disable-usage-stats",
    )  # fmt: skip
    command = [sys.executable, "-c", RAY_COMMAND, "start", f"--node-ip-address={LOOPBACK}", *fixed, *arguments]
    environment = {**os.environ, "RAY_TMPDIR": session}
    for left in reversed(range(START_TRIES)):
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=START_TIMEOUT,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Ray did not start within {START_TIMEOUT:.0f} s") from None
        if not done.returncode:
            return
        words = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr or done.stdout).strip().splitlines()
        if not left or SLOW_START not in done.stderr + done.stdout:
            raise Unavailable(f"Ray did not start: {words[-1] if words else f'exit code {done.returncode}'}")
        if "--head" in arguments:
            stop_session(session)  # what is left of a head would not let another one in


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def known_nodes() -> list[dict[str, Any]]:
    """Every node of the Ray cluster that this process is attached to, also the lost; none if it is attached to none."""
    if "ray" not in sys.modules:  # a cluster in one process has none
        return []
    import ray

    if not ray.is_initialized():
        return []
    return [
        {"node": node["NodeID"][:12], "address": node["NodeManagerAddress"], "alive": node["Alive"]}
        for node in ray.nodes()
    ]
