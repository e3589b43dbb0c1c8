"""Where workers run: as threads of this process, or as actors that Ray places.

Ray restarts no worker and repeats no call of one: the pool replaces a worker that died, under its name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from cluster.bootstrap.connecting import connect
from cluster.workers.message_worker import Handler, MessageWorker, WorkerReport
from cluster.workers.options import WorkersOptions

if TYPE_CHECKING:
    from cluster.client import Client

CALL_S = 10.0
"""How long an actor may take to answer; its own thread answers, whatever its handlers do."""
CALLS_AT_ONCE = 4


class WorkerGone(Exception):
    """The process of a worker has died."""


class PlacedWorker(Protocol):
    """A worker wherever it runs."""

    def report(self) -> WorkerReport | None:
        """How it stands; None while it starts. Raises WorkerGone."""

    def stop(self) -> None:
        """Let it finish what is under way. Raises WorkerGone."""

    def kill(self) -> None:
        """End it at once, if that is possible here: what it holds comes again."""


def opened(client: Client, topic: str, subscription: str, name: str, options: WorkersOptions) -> Any:
    """The consumer of the worker of this name."""
    return client.subscribe(
        topic,
        subscription,
        consumer_name=name,
        receiver_queue_size=options.prefetch,
        **options.subscription_settings,
    )


class ThreadWorker:
    """A worker in this process. Nobody can end a thread: one that hangs is only named."""

    def __init__(self, client: Client, place: tuple[str, str, str], handler: Handler, options: WorkersOptions) -> None:
        """place: topic, subscription, and name of the worker."""
        self.worker = MessageWorker(opened(client, *place, options), handler, options)
        self.worker.begin()

    def report(self) -> WorkerReport | None:
        """How it stands."""
        return self.worker.report()

    def stop(self) -> None:
        """Let it finish what is under way."""
        self.worker.stop()

    def kill(self) -> None:
        """Let it take nothing more, which is all that can be done to a thread."""
        self.worker.stop()


class WorkerActor:
    """What runs in the actor's process. Its calls are served by threads of their own."""

    def __init__(self, place: tuple[str, str, str], handler: Handler, options: WorkersOptions) -> None:
        self._client = connect(**options.connect)
        self._worker = MessageWorker(opened(self._client, *place, options), handler, options)
        self._worker.begin()

    def report(self) -> WorkerReport:
        """How it stands."""
        return self._worker.report()

    def stop(self) -> None:
        """Let it finish what is under way."""
        self._worker.stop()


class RayWorker:
    """The pool's end of an actor."""

    def __init__(self, place: tuple[str, str, str], handler: Handler, options: WorkersOptions) -> None:
        import ray

        self._ray = ray
        chosen = {"num_cpus": 1, **(options.ray_actor_options or {})}
        chosen |= {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": CALLS_AT_ONCE}
        self._actor = ray.remote(WorkerActor).options(**chosen).remote(place, handler, options)
        self._asked: Any = None
        self._served = False

    def report(self) -> WorkerReport | None:
        """How it stands; None while Ray places and starts it, or if it does not answer now. Raises WorkerGone."""
        self._asked = self._asked or self._actor.report.remote()
        try:
            done, _ = self._ray.wait([self._asked], timeout=CALL_S if self._served else 0)
            if not done:
                return None
            answer, self._asked = self._asked, None
            report: WorkerReport = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            raise WorkerGone(str(error)) from None
        self._served = True
        return report

    def stop(self) -> None:
        """Let it finish what is under way. Raises WorkerGone."""
        try:
            self._ray.get(self._actor.stop.remote(), timeout=CALL_S)
        except self._ray.exceptions.RayError as error:
            raise WorkerGone(str(error)) from None

    def kill(self) -> None:
        """End its process."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


def lacking(wanted: dict[str, Any], free: dict[str, float]) -> str:
    """Which resources Ray does not have free for one more worker, in one line; empty if it has them."""
    needs = {"CPU": wanted.get("num_cpus", 1), "GPU": wanted.get("num_gpus", 0), "memory": wanted.get("memory", 0)}
    needs |= wanted.get("resources", {})
    short = [
        f"{name}: {need:g} wanted, {free.get(name, 0):g} free"
        for name, need in needs.items()
        if need > free.get(name, 0)
    ]
    return ", ".join(short)
