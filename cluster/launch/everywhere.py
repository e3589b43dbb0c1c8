"""Recordings of all machines of a running cluster, for a program outside of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.cluster.client.async_client import AsyncClient
from sluice.cluster.launch.connecting import connect
from sluice.cluster.launch.gathering import gather, hosts_of


@contextmanager
def gathered(address: str, data_dir: Path) -> Iterator[Path]:
    """A temporary data folder with the recordings of all machines of a running cluster. Raises Unavailable, Invalid."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-gathered-") as folder,
        connect(address, data_dir=data_dir) as client,
    ):
        client.run(_gather, Path(folder))
        yield Path(folder)


async def _gather(client: AsyncClient, into: Path) -> None:
    hosts = hosts_of(await client.status())
    await gather(client.net, hosts, into)
