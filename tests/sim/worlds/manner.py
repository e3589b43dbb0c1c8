"""How clients of Pulsar behave in a run of the gateway's world."""

from __future__ import annotations

import random
from dataclasses import dataclass

KEY_SHARED, SHARED, FAILOVER = 3, 1, 2


@dataclass(frozen=True)
class Manner:
    """How the clients of a run are: drawn from the seed.

    by_key: batches hold one key each, as clients make them for Key_Shared. index: single messages of a batch are
    acknowledged. receipts: acknowledgements are confirmed. again: how likely an acknowledgement is said once more.
    watchful: clients ask now and then how many partitions the topic has. earliest: where a new subscription begins.
    deduplicated: the topic stores nothing twice; then messages go in chunks too, and some frames suffer on the way.
    at_once: what was refused comes again, with all that follows it, before the producer is opened again.
    lanes: how many producers a client has on each partition, each with keys of its own. With several, each
    message is a frame, and the gateway decodes them without columns.
    """

    gateways: list[str]
    type: int
    by_key: bool
    index: bool
    receipts: bool
    again: float
    queue: int
    gather_ms: int
    watchful: bool = False
    earliest: bool = True
    deduplicated: bool = False
    at_once: bool = False
    lanes: int = 1

    @classmethod
    def draw(cls, rng: random.Random, gateways: list[str], *, deduplicated: bool) -> Manner:
        """Some manner; with deduplication numbers rise, so batches are not by key."""
        return cls(
            gateways,
            rng.choice((KEY_SHARED, KEY_SHARED, KEY_SHARED, SHARED)),
            not deduplicated and rng.random() < 0.5,
            rng.random() < 0.6,
            rng.random() < 0.5,
            rng.choice((0.0, 0.4)),
            rng.choice((1, 4, 30, 1_000)),
            rng.choice((1, 10, 100)),
            deduplicated=deduplicated,
        )
