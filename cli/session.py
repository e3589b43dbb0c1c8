"""The connection of one command: join the cluster that is running, and leave it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.storage.errors import Unavailable

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client


@contextmanager
def joined(address: str | None, data_dir: Path | None = None) -> Iterator[Client]:
    """A client of the running cluster, closed at the end: the one at this address, else the one of the data folder.

    Raises Unavailable if there is none: unlike `sluice.connect`, a command never starts one in passing, because it
    would end with the command.
    """
    import sluice
    from sluice.cluster.launch import discovery
    from sluice.cluster.settings.config import load

    values = load(None, address=address, data_dir=data_dir).values
    if values.address is None and discovery.find(values.data_dir) is None:
        raise Unavailable(f"no cluster is running on {values.data_dir}; start one with `./sluice up`")
    with sluice.connect(values.address, data_dir=values.data_dir) as client:
        yield client
