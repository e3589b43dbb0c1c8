"""The request of a client that subscribes, in Sluice's own terms."""

from __future__ import annotations

from dataclasses import dataclass

from actors.messages import SubscriptionSettings

TYPES = ("exclusive", "shared", "failover", "key_shared")
"""Of subscriptions, by their numbers on the wire."""
STICKY = 1
"""The mode of Key_Shared in which consumers bring ranges of their own."""
ONE_HAS_ALL = ("exclusive", "failover")
"""Types of subscriptions where all messages of a batch are at one consumer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's wishes for a subscription. start: a reader's first position, None for a consumer of a subscription.

    named: the client chose the name. compacted: it wants of each key the last message alone. role: the client's.
    """

    subscription: str
    name: str
    settings: SubscriptionSettings
    ranges: list[tuple[int, int]]
    start: int | None
    priority: int = 0
    named: bool = True
    compacted: bool = False
    role: str = ""
