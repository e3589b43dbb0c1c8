"""Asks the broker what a consumer holds, because a fault must hit one that has something to lose.

Under a load that everybody can carry, a consumer is done with most messages at once, and a SIGKILL hits a process that
holds nothing: it proves nothing. A process that is stopped first can acknowledge no more, so what is sent to it from
then on is its own until it dies. Stopped for longer, its queue fills, and messages of its keys wait at the broker, read
and not sent: only then is it decided who gets those, when a consumer joins to help and takes some of its keys over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sluice.loadgen.base.broker import BrokerClient
from sluice.storage.errors import SluiceError

HOLD_S = 2.0
"""How long a consumer that is to be killed is stopped at most, until it holds messages."""
HANG_S = 7.0
"""How long a consumer hangs at most, until its queue is full: less than its lease, or its session would end first."""
BEHIND = 200
"""The number of messages that are to wait behind full queues."""
_ASK_EVERY_S = 0.05


class Victims:
    """Asks the owners of a subscription about one consumer."""

    def __init__(self, client: BrokerClient, topic: str, subscription: str) -> None:
        self._client, self._topic, self._subscription = client, topic, subscription

    def held(self, name: str) -> int:
        """Unacknowledged messages of a consumer; 0 while the owners do not answer."""
        return sum(int(row["unackedMessages"]) for _, row in self._rows(name))

    def waiting(self, name: str) -> int:
        """Messages that wait in those partitions where a consumer's queue is full."""
        return sum(int(stats["msgInReplay"]) for stats, row in self._rows(name) if int(row["availablePermits"]) <= 0)

    def until_held(self, name: str) -> dict[str, int]:
        """Wait until a stopped consumer holds something, HOLD_S at most; a loadgen.faults.faults.Until."""
        return {"held": _enough(lambda: self.held(name), 1, HOLD_S)}

    def until_behind(self, name: str) -> dict[str, int]:
        """Wait until a stopped consumer's queue is full and messages wait, HANG_S at most; a
        loadgen.faults.faults.Until."""
        behind = _enough(lambda: self.waiting(name), BEHIND, HANG_S)
        return {"held": self.held(name), "behind": behind}

    def _rows(self, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return for each partition its statistics and the consumer's row in them; none if the statistics cannot be
        read.
        """
        try:
            statistics = self._client.stats(self._topic, self._subscription)
        except SluiceError:
            return []
        return [
            (stats, row) for stats in statistics for row in stats.get("consumers", []) if row["consumerName"] == name
        ]


def _enough(count: Callable[[], int], least: int, seconds: float) -> int:
    """Count until there are enough, or for a number of seconds; returns the last count."""
    deadline = time.monotonic() + seconds
    while (seen := count()) < least and time.monotonic() < deadline:
        time.sleep(_ASK_EVERY_S)
    return seen
