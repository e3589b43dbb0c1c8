"""What `./sluice status` tells of a running cluster."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import cluster
from cluster.alarms import alarms_of
from cluster.discovery import find
from cluster.nodes import known_nodes
from storage.errors import Unavailable

if TYPE_CHECKING:
    from cluster.config import Configuration


def describe(values: Configuration) -> dict[str, Any]:
    """Nodes, actors, topics and alarms of the running cluster. Raises Unavailable if there is none."""
    found = (values.address, None) if values.address else find(values.data_dir)
    if found is None:
        raise Unavailable(f"no cluster is running on {values.data_dir}; start one with `./sluice up`")
    with cluster.connect(found[0], data_dir=values.data_dir) as client:
        answer = client.status()
        topics = client.topics()
    return {
        "address": found[0],
        "data_dir": str(values.data_dir.absolute()),
        "free_bytes": shutil.disk_usage(values.data_dir).free if values.data_dir.exists() else None,
        "objects": values.objects or (values.data_dir.absolute() / "objects").as_uri(),
        "underReplicated": answer["underReplicated"],
        "alarms": alarms_of(answer),
        "nodes": known_nodes(),
        "actors": answer["actors"],
        "topics": topics,
    }
