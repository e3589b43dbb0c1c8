"""Which port Pulsar's clients connect to, as the gateway left it in the data folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cluster.environment import LOOPBACK
from storage.errors import Unavailable

PORT_FILE = "pulsar-port"


def port_of(data_dir: Path) -> int:
    """The port, 0 if none serves Pulsar's clients."""
    with contextlib.suppress(OSError, ValueError):
        return int((data_dir / PORT_FILE).read_text())
    return 0


def service_url(data_dir: Path, wanted: int) -> str:
    """What clients are given. Raises Unavailable if the wanted port could not be had."""
    port = port_of(data_dir)
    if not port:
        raise Unavailable(f"port {wanted} is in use, and no Pulsar client can connect; give another pulsar_port")
    return f"pulsar://{LOOPBACK}:{port}"


def pulsar_of(data_dir: Path, wanted: int) -> dict[str, str]:
    """What the answer to who starts a cluster says of it: nothing if no client was to be served."""
    if wanted < 0:
        return {}
    return {"pulsar": _told(wanted, port_of(data_dir))}


def _told(wanted: int, port: int) -> str:
    if port:
        return f"clients of Apache Pulsar connect to pulsar://{LOOPBACK}:{port}"
    return (
        f"no client of Apache Pulsar can connect: port {wanted} is in use; choose another with --set pulsar_port=PORT"
    )
