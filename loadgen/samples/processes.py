"""Asks the broker's processes on Ray how much memory they take.

Ray is imported only when it is used, because the broker's package sets up Ray's environment and must come first.
"""

from __future__ import annotations

import contextlib
from typing import Any

from sluice.loadgen.samples.memory import SHARED

_ASK_S = 1.0


class BrokerMemory:
    """Asks the broker's processes, wherever they run, and Ray for the shared memory; a
    loadgen.samples.memory.Source."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._handles: dict[str, Any] = {}

    def __call__(self) -> list[tuple[str, str, int]]:
        """The processes that answered within a second. Raises SluiceError if the controller does not answer."""
        import ray
        from ray.exceptions import RayError

        found: list[tuple[str, str, int]] = []
        with contextlib.suppress(RayError):
            free, total = (
                resources.get("object_store_memory", 0)
                for resources in (ray.available_resources(), ray.cluster_resources())
            )
            found.append((SHARED, "object store", int(total - free)))
        for host, answer in self._ask(ray):
            with contextlib.suppress(RayError):
                usage = ray.get(answer, timeout=0)
                found.append((host.partition("-")[0], host, int(usage["rss"] - usage["shared"])))
        return found

    def _ask(self, ray: Any) -> list[tuple[str, Any]]:
        from sluice.cluster.node.environment import NAMESPACE

        addresses = {row["address"].partition("/")[0] for row in self._client.status()["actors"]}
        hosts = sorted((addresses - {""}) | {"controller"})
        asked = []
        for host in hosts:
            # A host that is just being replaced is not known any more.
            with contextlib.suppress(ValueError):
                handle = self._handles.get(host) or ray.get_actor(host, NAMESPACE)
                self._handles[host] = handle
                asked.append((host, handle.usage.remote()))
        self._handles = {host: handle for host, handle in self._handles.items() if host in hosts}
        answered, _ = ray.wait([one for _, one in asked], num_returns=len(asked), timeout=_ASK_S) if asked else ([], [])
        return [(host, one) for host, one in asked if one in set(answered)]
