"""Finds or starts a cluster, and makes a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cluster.base.extras import named_extras
from sluice.cluster.base.version import COMMAND
from sluice.storage.errors import Invalid

if TYPE_CHECKING:
    from sluice.cluster.client.async_client import AsyncClient
    from sluice.cluster.client.client import Client
    from sluice.cluster.wire.net import DirectNet

MOST_PORT = 65535


@named_extras()
def connect(
    address: str | None = None,
    *,
    data_dir: str | Path | None = None,
    embedded: bool = False,
    pulsar_port: int | None = None,
    admin_port: int | None = None,
) -> Client:
    """A client of the cluster at `address` (`host:port` of Ray's head).

    Without an address: the cluster that this process or its parents run in, else the one that `./sluice up` left
    running for `data_dir`, else, in a program that uses Ray already, one in its Ray cluster that lives as long as that,
    else a new local one that lives as long as the client. Raises Unavailable, Invalid.

    embedded: a cluster of its own in this very process, without Ray, that lives as long as the client. It keeps its
    data in `data_dir`, where any cluster finds it again; without one in a temporary folder, which is removed.
    pulsar_port: with `embedded`, the port where clients of Apache Pulsar connect to it; 0 chooses a free one, and
    `client.pulsar_service_url` says which. admin_port: with `embedded`, the port of the live page and of `/metrics`
    for Prometheus; 0 chooses a free one, and the files `admin-port` and `admin-token` in `data_dir` say which and how.
    """
    folder = None if data_dir is None else Path(data_dir)
    ports = _ports(address, embedded, folder, pulsar_port=pulsar_port, admin_port=admin_port)
    if embedded:
        from sluice.cluster.launch import embedded as in_process

        return in_process.connect(folder, **ports)
    from sluice.cluster.client.client import Client

    cleanup = contextlib.ExitStack()
    return Client(cleanup, _reached(cleanup, folder, address))


async def connect_async(
    address: str | None = None,
    *,
    data_dir: str | Path | None = None,
    embedded: bool = False,
    pulsar_port: int | None = None,
    admin_port: int | None = None,
) -> AsyncClient:
    """The same for an asyncio program: the client runs in the event loop of its caller, without a thread of its own.

    Imports, files and Ray's start are looked after in another thread, and the loop goes on meanwhile.
    """
    folder = None if data_dir is None else Path(data_dir)
    ports = _ports(address, embedded, folder, pulsar_port=pulsar_port, admin_port=admin_port)
    if embedded:
        in_process = await asyncio.to_thread(import_module, "sluice.cluster.launch.embedded")
        client: AsyncClient = await in_process.connect_async(folder, **ports)
        return client
    files, cleanup = contextlib.ExitStack(), contextlib.AsyncExitStack()
    cleanup.push_async_callback(asyncio.to_thread, files.close)
    try:
        made = await asyncio.to_thread(import_module, "sluice.cluster.client.async_client")
        base = await asyncio.to_thread(import_module, "sluice.cluster.base.loop")
        net = await base.carried_out(lambda: _reached(files, folder, address))
    except BaseException:
        await cleanup.aclose()
        raise
    joined: AsyncClient = made.AsyncClient(base.CallersLoop(), net, cleanup)
    return joined


def _ports(address: str | None, embedded: bool, folder: Path | None, **given: int | None) -> dict[str, int]:
    """Return the ports that were given. Raises Invalid for arguments that exclude each other."""
    ports = {name: port for name, port in given.items() if port is not None}
    if embedded and address is not None:
        raise Invalid("a cluster in this process has no address; give embedded or an address, not both")
    if embedded and "admin_port" in ports and folder is None:
        raise Invalid("admin_port needs a data_dir: the token that opens it is the content of admin-token there")
    if not embedded and ports:
        name = next(iter(ports))
        raise Invalid(f"{name} is for a cluster in this process: give embedded=True, or `{COMMAND} up` its own")
    return {name: _port(name, port) for name, port in ports.items()}


def _reached(cleanup: contextlib.ExitStack, folder: Path | None, address: str | None) -> DirectNet:
    """Find or start a cluster; what reaches it. cleanup: ends what was started for this client."""
    from sluice.cluster.launch import standalone
    from sluice.cluster.launch.discovery import find
    from sluice.cluster.wire.net import DirectNet

    if "SLUICE_INTERNAL_ADDRESS" not in os.environ and (net := standalone.net_to(folder, address)) is not None:
        return net
    found = find(folder)
    if address is not None or found is not None:
        return _join(folder, address, found)
    from sluice.cluster.base.forks import ended_at_exit
    from sluice.cluster.launch import launch

    if _uses_ray():
        launch.inside(folder or Path("sluice-data"))
    else:
        cleanup.enter_context(launch.local(folder or Path("sluice-data")))
        cleanup.enter_context(ended_at_exit(cleanup))
    return DirectNet()


def _port(name: str, port: object) -> int:
    """A port as it was given; -1 as `pulsar_port` is none. Raises Invalid."""
    least = -1 if name == "pulsar_port" else 0
    if not isinstance(port, int) or isinstance(port, bool) or not least <= port <= MOST_PORT:
        raise Invalid(f"{name} is a number from {least} to {MOST_PORT}, not {port!r}")
    return port


def _join(folder: Path | None, address: str | None, found: tuple[str, Path | None] | None) -> DirectNet:
    """Reach a cluster that runs: through its door, or else attached to its Ray. found: as discovery.find says."""
    from sluice.cluster.launch import naming
    from sluice.cluster.wire.net import DirectNet

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
    return net or DirectNet()


def _uses_ray() -> bool:
    """Whether this program has attached itself to a Ray cluster; without importing Ray for the question."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
