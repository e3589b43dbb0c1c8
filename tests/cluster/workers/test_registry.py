"""A keeper's end of the registry: its reports to the controller, and the answers."""

from __future__ import annotations

import json
from typing import Any, cast
from unittest.mock import Mock

from sluice.actors.messages import ClaimPool, PoolWanted, ReportPool
from sluice.actors.messages.workers import MOST_POOL_STATUS, MOST_REASON
from sluice.cluster.client.client import Client
from sluice.cluster.workers.keeper import PoolKeeper
from sluice.cluster.workers.pool import status_of
from sluice.cluster.workers.registry import PoolReporter
from tests.cluster.helpers import eventually

CLAIM = ClaimPool(
    name="billing", topic="orders", subscription="s", kind="detached", version="1", min_workers=1, max_workers=1
)


TAILS = {f"billing-{number}": f"begin {'x' * 4_000}\n\x1b end {number}" for number in range(300)}


class FakeController:
    """Wants four workers, and their last lines, whatever it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.patience: list[int] = []

    def ask_controller(self, request: Any, patience: int) -> PoolWanted:
        self.asked.append(request)
        self.patience.append(patience)
        return PoolWanted(epoch=7, min_workers=4, max_workers=4, tails=True)


def reporter(controller: FakeController) -> tuple[PoolReporter, Mock]:
    keeper = Mock(PoolKeeper, **{"tails.return_value": TAILS, "status.return_value": status_of({"status": {}})})
    return PoolReporter(cast(Client, controller), CLAIM, keeper, lambda: None), keeper


def test_a_keeper_hears_with_its_claim_what_is_wanted() -> None:
    """Before it starts or ends a worker, as the numbers that it was made with may not hold any more."""
    controller = FakeController()
    reports, keeper = reporter(controller)
    assert reports.claim() == 7
    assert controller.asked == [CLAIM]
    keeper.limit.assert_called_once_with(4, 4)


def test_the_end_of_a_pool_is_told_with_the_reason() -> None:
    controller = FakeController()
    reports, _ = reporter(controller)
    reports.claim()
    reports.start()
    reports.end("x" * MOST_REASON + "ValueError: never", 77)
    last = controller.asked[-1]
    assert isinstance(last, ReportPool)
    assert (last.epoch, last.ended, len(last.stopped)) == (7, True, MOST_REASON)
    assert last.stopped.endswith("ValueError: never")
    assert controller.patience[-1] == 77, "so long a controller that is being replaced is waited for"


def test_last_lines_that_are_too_long_are_cut_in_front() -> None:
    """And not behind, where it would be no JSON any more."""
    controller = FakeController()
    reports, _ = reporter(controller)
    reports.start()
    eventually(lambda: any(getattr(asked, "tails", "") for asked in controller.asked), lambda: "")
    reports.end()
    told = next(asked.tails for asked in controller.asked if getattr(asked, "tails", ""))
    assert len(told) <= MOST_POOL_STATUS
    tails = json.loads(told)
    assert tails.keys() == TAILS.keys()
    assert all(tail.endswith(f"end {number}") for number, tail in enumerate(tails.values()))
    assert min(map(len, tails.values())) > 500
