"""The broker's world with the other subscription types, policies and options, one drawn by each seed.

What is promised for each of them is judged: nothing is lost, comes again without a reason, or is left over. Order and
single holders are judged where the choice keeps them, see `_EXCUSED`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec

from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import BrokerWorld, Course, Size

ORDER = {"order", "overlap"}
RELAYED = {"overlap", "unexplained_redelivery", "early"}
"""Of failover: what the active consumer holds goes to the next one, and no message is delayed (BD-1)."""
_EXCUSED: list[tuple[dict[str, Any], set[str]]] = [
    ({"type": "shared"}, ORDER),
    ({"type": "failover"}, RELAYED),
    ({"allow_out_of_order_delivery": True}, ORDER),
    ({"policy": "last_sent_position"}, ORDER),
    ({"policy": "last_sent_position", "remember_unacked_keys": True}, ORDER),
    ({"policy": "read_position"}, ORDER),
    ({"policy": "read_position", "remember_unacked_keys": True}, ORDER),
    ({"delay_key_policy": "block_key"}, set()),
]
"""Settings, and what is not promised with them. The older policies keep order in the cases that PIP-282 describes, not
in every churn."""


class TypesWorld(BrokerWorld):
    """See the module."""

    name = "types"

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"types/{world.seed}")
        size = Size.draw(rng, options)
        chosen, excused = rng.choice(_EXCUSED)
        settings = msgspec.structs.replace(size.traffic.settings, **chosen)
        course = Course(world, faults, options, replace(size, traffic=replace(size.traffic, settings=settings)))
        course.excused |= excused
        course.counters["; ".join(f"{name}={value}" for name, value in chosen.items())] = 1
        return course
