"""Ties a keeper to the controller: what is reported, and what becomes of what an operator wants."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from sluice.actors.messages import ClaimPool, PoolWanted
from sluice.cluster.workers.keeper import PoolKeeper, plain
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.registry import KeeperCallbacks, PoolReporter

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client


def reporter(
    client: Client,
    place: tuple[str, str],
    options: WorkersOptions,
    version: str,
    keeper: PoolKeeper,
    *,
    on_fenced: Callable[[], object],
    start: str = "",
) -> PoolReporter:
    """Reports a keeper, and tells it what is wanted. place: topic and subscription. start: see messages.ClaimPool."""

    def wanted(told: PoolWanted) -> None:
        keeper.limit(told.min_workers, told.max_workers)
        if told.draining:
            keeper.stop()

    claim = ClaimPool(
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
    callbacks = KeeperCallbacks(
        status=lambda: plain(keeper.status()), tails=keeper.tails, on_wanted=wanted, on_fenced=on_fenced
    )
    return PoolReporter(client, claim, callbacks)
