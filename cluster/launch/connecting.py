"""Finds or starts a cluster, and makes a client of it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cluster.base.extras import named_extras
from sluice.storage.errors import Invalid

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client


@named_extras()
def connect(
    address: str | None = None,
    *,
    data_dir: str | Path | None = None,
    embedded: bool = False,
    pulsar_port: int | None = None,
) -> Client:
    """A client of the cluster at `address` (`host:port` of Ray's head).

    Without an address: the cluster that this process or its parents run in, else the one that `./sluice up` left
    running for `data_dir`, else, in a program that uses Ray already, one in its Ray cluster that lives as long as that,
    else a new local one that lives as long as the client. Raises Unavailable, Invalid.

    embedded: a cluster of its own in this very process, without Ray, that lives as long as the client. It keeps its
    data in `data_dir`, where any cluster finds it again; without one in a temporary folder, which is removed.
    pulsar_port: with `embedded`, the port where clients of Apache Pulsar connect to it; 0 chooses a free one, and
    `client.pulsar_service_url` says which.
    """
    folder = None if data_dir is None else Path(data_dir)
    if embedded:
        if address is not None:
            raise Invalid("a cluster in this process has no address; give embedded or an address, not both")
        from sluice.cluster.launch import embedded as in_process

        return in_process.connect(folder, pulsar_port=-1 if pulsar_port is None else pulsar_port)
    if pulsar_port is not None:
        raise Invalid("pulsar_port is for a cluster in this process: give embedded=True, or `./sluice up` its own")
    from sluice.cluster.launch import standalone
    from sluice.cluster.launch.discovery import find

    if "SLUICE_INTERNAL_ADDRESS" not in os.environ and (client := standalone.join(folder, address)) is not None:
        return client
    found = find(folder)
    if address is not None or found is not None:
        return _join(folder, address, found)
    from sluice.cluster.client.client import Client
    from sluice.cluster.launch import launch

    cleanup = contextlib.ExitStack()
    if _uses_ray():
        launch.inside(folder or Path("sluice-data"))
    else:
        cleanup.enter_context(launch.local(folder or Path("sluice-data")))
    return Client(cleanup)


def _join(folder: Path | None, address: str | None, found: tuple[str, Path | None] | None) -> Client:
    """A client of a cluster that runs: through its door, or else attached to its Ray. found: as discovery.find says."""
    from sluice.cluster.client.client import Client
    from sluice.cluster.launch import naming

    known, token_file = found or ("", None)
    inherited = os.environ.get("SLUICE_INTERNAL_DATA_DIR")
    at = folder or Path(inherited or "sluice-data")
    net = naming.through(at, address or known)
    if net is None:
        from sluice.cluster.launch.attach import join, require_sluice

        attached = _uses_ray()
        join(address or known, token_file)
        if address is not None:
            require_sluice(address, leave=not attached)
    return Client(None, net)


def _uses_ray() -> bool:
    """Whether this program has attached itself to a Ray cluster; without importing Ray for the question."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
