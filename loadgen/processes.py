"""Consumers of the flood as Ray actors: never restarted by Ray, ended by handle and by nothing else.

Ray is imported only when it is used, because the broker's package sets up Ray's environment and must come first.
"""

from __future__ import annotations

import contextlib
from typing import Any

from loadgen.consume import ConsumeJob, FloodConsumer


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
