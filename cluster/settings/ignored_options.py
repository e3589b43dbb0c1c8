"""Which options of `up` have no effect because the cluster runs already.

A running cluster keeps what it was started with; only bookies and nodes are added. The options of the start stand in
the state file, so that the difference can be named in place of being passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sluice.cluster.node.sessions import count_nodes

if TYPE_CHECKING:
    from sluice.cluster.settings.options import ClusterOptions

_PLACES = ("data_dir", "cluster")
"""What names the cluster and is no property of it."""


def as_stored(options: ClusterOptions) -> dict[str, Any]:
    """The options as they go into the state file."""
    return {name: value for name, value in asdict(options).items() if name not in _PLACES}


def note(state: dict[str, Any], options: ClusterOptions, nodes: int, *, fresh: bool) -> dict[str, list[Any]]:
    """Keep in the state what the cluster has from now on; returns the options that have no effect (see `kept`)."""
    if fresh:
        state["options"] = as_stored(options)
        return {}
    stored = state.setdefault("options", {})
    running = count_nodes(state["session"]) if state["session"] else nodes
    without_effect = kept(stored, options, (running, nodes))
    stored["bookies"] = max(options.bookies, stored.get("bookies", 0))
    return without_effect


def kept(stored: Mapping[str, Any], options: ClusterOptions, nodes: tuple[int, int]) -> dict[str, list[Any]]:
    """By option without effect: the value of the cluster, and the requested one.

    stored: the options of the start, empty if they are not known. nodes: how many run, how many were asked for. More
    bookies or nodes are no such option: they are added.
    """
    wanted = as_stored(options)
    differ = {
        name: [stored[name], value]
        for name, value in wanted.items()
        if name in stored and stored[name] != value and not (name == "bookies" and value > stored[name])
    }
    return differ | ({"nodes": list(nodes)} if nodes[1] < nodes[0] else {})
