"""Stores results of messages: the steps between the decision about their positions and their place in the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np

from sluice.actors.ledger.record import producer_of
from sluice.actors.messages import Published, PublishResults
from sluice.actors.ports import Ports
from sluice.actors.ports.wire import Blob
from sluice.actors.runtime.waiting import SharedFuture
from sluice.actors.topic.partition.managed_ledger import ManagedLedger
from sluice.actors.topic.partition.results import Results, check_results, packed
from sluice.actors.topic.partition.termination import Termination
from sluice.storage.format.batch import StoredBatch
from sluice.storage.format.frame import Run, make_run


class ResultIntake:
    """The intake of results of one partition. ready: waits until the owner serves, and raises when it does not any
    more.
    """

    def __init__(
        self,
        ports: Ports,
        log: ManagedLedger,
        results: Results,
        termination: Termination,
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        self._ports, self._log, self._results = ports, log, results
        self._termination, self._ready = termination, ready

    def check(self, request: PublishResults, *, deduplicates: bool) -> None:
        """Refuse what can never be stored. Raises Invalid."""
        check_results(request, self._log.record.topic, deduplicates=deduplicates)

    async def store(self, request: PublishResults, run: Run, batch: StoredBatch) -> Published:
        """Append the results of those messages that have none here yet. batch: what the run holds."""
        results, positions = self._results, request.positions
        blob: Blob | None = None
        while True:
            # No await from here on until the run has its place, unless something must be waited for.
            messages = np.unique(positions)
            source = results.find(request.source, request.finished, self._ports.clock.now())
            stored = results.are_stored(source, messages)
            outcome = results.under_way(source, messages)
            if stored.all():
                return Published(ledger=0, first_entry=0, count=request.count, duplicate=True)
            if outcome is not None:
                await outcome
            elif stored.any():
                rows = np.flatnonzero(np.isin(positions, messages[~stored]))
                batch, positions = batch.take(rows), positions[rows]
                run, blob = make_run(batch), None
                continue
            elif blob is not None and self._log.ready:
                self._termination.check()
                header = packed(messages)
                pushed: SharedFuture[Published] = SharedFuture()
                results.push(source, messages, pushed)
                source_part = producer_of(request.source), int(messages[0]), run.count
                self._log.append(run, (source_part,), blob, header)
                return await pushed
            else:
                self._termination.check()
                blob = blob or await self._shared(run)
                await self._log.make_room()
            await self._ready()

    async def _shared(self, run: Run) -> Blob:
        large = len(run.payload) >= self._ports.shared_from
        return await self._ports.net.share(run.payload) if large else Blob(run.payload)
