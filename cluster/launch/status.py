"""The report of `./sluice status` on a running cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cluster.base.version import COMMAND
from sluice.cluster.client.alarms import alarms_of
from sluice.cluster.launch.connecting import connect
from sluice.cluster.launch.discovery import find
from sluice.cluster.node.nodes import known_nodes
from sluice.storage.errors import Unavailable

if TYPE_CHECKING:
    from sluice.cluster.settings.config import Configuration


def describe(values: Configuration) -> dict[str, Any]:
    """Nodes, actors, topics and alarms of the running cluster. Raises Unavailable if there is none.

    Where the data is, the cluster itself says; the caller's own configuration may name other places. None stands for
    what it does not say, as one does that an earlier version started.
    """
    found = (values.address, None) if values.address else find(values.data_dir)
    if found is None:
        raise Unavailable(f"no cluster is running on {values.data_dir.absolute()}; start one with `{COMMAND} up`")
    with connect(found[0], data_dir=values.data_dir) as client:
        answer = client.status()
        topics = client.topics()
    nodes = known_nodes()
    storage = answer.get("storage", {})
    return {
        "address": found[0],
        "controller": answer["controller"].partition("/")[0],
        "controller_machine": _address(nodes, answer.get("controllerNode")),
        "data_dir": storage.get("data_dir"),
        "free_bytes": _free_bytes(storage.get("data_dir")),
        "metadata": storage.get("metadata"),
        "objects": storage.get("objects"),
        "underReplicated": answer["underReplicated"],
        "alarms": alarms_of(answer),
        "nodes": [{**node, "drained": _is_one_of(node, answer.get("drained", []))} for node in nodes],
        "actors": answer["actors"],
        "topics": topics,
    }


def _address(nodes: list[dict[str, Any]], node: str | None) -> str | None:
    """The address of one of these, by its id; None if it is none of them."""
    return next((each["address"] for each in nodes if node and node.startswith(each["node"])), None)


def _free_bytes(data_dir: str | None) -> int | None:
    """Free bytes at the cluster's data folder; None if that folder is not on this machine."""
    return shutil.disk_usage(data_dir).free if data_dir and Path(data_dir).exists() else None


def _is_one_of(node: dict[str, Any], drained: list[str]) -> bool:
    return any(each.startswith(node["node"]) for each in drained)
