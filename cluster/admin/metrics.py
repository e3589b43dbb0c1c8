"""The metrics of a whole cluster for Prometheus, at the path that Pulsar's brokers have them at."""

from __future__ import annotations

from aiohttp import web

from sluice.actors.messages import DescribeCluster, Stats, shown
from sluice.cluster.admin.broker import Broker
from sluice.cluster.host.metrics_text import MetricsText
from sluice.cluster.http.responses import in_turns, large

METRICS_MS = 5_000
"""Milliseconds after which owners that do not answer are left out of the metrics: Prometheus waits for ten seconds."""


class Metrics:
    """Answers with the series of every owner of the cluster."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[web.RouteDef]:
        """Return both ways to write the path: Pulsar's brokers lead from the first to the second."""
        return [web.get(path, large(self._metrics)) for path in ("/metrics", "/metrics/")]

    async def _metrics(self, request: web.Request) -> web.Response:
        """Answer with the metrics. The owners of a process that hangs are left out, and the others come in time."""
        actors = shown(await self._broker.ask_controller(DescribeCluster(), patience=0))["actors"]
        owners = [row for row in actors if row["kind"] in ("dispatcher", "topic") and row["address"]]
        told = await self._broker.told([row["address"] for row in owners], Stats(), METRICS_MS)
        text = MetricsText()
        async for row, stats in in_turns(zip(owners, told, strict=True)):
            if stats is not None:
                text.add(row["kind"], stats)
        return web.Response(text=text.text(), content_type="text/plain")
