"""The flood's processes on Ray: its consumers, never restarted by Ray and ended by handle, and the broker's memory.

Ray is imported only when it is used, because the broker's package sets up Ray's environment and must come first.
"""

from __future__ import annotations

import contextlib
from typing import Any

from loadgen.consume import ConsumeJob, FloodConsumer
from loadgen.memory import SHARED

_ASK_S = 1.0


class RayConsumer:
    """A FloodConsumer in a process of its own; a loadgen.faults.Handle.

    The actor takes part in no placement (no cpu) and answers several calls at once.
    """

    def __init__(self, job: ConsumeJob) -> None:
        import ray

        actor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=4)(FloodConsumer)
        self._actor: Any = actor.remote(job)

    def ready(self, timeout_s: float) -> int:
        """Wait until the process is up; its process id."""
        import ray

        return int(ray.get(self._actor.ready.remote(), timeout=timeout_s))

    def start(self, incarnation: str, consumer_name: str) -> None:
        """Join the subscription and begin to work."""
        import ray

        ray.get(self._actor.start.remote(incarnation, consumer_name), timeout=30)

    def stop(self, timeout_s: float) -> None:
        """Leave cleanly and wait for it."""
        import ray

        ray.get(self._actor.stop.remote(timeout_s - 2), timeout=timeout_s)

    def end(self) -> None:
        """End the process if it still lives."""
        import ray

        with contextlib.suppress(Exception):
            ray.kill(self._actor)


class BrokerMemory:
    """Asks the broker's processes, wherever they run, and Ray for the shared memory; a loadgen.memory.Source."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._handles: dict[str, Any] = {}

    def __call__(self) -> list[tuple[str, str, int]]:
        """What answered within a second. Raises SluiceError if the controller does not answer."""
        import ray
        from ray.exceptions import RayError

        found: list[tuple[str, str, int]] = []
        with contextlib.suppress(RayError):
            free, total = (
                told.get("object_store_memory", 0) for told in (ray.available_resources(), ray.cluster_resources())
            )
            found.append((SHARED, "object store", int(total - free)))
        for host, answer in self._ask(ray):
            with contextlib.suppress(RayError):
                usage = ray.get(answer, timeout=0)
                found.append((host.partition("-")[0], host, int(usage["rss"] - usage["shared"])))
        return found

    def _ask(self, ray: Any) -> list[tuple[str, Any]]:
        from cluster.environment import NAMESPACE

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
