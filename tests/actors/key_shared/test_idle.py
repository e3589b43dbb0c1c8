"""The cost of a subscription that nobody uses. A large broker has thousands of them."""

from __future__ import annotations

import tracemalloc

from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.messages import SubscriptionSettings


def test_an_idle_subscription_takes_half_a_megabyte() -> None:
    KeySharedDispatcher(SubscriptionSettings())
    tracemalloc.start()
    try:
        idle = KeySharedDispatcher(SubscriptionSettings())
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert idle.idle()
    assert taken < 512 * 1024
