"""The consumers of a flood as workers of a pool on Ray: who works is what the pool says, and the pool mends itself.

A fault is done as to any other consumer: its death is noted before the signal is sent. What differs is who answers it.
The pool replaces a worker that died; one more consumer is one worker more, and a consumer that leaves and comes back is
a pool that shrinks and grows again, by the worker with the highest number.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sluice.loadgen.base.broker import Connect
from sluice.loadgen.base.history import EVENTS, write_parquet
from sluice.loadgen.base.kinds import JOIN
from sluice.loadgen.faults.faults import AWAY_S, MOST_MORE, ConsumerProcess, Fault, Fleet
from sluice.loadgen.load.consume import ConsumeJob, ConsumerProgress, seal_journals
from sluice.loadgen.load.pool_consumer import FloodHandler
from sluice.storage.errors import SluiceError, Unavailable

POOL = "consumer"
BATCH = 2_000
CHANGE_S = 60.0
"""How long the pool may take to be as large as it is to be."""
MOST_REDELIVERIES = 254
"""Nothing fails here: what comes again does so because a worker died."""
_LOOK_EVERY_S = 0.05
_STOP_S = 60.0


def pool_of(job: ConsumeJob, client: Any, connect: Connect) -> Fleet:
    """The fleet of a flood whose consumers Ray places. connect: how the flood found the cluster."""
    where = {name: getattr(connect, name, None) for name in ("address", "data_dir")}
    return PoolFleet(job, client, {name: value for name, value in where.items() if value})


class PoolFleet(Fleet):
    """A Fleet whose consumers are placed by Ray."""

    def __init__(self, job: ConsumeJob, client: Any, connect: dict[str, Any]) -> None:
        """client: scales the pool. connect: how workers connect, as `sluice.connect` does."""
        super().__init__(job, self._refuse)
        self._client, self._connect = client, connect
        self._pool: Any = None
        self._size = 0
        self._known: dict[str, ConsumerProcess] = {}

    def start(self, consumers: int, spares: int, kept: int = 0) -> None:
        """Start the pool, and wait until all its workers have joined."""
        from sluice import Workers

        job = self._job
        self._size, self._most = consumers, consumers + MOST_MORE
        self._pool = Workers(
            job.topic,
            job.subscription,
            FloodHandler(job),
            client=self._client,
            name=POOL,
            min_workers=consumers,
            batch_size=BATCH,
            prefetch=job.receiver_queue_size,
            max_redeliver_count=MOST_REDELIVERIES,
            ray_actor_options={"num_cpus": 0, "scheduling_strategy": "SPREAD"},
            connect=self._connect,
        )
        self._pool.start()
        self._await_size()

    def prepare(self, spares: int, queue: int) -> None:
        """The pool keeps its own spare process."""

    def keep_spares(self, count: int) -> None:
        """The same."""

    def poll(self) -> None:
        """Look who works, and how far everybody is."""
        if self._pool is None:
            return
        with self._changing:
            now = {}
            for name, where in self._pool.status().where.items():
                if where:
                    incarnation = f"{name}.{where.split()[0]}"
                    now[incarnation] = self._known.get(incarnation) or self._found(incarnation, name, where)
            for member in list(self.working):
                if member.incarnation not in now:
                    self._part(member)
            gone = {member.incarnation for member in self.gone}
            self.working += [
                member for member in now.values() if member not in self.working and member.incarnation not in gone
            ]
        for member in self._known.values():
            member.last = ConsumerProgress.read(self._job.progress / member.incarnation)

    def _found(self, incarnation: str, name: str, where: str) -> ConsumerProcess:
        member: Any = ConsumerProcess(None, incarnation, name, int(where.split()[0]), self._queue)  # type: ignore[arg-type]
        self._known[incarnation] = member
        return member  # type: ignore[no-any-return]

    def replace(self, dead: Sequence[ConsumerProcess]) -> None:
        """The pool does it."""

    def troubles(self) -> list[str]:
        """Return the troubles of the fleet, and the last line of each failure of a handler."""
        failures = self._pool.status().failures if self._pool is not None else {}
        return [*super().troubles(), *(f"key {key}: {why.splitlines()[-1]}" for key, why in failures.items() if why)]

    def finish(self) -> None:
        """The pool ends; all histories become Parquet."""
        self.calm()
        self.poll()
        with contextlib.suppress(Unavailable):
            self._pool.stop(_STOP_S)
        for member in self._known.values():
            member.last = ConsumerProgress.read(self._job.progress / member.incarnation)
            seal_journals(self._job, member.incarnation)
        self.gone.extend(self.working)
        self.working = []
        self._pool = None
        write_parquet(pa.Table.from_pylist(self._events, EVENTS), self._job.events / "driver.parquet")

    def close(self) -> None:
        """End the pool, however it stands. Never raises."""
        self.calm()
        if self._pool is not None:
            with contextlib.suppress(SluiceError):
                self._pool.stop(1.0)
            self._pool = None

    # -- what the pool does instead of a process ----------------------------------------------------------------------

    def _add(self, fault: Fault) -> None:
        with self._changing:
            if self._size >= self._most:
                self.passed_over.append(f"{JOIN}: {self._size} consumers are enough")
                return
            self._note(fault, self._new_name())
            self._scale(self._size + 1)
        self._await_size()

    def _leave_and_return(self, fault: Fault) -> None:
        with self._changing:
            if self._victim(fault) is None:
                return
            self._note(fault, f"{POOL}-{self._size - 1}")
            self._scale(self._size - 1)
        self._await_size()
        time.sleep(AWAY_S)
        self._scale(self._size + 1)
        self._await_size()

    def _join(self, handle: Any, name: str) -> ConsumerProcess:
        """Add a worker that helps."""
        self._scale(self._size + 1)
        self._await_size()
        return next(member for member in self.working if member.name == name)

    def _stop(self, member: ConsumerProcess) -> None:
        """Remove a worker; the pool chooses which one goes."""
        self._scale(self._size - 1)

    def _new_name(self) -> str:
        return f"{POOL}-{self._size}"

    def _spare(self) -> Any:
        return None

    @staticmethod
    def _refuse(job: ConsumeJob) -> Any:
        raise AssertionError("a pool starts its processes itself")

    def _scale(self, size: int) -> None:
        self._size = size
        self._pool.scale(size, size)

    def _await_size(self) -> None:
        """Wait until so many workers have joined. Raises Unavailable."""
        deadline = time.monotonic() + CHANGE_S
        while True:
            self.poll()
            if len(self.working) == self._size and all(member.last.joined for member in self.working):
                return
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{len(self.working)} of {self._size} workers have joined: {self._pool.status().reason}"
                )
            time.sleep(_LOOK_EVERY_S)
