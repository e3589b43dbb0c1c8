"""The places of workers: threads of this process, or actors of Ray (`ray_places.py`).

A place makes workers, and knows nothing of how many there should be.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sluice.cluster.workers.column_worker import ColumnWorker
from sluice.cluster.workers.handler_worker import Handler, HandlerWorker, WorkerReport, is_async
from sluice.cluster.workers.keyed_worker import LoopWorker, ThreadedWorker
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.result_sender import open_results
from sluice.cluster.workers.serial_worker import SerialWorker

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client


class WorkerGone(Exception):
    """The process of a worker has died, or refuses its keeper."""


class Superseded(Exception):
    """A later keeper has spoken to a worker: this one is to touch nothing any more."""


class PlacedWorker(Protocol):
    """A worker wherever it runs. version: of its handler. where: for people."""

    version: str
    where: str
    ends_late: bool
    """Whether it can be ended while its handler runs."""

    def report(self) -> WorkerReport | None:
        """How it stands, as it said last; None before it has said anything. Raises WorkerGone."""

    def hand_over(self) -> bool:
        """Let the one that begins next under its name have its keys; False: not known, ask again. Raises WorkerGone."""

    def stop(self) -> None:
        """Let it finish what is under way. Raises WorkerGone."""

    def kill(self) -> None:
        """End it at once, if that is possible here: what it holds comes again."""

    def tail(self) -> str:
        """The last lines that it has written."""


class WorkerPlaces(Protocol):
    """A place that makes the workers of a pool, and may keep some ready."""

    def spares(self) -> int:
        """How many processes are ready for a name."""
        return 0

    def start_worker(self, name: str) -> PlacedWorker:
        """A worker under this name. Raises SluiceError, TypeError, ValueError."""

    def is_ready(self) -> bool:
        """Whether the next worker would begin at once."""
        return True

    def adopt(self) -> dict[str, PlacedWorker]:
        """Workers by name that an earlier keeper has left."""
        return {}

    def wait(self, seconds: float, stopping: threading.Event, workers: Sequence[PlacedWorker]) -> None:
        """Wait until a worker has ended, the pool is to stop, or the time is up."""

    def why_not_placed(self) -> str:
        """Why a worker does not begin, as far as it is known."""
        return ""

    def close(self) -> None:
        """End the spares."""


def new_worker(client: Client, place: tuple[str, str, str], handler: Handler, options: WorkersOptions) -> HandlerWorker:
    """A worker with its consumer, which has attached. place: topic, subscription, and name of the worker."""
    topic, subscription, name = place
    sender = open_results(client, topic, subscription, options.outputs)
    consumer = client.subscribe(
        topic,
        subscription,
        consumer_name=name,
        receiver_queue_size=max(options.prefetch, 2 * options.batch_size),
        on_ranges=getattr(handler, "on_ranges", None),
        schema=options.schema,
        schema_type=options.schema_type,
        **options.subscription_settings,
    )
    if options.batch_size:
        return ColumnWorker(consumer, handler, options)
    if is_async(handler):
        return LoopWorker(consumer, handler, options, sender)
    if options.outputs or options.concurrency > 1:
        return ThreadedWorker(consumer, handler, options, sender)
    return SerialWorker(consumer, handler, options)


class ThreadWorker:
    """A worker in this process. Nobody can end a thread: one that hangs is only named."""

    where = "this process"
    ends_late = False

    def __init__(self, worker: HandlerWorker, version: str) -> None:
        self.worker, self.version = worker, version
        self.worker.start()

    def report(self) -> WorkerReport | None:
        return self.worker.report()

    def hand_over(self) -> bool:
        self.worker.hand_over()
        return True

    def stop(self) -> None:
        self.worker.stop()

    def kill(self) -> None:
        """Let it take nothing more, which is all that can be done to a thread."""
        self.worker.stop()

    def tail(self) -> str:
        return ""


class ThreadPlaces(WorkerPlaces):
    """Threads of this process."""

    def __init__(
        self, client: Client, place: tuple[str, str], handler: Handler, options: WorkersOptions, version: str
    ) -> None:
        """place: topic and subscription."""
        self._client, self._place, self._handler = client, place, handler
        self._options, self._version = options, version

    def start_worker(self, name: str) -> PlacedWorker:
        return ThreadWorker(new_worker(self._client, (*self._place, name), self._handler, self._options), self._version)

    def wait(self, seconds: float, stopping: threading.Event, workers: Sequence[PlacedWorker]) -> None:
        stopping.wait(seconds)

    def close(self) -> None:
        """Do nothing: there are no spares to end."""
