"""Pools that outlive the program: their keeper is an actor of Ray, detached and named, and so are their workers.

Ray starts a keeper again when it or its node dies, with what it was made of: handler, options, version. It claims the
pool under a further epoch, adopts the workers that run, and gets the wishes of operators for the pool. A keeper that
was wrongly thought dead learns with its next report, or from a worker, that it has been replaced, and ends without
touching anything.

A program that starts the pool again ends the keeper and makes another one of what it has now. The workers go on
meanwhile; the new keeper adopts them, and replaces those of another version one by one. Two programs may do so at once:
Ray lets one of them make the keeper, the other one ends that keeper in turn, and the pool is that of the last one.

Handlers are code, and are kept by Ray alone, as all code of its actors is. So a pool lives as long as the Ray cluster.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from sluice.cluster.base.real import log_to_stderr
from sluice.cluster.launch.connecting import connect
from sluice.cluster.node.environment import POOLS_NAMESPACE
from sluice.cluster.workers import registry
from sluice.cluster.workers.handler_worker import Handler
from sluice.cluster.workers.keeper import PoolKeeper
from sluice.cluster.workers.options import WorkersOptions
from sluice.storage.errors import Fenced, Invalid, SluiceError, Unavailable

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client

PREFIX = "keeper/"
START_S = 120.0
TRIES = 5
MOST_HANDLER_BYTES = 64 * 1024
"""What is larger Ray would keep with the program, and a keeper that is started again after its end would lack it."""
AGAIN_S = 0.2
CLAIM_AGAIN_S = 1.0
END_PATIENCE_MS = 60_000
"""Whoever waits for the end of a pool, or wants to know why it has stopped, hears it from its keeper or never."""


class KeeperActor:
    """The Ray actor that runs a keeper in a process of its own."""

    def __init__(
        self, place: tuple[str, str], handler: Handler, options: WorkersOptions, version: str, start: str = ""
    ) -> None:
        """start: see messages.ClaimPool; empty in a keeper that an earlier version made, and that Ray starts again."""
        log_to_stderr("warning")
        self._place, self._handler, self._options, self._version = place, handler, options, version
        self._start = start
        self._claimed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    def ready(self) -> str:
        """Return the version once the pool is kept."""
        self._claimed.wait()
        return self._version

    def pid(self) -> int:
        """Return the id of the keeper's process."""
        return os.getpid()

    def _keep(self) -> None:
        from sluice.cluster.workers.ray_places import RayPlaces

        client = self._connected()
        keeper: PoolKeeper | None = None

        def lose() -> None:
            if keeper is not None:
                keeper.fenced = True
                keeper.stop()

        # The reporter knows the keeper, and the keeper's places need the epoch that the reporter claims.
        places = RayPlaces(self._place, self._handler, self._options, self._version, detached=True)
        keeper = PoolKeeper(self._options, self._version, places)
        claim = registry.claim_of(self._place, self._options, self._version, self._start)
        reports = registry.PoolReporter(client, claim, keeper, lose)
        while True:
            try:
                places.epoch = reports.claim()
                break
            except Fenced:  # a later keeper was there before this one heard that it had the pool
                _end_this_actor()
                return
            except SluiceError:  # the controller is being replaced
                time.sleep(CLAIM_AGAIN_S)
        reports.start()
        self._claimed.set()
        try:
            keeper.run()
        except BaseException:  # whatever it is, Ray starts the next keeper, which adopts the workers
            traceback.print_exc()
            os._exit(1)
        if not keeper.fenced:
            reports.end(keeper.gave_up, END_PATIENCE_MS)
        _end_this_actor()

    def _connected(self) -> Client:
        """A restarted keeper may come before the cluster answers."""
        while True:
            try:
                return connect(**self._options.connect)
            except SluiceError:
                time.sleep(CLAIM_AGAIN_S)


def _end_this_actor() -> None:
    """End this actor for good: Ray must not start it again."""
    import ray

    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def start_keeper(
    client: Client, place: tuple[str, str], handler: Handler, options: WorkersOptions, version: str
) -> None:
    """Make the keeper, in place of one that there is. Returns when it keeps the pool. Raises Unavailable."""
    import ray

    if (size := len(ray.cloudpickle.dumps(handler))) > MOST_HANDLER_BYTES:
        raise Invalid(
            f"the handler is {size} bytes with all that it refers to, and a detached pool keeps {MOST_HANDLER_BYTES} at"
            " the most: let it be a class that loads what is large when it is made"
        )
    name, start = PREFIX + options.name, secrets.token_hex(8)
    chosen: dict[str, Any] = {"name": name, "namespace": POOLS_NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    chosen |= {"max_restarts": -1, "max_task_retries": 0, "max_concurrency": 4}
    for _ in range(TRIES):
        with contextlib.suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(name, POOLS_NAMESPACE), no_restart=True)
        try:
            actor = ray.remote(KeeperActor).options(**chosen).remote(place, handler, options, version, start)
            ray.get(actor.ready.remote(), timeout=START_S)
            return
        except ValueError:  # the name is not free yet, or another program was quicker
            time.sleep(AGAIN_S)
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            rows = [row for row in registry.pools(client) if row["name"] == options.name]
            if rows and rows[0]["version"] == version:
                return  # it was replaced by one that means the same
            raise Unavailable(f"the keeper of the pool {options.name} does not start: {last}") from None
    raise Unavailable(f"the name {name} stays taken in Ray: another program starts this pool as well")
