"""Pools of workers as the cluster knows them: listed, scaled and drained by name; and the keeper's end of that.

A keeper reports from a thread of its own, because the controller may be away for a while and the workers must not wait
for it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sluice.actors.messages import ClaimPool, DescribePools, DrainPool, PoolWanted, ReportPool, ScalePool, shown
from sluice.actors.messages.workers import MOST_POOL_STATUS, MOST_REASON
from sluice.storage.errors import Fenced, SluiceError

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client
    from sluice.cluster.workers.keeper import PoolKeeper
    from sluice.cluster.workers.options import WorkersOptions

REPORT_S = 1.0
PATIENCE_MS = 2_000
"""For a controller that is being replaced; then the next report is the next try."""

Row = dict[str, Any]


def pools(client: Client, name: str = "", *, tails: bool = False) -> list[Row]:
    """All pools that are kept, or the one of this name; see messages.DescribePools. Raises NotFound."""
    rows: list[Row] = shown(client.ask_controller(DescribePools(name=name, tails=tails)))
    return rows


def scale(client: Client, name: str, min_workers: int, max_workers: int) -> None:
    """Set how many workers a pool has from now on. Raises Invalid, NotFound."""
    client.ask_controller(ScalePool(name=name, min_workers=min_workers, max_workers=max_workers))


def drain(client: Client, name: str, *, forget: bool = False) -> None:
    """Let a pool finish what is under way and end. forget: one that nobody keeps. Raises NotFound, Conflict."""
    client.ask_controller(DrainPool(name=name, forget=forget))


def tracebacks(client: Client, topic: str, subscription: str) -> dict[str, str]:
    """Return by key how the handlers of a subscription's pools failed last."""
    found: dict[str, str] = {}
    for row in pools(client):
        if (row["topic"], row["subscription"]) == (topic, subscription):
            found |= row["status"].get("failures", {})
    return found


def claim_of(place: tuple[str, str], options: WorkersOptions, version: str, start: str = "") -> ClaimPool:
    """Return a new keeper's claim. place: topic and subscription. start: see messages.ClaimPool."""
    return ClaimPool(
        name=options.name,
        topic=place[0],
        subscription=place[1],
        kind="detached" if options.detached else "program",
        version=version,
        min_workers=options.min_workers,
        max_workers=options.max_workers,
        start=start,
        keeper=secrets.token_hex(8),
    )


class PoolReporter:
    """Claims a pool, then reports it until `end`, and tells its keeper what an operator wants."""

    def __init__(self, client: Client, claim: ClaimPool, keeper: PoolKeeper, on_fenced: Callable[[], object]) -> None:
        """on_fenced: called when another keeper has claimed the pool."""
        self._client, self._claim, self._keeper, self._on_fenced = client, claim, keeper, on_fenced
        self._epoch = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"report-{claim.name}", daemon=True)

    def claim(self) -> int:
        """Become the keeper, and hear what is wanted; returns the epoch. Raises SluiceError."""
        wanted: PoolWanted = self._client.ask_controller(self._claim, PATIENCE_MS)
        self._epoch = wanted.epoch
        self._tell(wanted)
        return self._epoch

    def start(self) -> None:
        """Report from now on; claim first, if that was not done."""
        self._thread.start()

    def end(self, stopped: str = "", patience_ms: int = PATIENCE_MS) -> None:
        """Report that there are no workers any more, and stop. The controller may not hear it in time.

        stopped: see messages.ReportPool.
        """
        self._over.set()
        self._thread.join()
        if self._epoch:
            with contextlib.suppress(SluiceError):
                why = stopped[-MOST_REASON:]
                ended = ReportPool(name=self._claim.name, epoch=self._epoch, ended=True, stopped=why)
                self._client.ask_controller(ended, patience_ms)

    def _run(self) -> None:
        tails = False
        while not self._over.wait(REPORT_S if self._epoch else 0):
            try:
                if not self._epoch:
                    self.claim()
                report = ReportPool(name=self._claim.name, epoch=self._epoch, status=self._status())
                if tails:
                    report.tails = _fitting(self._keeper.tails())
                wanted: PoolWanted = self._client.ask_controller(report, PATIENCE_MS)
            except Fenced:
                self._epoch = 0
                self._on_fenced()
                return
            except SluiceError:  # the workers go on without it
                self._over.wait(REPORT_S)
                continue
            tails = wanted.tails
            self._tell(wanted)

    def _tell(self, wanted: PoolWanted) -> None:
        self._keeper.limit(wanted.min_workers, wanted.max_workers)
        if wanted.draining:
            self._keeper.stop()

    def _status(self) -> str:
        told = json.dumps(status := asdict(self._keeper.status()))
        if len(told) > MOST_POOL_STATUS:
            told = json.dumps({**status, "failures": {}, "events": []})
        return told


def _fitting(tails: dict[str, str]) -> str:
    """Return the tracebacks as JSON, each cut to its end where together they are too long to be reported."""
    told = json.dumps(tails)
    longest = max(map(len, tails.values()), default=0)
    while len(told) > MOST_POOL_STATUS and longest:
        longest //= 2
        told = json.dumps({name: tail[len(tail) - min(longest, len(tail)) :] for name, tail in tails.items()})
    return told
