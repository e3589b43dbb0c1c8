"""Workers as actors that Ray places.

Ray restarts no worker and repeats no call of one: the keeper replaces a worker that died, under its name. A call that
lasts as long as the worker tells of its death at once, so nobody has to ask whether it lives. How it stands is asked
every REPORT_S, without waiting for the answer: a call of an actor takes milliseconds of processor time.

An actor is made before it is needed. It connects, makes the handler (which may load a model), and waits for a name; so
neither Ray's start of a process nor the handler's holds up the keys of a worker that died.

Workers of a detached pool are detached as well, and outlive their keeper. The next keeper finds them by name and adopts
them. Each call of a keeper has its epoch, and a worker that has heard of a later one refuses it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.cluster.base.real import log_to_stderr
from sluice.cluster.launch.connecting import connect
from sluice.cluster.node.environment import POOLS_NAMESPACE
from sluice.cluster.workers.handler_worker import Handler, HandlerWorker, WorkerReport, made
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.places import PlacedWorker, Superseded, WorkerGone, new_worker
from sluice.cluster.workers.scaling import WorkerLoad
from sluice.storage.errors import SluiceError

CALL_S = 10.0
"""How long an actor may take to answer; a thread of its own answers, whatever its handlers do."""
SILENT_S = 30.0
"""A worker that has said nothing for so long, beyond the time its handler may take, is taken for hung."""
CALLS_AT_ONCE = 6
REPORT_S = 0.5
LOOK_S = 0.05
"""Between two looks while no worker runs."""
TAIL_BYTES = 4 * 1024
RAY_LINES = (":job_id:", ":actor_name:")
PREFIX = "workers/"
SPARE_AGAIN_S = 5.0
"""A spare one that dies is replaced no sooner than so long after it was made: it may be the handler that kills it."""
Place = tuple[str, str, str]
NEVER_BEGUN = WorkerReport(load=WorkerLoad(ages={}), handled=0, failed=0, failures={}, overdue=[], ended=True, error="")


class StaleKeeper(Exception):
    """A worker's error for a keeper that is not the last one that has spoken to it."""


class WorkerActor:
    """The actor that runs a worker in a process of its own. Its calls are served by threads of their own."""

    def __init__(self, handler: Handler, options: WorkersOptions, version: str) -> None:
        log_to_stderr("warning")
        self._options, self._version = options, version
        self._client = connect(**options.connect)
        self._handler = made(handler)
        self._lock = threading.Lock()
        self._worker: HandlerWorker | None = None
        self._place: Place | None = None
        self._name = ""
        self._epoch = 0
        self._begun, self._stop_asked = threading.Event(), threading.Event()

    def wait_begun(self) -> None:
        """Wait until the worker has a name; the caller hears at once if the process dies before."""
        self._begun.wait()

    def run(self, place: Place, epoch: int) -> WorkerReport:
        """Begin as the worker of this name, if it has not begun, and return when it has ended. One that was to stop
        before does not begin. One that an earlier pool of the same name has left, which had another subscription,
        finishes what is under way, and ends. Raises SluiceError.
        """
        self._check(epoch)
        with self._lock:
            if self._worker is None:
                if self._stop_asked.is_set():
                    return NEVER_BEGUN
                self._place, self._name = place, place[2]
                self._worker = new_worker(self._client, place, self._handler, self._options)
                self._worker.start()
                self._begun.set()
                if self._stop_asked.is_set():
                    self._worker.stop()
            elif place != self._place:
                self._worker.stop()
        self._worker.join()
        return self._worker.report()

    def report(self, epoch: int) -> WorkerReport | None:
        """How it stands; None before it has begun."""
        self._check(epoch)
        return None if self._worker is None else self._worker.report()

    def hand_over(self, epoch: int) -> None:
        self._check(epoch)
        if self._worker is not None:
            self._worker.hand_over()

    def stop(self, epoch: int) -> None:
        """Let it finish what is under way; one that has not begun yet is never to begin."""
        self._check(epoch)
        self._stop_asked.set()
        if self._worker is not None:
            self._worker.stop()

    def introduce(self, epoch: int) -> tuple[str, str, str]:
        """Name, version, and where it runs."""
        self._check(epoch)
        import ray

        return self._name, self._version, f"{os.getpid()} on {ray.util.get_node_ip_address()}"

    def tail(self) -> str:
        """The end of what this process has written to its standard output and error."""
        found = []
        for descriptor in (1, 2):
            with contextlib.suppress(OSError), Path(os.readlink(f"/proc/self/fd/{descriptor}")).open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
                found.append(file.read().decode("utf-8", "replace"))
        # Ray's own lines say to its collector whose they are.
        return "".join(line for line in "".join(found).splitlines(keepends=True) if not line.startswith(RAY_LINES))

    def _check(self, epoch: int) -> None:
        """Raises StaleKeeper if a later keeper has spoken."""
        if epoch < self._epoch:
            raise StaleKeeper("a later keeper has this worker")
        self._epoch = epoch


class RayWorker:
    """The keeper's end of an actor."""

    ends_late = True

    def __init__(self, actor: Any, epoch: int, options: WorkersOptions, version: str) -> None:
        import ray

        self._ray, self._actor, self._epoch = ray, actor, epoch
        self._patience_s = SILENT_S + options.handler_timeout_ms / 1000
        self.version, self.where = version, ""
        self._name: str | None = None
        self._introduced: Any = actor.introduce.remote(epoch)
        self._waiting: Any = actor.wait_begun.remote()
        self._asked: Any = None
        self._asked_at = self._heard_at = 0.0
        self._last: WorkerReport | None = None
        self.ended: Any = None
        """The call that lasts as long as the worker."""

    def introduce(self, timeout_s: float = 0.0) -> str | None:
        """The name that it had when it was first asked, empty if it had none; None while Ray places and starts it.

        Raises WorkerGone.
        """
        if self._name is None and self._ray.wait([self._introduced], timeout=timeout_s)[0]:
            self._name, self.version, self.where = self._got(self._introduced)
        return self._name

    def is_ready(self) -> bool:
        """Whether it waits for a name. Raises WorkerGone, also if it has died since."""
        if self._ray.wait([self._waiting], timeout=0)[0]:
            self._got(self._waiting)
        return self.introduce() is not None

    def start(self, place: Place) -> None:
        """Let it be the worker of this name, now or as soon as Ray has placed it."""
        self.ended = self._actor.run.remote(place, self._epoch)

    def report(self) -> WorkerReport | None:
        """Return the worker's last report; None until Ray has started it. Raises WorkerGone, also if it has hung."""
        if self._ray.wait([self.ended], timeout=0)[0]:
            last: WorkerReport = self._got(self.ended)
            return last
        now = time.monotonic()
        if self._asked is not None and self._ray.wait([self._asked], timeout=0)[0]:
            answer, self._asked = self._asked, None
            self._last, self._heard_at = self._got(answer) or self._last, now
            if not self.where:
                self.introduce()
        if self._asked is None and now - self._asked_at >= REPORT_S:
            self._asked, self._asked_at = self._actor.report.remote(self._epoch), now
        elif self._last is not None and now - self._heard_at > self._patience_s:
            raise WorkerGone(f"it did not answer for {now - self._heard_at:.0f} s")
        return self._last

    def hand_over(self) -> bool:
        try:
            self._ray.get(self._actor.hand_over.remote(self._epoch), timeout=CALL_S)
        except self._ray.exceptions.GetTimeoutError:
            return False
        except self._ray.exceptions.RayError as error:
            if isinstance(getattr(error, "cause", None), SluiceError):
                return False  # an owner is being replaced, or the one before has only just come
            raise _plain(error) from None
        return True

    def stop(self) -> None:
        """Let it finish what is under way; it is heard of by its end."""
        self._actor.stop.remote(self._epoch)

    def kill(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    def tail(self) -> str:
        """See WorkerActor.tail; empty if it does not answer."""
        try:
            return str(self._ray.get(self._actor.tail.remote(), timeout=CALL_S / 4))
        except self._ray.exceptions.RayError:
            return ""

    def _got(self, answer: Any) -> Any:
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            raise _plain(error) from None


class RayPlaces:
    """Actors of the Ray cluster that this process is attached to. detached: they outlive it."""

    def __init__(
        self,
        place: tuple[str, str],
        handler: Handler,
        options: WorkersOptions,
        version: str,
        *,
        detached: bool = False,
    ) -> None:
        """place: topic and subscription. handler: is pickled once, by value as Ray's tasks are."""
        import ray

        self._ray = ray
        self._handler = ray.put(handler)
        self._place, self._options, self._version = place, options, version
        self.epoch, self._detached = 0, detached
        self._wanted = {"num_cpus": 1, **(options.ray_actor_options or {})}
        self._spare: RayWorker | None = None
        self._spare_made_at = float("-inf")
        self._closed = False

    def spares(self) -> int:
        spare = self._spare
        try:
            return int(spare is not None and spare.is_ready())
        except (WorkerGone, Superseded):
            return 0

    def start_worker(self, name: str) -> PlacedWorker:
        """The spare one, if there is one, else a new one; and another spare."""
        try:
            worker = self._living_spare() or self._made()
            worker.start((*self._place, name))
        except self._ray.exceptions.RayError as error:
            raise _plain(error) from None
        self._spare = None
        if self._options.spares:
            self._make_spare()
        return worker

    def is_ready(self) -> bool:
        """Whether there is one that waits for a name; it is made if there is none."""
        try:
            if self._spare is None:
                self._spare = self._made()
            return self._spare.is_ready()
        except WorkerGone:
            self._spare = None
            raise
        except self._ray.exceptions.RayError as error:
            raise _plain(error) from None

    def adopt(self) -> dict[str, PlacedWorker]:
        """Workers of this pool that an earlier keeper has left; those that wait for a name are ended."""
        found: dict[str, PlacedWorker] = {}
        if not self._detached:
            return found
        prefix = f"{PREFIX}{self._options.name}/"
        for row in self._ray.util.list_named_actors(all_namespaces=True):
            if row["namespace"] != POOLS_NAMESPACE or not row["name"].startswith(prefix):
                continue
            with contextlib.suppress(ValueError):
                actor = self._ray.get_actor(row["name"], POOLS_NAMESPACE)
                worker = RayWorker(actor, self.epoch, self._options, "")
                try:
                    name = worker.introduce(CALL_S)
                except WorkerGone:
                    continue
                if not name or name in found:
                    worker.kill()
                    continue
                worker.start((*self._place, name))  # it has begun long ago: from here on its end is heard of
                found[name] = worker
        return found

    def wait(self, seconds: float, stopping: threading.Event, workers: Sequence[PlacedWorker]) -> None:
        ends = [worker.ended for worker in workers if isinstance(worker, RayWorker)]
        if stopping.is_set() or not ends:
            stopping.wait(min(seconds, LOOK_S))
            return
        if self._options.spares and not self._closed:
            self._renew_spare()
        self._ray.wait(ends, num_returns=1, timeout=seconds)

    def why_not_placed(self) -> str:
        short = lacking(self._wanted, self._ray.available_resources())
        return f"Ray cannot place one more worker: {short}" if short else ""

    def close(self) -> None:
        self._closed = True
        if self._spare is not None:
            self._spare.kill()
            self._spare = None

    def _living_spare(self) -> RayWorker | None:
        """The spare one, if it has not died; Ray may still be about to place it."""
        if self._spare is not None:
            try:
                self._spare.is_ready()
            except WorkerGone:
                self._spare = None
        return self._spare

    def _renew_spare(self) -> None:
        if self._living_spare() is None and time.monotonic() > self._spare_made_at + SPARE_AGAIN_S:
            self._make_spare()

    def _make_spare(self) -> None:
        """A spare one that Ray cannot make now is made later."""
        self._spare_made_at = time.monotonic()
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._spare = self._made()

    def _made(self) -> RayWorker:
        chosen = {**self._wanted, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": CALLS_AT_ONCE}
        if self._detached:
            name = f"{PREFIX}{self._options.name}/{secrets.token_hex(6)}"
            chosen |= {"name": name, "namespace": POOLS_NAMESPACE, "lifetime": "detached"}
        ray = self._ray
        actor = ray.remote(WorkerActor).options(**chosen).remote(self._handler, self._options, self._version)
        return RayWorker(actor, self.epoch, self._options, self._version)


def _plain(error: Exception) -> Exception:
    """Translate an error of Ray into one for the keeper: Superseded or WorkerGone."""
    cause = getattr(error, "cause", None)
    return Superseded(str(cause)) if isinstance(cause, StaleKeeper) else WorkerGone(_line(error))


def _line(error: Exception) -> str:
    """The last line of what Ray says, which names the error, without the causes that Ray can think of."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip().split(" Some common causes include")[0] if lines else type(error).__name__


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
