"""A pool of workers, as users have it: in their program, or detached in the cluster and found by name."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from sluice.actors.ownership.names import check_name
from sluice.cluster.base.loop import carried_out
from sluice.cluster.base.signals import unwind_at_sigterm
from sluice.cluster.launch.connecting import connect
from sluice.cluster.workers import registry
from sluice.cluster.workers.handler_worker import Handler
from sluice.cluster.workers.keeper import PoolKeeper, PoolStatus
from sluice.cluster.workers.options import WorkersOptions, wanted_options
from sluice.cluster.workers.places import ThreadPlaces, WorkerPlaces
from sluice.cluster.workers.result_sender import open_results
from sluice.cluster.workers.typed_handlers import check_handler, with_schema
from sluice.cluster.workers.typed_options import BatchHandler, MessageHandler, ValueHandler, WorkersSettings
from sluice.storage.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client

__all__ = ["PoolStatus", "Workers"]

logger = logging.getLogger("sluice.pool")

FENCED = "another program keeps a pool of this name now, so this one has stopped"
LOOK_S = 0.1


class Workers:
    """`start`, `status` and `stop`, or a context manager; or a decorator of the handler, which becomes the pool.

    The handler is a function or coroutine function of one Message, or a class that is made once in each worker and
    whose objects are called; with `batch_size`, of a pyarrow RecordBatch. What it has handled is acknowledged when it
    returns.
    """

    def __init__(
        self,
        topic: str,
        subscription: str,
        handler: MessageHandler | ValueHandler | BatchHandler | type[Any] | None = None,
        *,
        client: Client | None = None,
        **options: Unpack[WorkersSettings],
    ) -> None:
        """client: for workers that are threads; else the pool connects by itself. options: see
        cluster.workers.options.WorkersOptions. Raises Invalid.
        """
        self._place = check_name("topic", topic), check_name("subscription", subscription)
        check_handler(handler)
        self._handler, self._client = handler, client
        self.options = wanted_options(dict(options), subscription)
        self._own_client: Client | None = None
        self._keeper: PoolKeeper | None = None
        self._reporter: registry.PoolReporter | None = None
        self._thread: threading.Thread | None = None
        self._put_back: Callable[[], None] = lambda: None
        self._lost = ""
        """Why nobody keeps the workers any more, though the pool was not stopped."""

    def __call__(self, handler: MessageHandler | ValueHandler | BatchHandler | type[Any]) -> Workers:
        """Give the pool its handler, as a decorator; return the pool."""
        check_handler(handler)
        self._handler = handler
        return self

    def start(self) -> None:
        """Start the workers; they receive as soon as they run. A pool starts once.

        Until it has stopped, SIGTERM raises SystemExit in the main thread, unless the program has a handler of its own:
        the `with` block ends, and the pool stops, as at Ctrl-C.

        One that is detached and runs already gets this handler and these options: its workers are replaced one by one,
        if their version is another. Raises Invalid, SluiceError.
        """
        self._begin()
        self._unwind()

    def _unwind(self) -> None:
        if self._thread is not None:
            self._put_back = unwind_at_sigterm()

    def _begin(self) -> None:
        if self._handler is None:
            raise Invalid("a pool of workers needs a handler")
        if self._thread is not None:
            raise Invalid("this pool was started already; make another one")
        self.options = with_schema(self._handler, self.options)
        try:
            self._start(self._handler)
        except BaseException:
            self._leave()
            raise

    def _start(self, handler: Handler) -> None:
        if self.options.ray_actor_options is not None:
            _attach(self.options.connect)
        client = self._connected()
        if self.options.outputs:  # what is wrong with these does not mend when a worker tries again
            open_results(client, *self._place, self.options.outputs).close()
        version = version_of(handler, self.options)
        if self.options.detached:
            from sluice.cluster.workers.detached import start_keeper

            start_keeper(client, self._place, handler, self.options, version)
            self._leave()
            return
        places = self._places(client, handler, version)
        self._keeper = PoolKeeper(self.options, version, places)
        claim = registry.claim_of(self._place, self.options, version)
        self._reporter = registry.PoolReporter(client, claim, self._keeper, self._lose)
        self._thread = threading.Thread(target=self._keep, name=self.options.name, daemon=True)
        self._thread.start()

    def scale(self, min_workers: int, max_workers: int) -> None:
        """Set how many workers the pool has; its keeper learns of it within seconds. Raises Invalid, NotFound."""
        with self._asking() as client:
            registry.scale(client, self.options.name, min_workers, max_workers)

    def stop(self, timeout_s: float = 60.0) -> None:
        """Finish what is under way, hand over the keys, and end all workers.

        Raises Unavailable that names the keys whose handlers did not end in time.
        """
        try:
            if self.options.detached:
                self._drain(timeout_s)
            elif self._thread is not None and self._keeper is not None:
                self._keeper.stop()
                self._thread.join(timeout_s)
                if self._thread.is_alive():
                    late = self._keeper.busy()
                    self._keeper.kill()
                    raise Unavailable(f"after {timeout_s:g} s these workers are still busy: {', '.join(late)}")
        finally:
            self._leave()

    def status(self) -> PoolStatus:
        """How the pool stands, as its workers said last; a detached one as its keeper reported. Raises NotFound."""
        if self.options.detached:
            with self._asking() as client:
                return status_of(registry.pools(client, self.options.name)[0])
        if self._keeper is None:
            return status_of({"status": {}})
        status = self._keeper.status()
        if self._lost:
            status = replace(status, reason=self._lost)
        return status

    def __enter__(self) -> Workers:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Workers:
        """Start in another thread. A call that is cancelled stops what it has started."""
        try:
            await carried_out(self._begin)
        except asyncio.CancelledError:
            await carried_out(self.stop)
            raise
        self._unwind()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop in another thread, also when this call is cancelled."""
        await carried_out(self.stop)

    def _connected(self) -> Client:
        if self._client is None and self._own_client is None:
            self._own_client = connect(**self.options.connect)
        client = self._client or self._own_client
        assert client is not None
        return client

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Client]:
        """A client for one question. One of its own stays open only while workers run here."""
        try:
            yield self._connected()
        finally:
            if self._thread is None:
                self._leave()

    def _places(self, client: Client, handler: Handler, version: str) -> WorkerPlaces:
        if self.options.ray_actor_options is None:
            return ThreadPlaces(client, self._place, handler, self.options, version)
        from sluice.cluster.workers.ray_places import RayPlaces

        return RayPlaces(self._place, handler, self.options, version)

    def _leave(self) -> None:
        self._put_back()
        if self._own_client is not None:
            self._own_client.close()
            self._own_client = None

    def _keep(self) -> None:
        assert self._keeper is not None
        assert self._reporter is not None
        self._reporter.start()
        failed = ""
        try:
            self._keeper.run()
        except Exception as error:  # a defect, or Ray has gone: workers that nobody keeps would be told nothing more
            logger.exception("the keeper of the pool %s has failed", self.options.name)
            self._lost = failed = f"its keeper has failed, and its workers end: {type(error).__name__}: {error}"
            self._keeper.kill()
        finally:
            self._reporter.end(failed)

    def _lose(self) -> None:
        self._lost = FENCED
        if self._keeper is not None:
            self._keeper.stop()

    def _drain(self, timeout_s: float) -> None:
        client, until = self._connected(), time.monotonic() + timeout_s
        try:
            registry.drain(client, self.options.name)
            while True:
                rows = registry.pools(client, self.options.name)
                if time.monotonic() >= until:
                    break
                time.sleep(LOOK_S)  # a keeper tells nobody but the controller
        except NotFound:
            return
        busy = ", ".join(rows[0]["status"].get("workers", {})) or "its keeper does not report"
        raise Unavailable(f"after {timeout_s:g} s the pool {self.options.name} has not ended: {busy}")


def status_of(row: dict[str, Any]) -> PoolStatus:
    """Return a keeper's last report; an empty one before its first, and one with the reason if it has stopped."""
    why = row.get("stopped", "")
    empty = PoolStatus(
        workers={}, handled=0, failed=0, replaced=0, oldest_age_ms=0, failures={}, overdue={}, reason=why
    )
    return replace(empty, **row["status"])


def version_of(handler: Handler, options: WorkersOptions) -> str:
    """The version that was given, else one made of the handler and these options."""
    if options.version:
        return options.version
    if options.ray_actor_options is None:
        return "1"
    from ray import cloudpickle

    alike = msgspec.structs.replace(options, min_workers=1, max_workers=1)
    return hashlib.sha256(cloudpickle.dumps((handler, msgspec.structs.asdict(alike)))).hexdigest()[:12]


def _attach(found_by: dict[str, Any]) -> None:
    """Attach this program to the Ray cluster that Sluice runs in, unless it uses one already: Ray would start one of
    its own. found_by: as `sluice.connect` takes it. Raises Invalid, Unavailable.
    """
    import ray

    if ray.is_initialized():
        return
    from sluice.cluster.launch.attach import join
    from sluice.cluster.launch.discovery import find
    from sluice.cluster.node.folder import read_state

    folder = Path(found_by.get("data_dir") or "sluice-data")
    found = find(folder)
    if found is None or "process" in (read_state(folder) or {}):
        raise Invalid("ray_actor_options want a cluster on Ray: call ray.init, or say with connect where one runs")
    join(str(found_by.get("address") or found[0]), found[1])
