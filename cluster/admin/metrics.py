"""The metrics of a whole cluster for Prometheus, at the path that Pulsar's brokers have them at."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from sluice.actors.messages import DescribeCluster, Stats, shown
from sluice.actors.ports import Address, Unknown
from sluice.cluster.admin.broker import Broker
from sluice.cluster.host.metrics_text import text_of
from sluice.cluster.http.responses import large
from sluice.storage.errors import SluiceError

METRICS_MS, MOST_ASKED = 5_000, 1_000
"""Milliseconds after which owners that do not answer are left out of the metrics: Prometheus waits for ten seconds. So
many owners are asked at once."""


class Metrics:
    """Answers with the series of every owner of the cluster."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._ports = broker, broker.ports

    def routes(self) -> list[web.RouteDef]:
        """Return both ways to write the path: Pulsar's brokers lead from the first to the second."""
        return [web.get(path, large(self._metrics)) for path in ("/metrics", "/metrics/")]

    async def _metrics(self, request: web.Request) -> web.Response:
        """All are asked at once: those of a process that hangs are left out, and the others are told in time."""
        actors = shown(await self._broker.ask_controller(DescribeCluster(), patience=0))["actors"]
        owners = [row for row in actors if row["kind"] in ("dispatcher", "topic") and row["address"]]
        turns = asyncio.Semaphore(MOST_ASKED)
        until = self._ports.clock.monotonic() + METRICS_MS
        told = await asyncio.gather(*(self._told(row["address"], turns, until) for row in owners))
        found = [(row["kind"], stats) for row, stats in zip(owners, told, strict=True) if stats is not None]
        return web.Response(text=text_of(found), content_type="text/plain")

    async def _told(self, owner: Address, turns: asyncio.Semaphore, until: int) -> dict[str, Any] | None:
        """The statistics of an owner; None if it tells none by then (monotonic ms)."""
        async with turns:
            left = until - self._ports.clock.monotonic()
            try:
                reply = await self._ports.net.call(owner, Stats(), max(left, 1))
            except SluiceError:
                return None  # one that is still finding its feet has nothing to tell; the others have
        return None if isinstance(reply, Unknown) else dict(shown(reply))
