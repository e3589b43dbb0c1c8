"""The settings that a consumer asks of one dispatcher, and the callbacks for messages that come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.actors.consumer.revocations import TakingBack
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import Event, SubscriptionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """One consumer of a subscription on one partition. settings: with which that is to work; said: see Configure.

    incarnation: by which it is known from owner to owner. ranges: see messages.Attach, as are process, priority,
    keep_place, read_compacted, moves and properties. queue_size: messages that may wait here.
    """

    topic: str
    partition: int
    subscription: str
    name: str
    incarnation: str
    settings: SubscriptionSettings
    queue_size: int
    ranges: Sequence[tuple[int, int]] = ()
    process: str = ""
    priority: int = 0
    keep_place: bool = True
    read_compacted: bool = False
    moves: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    said: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCallbacks:
    """on_received: with each part that came. on_event: with the partition and what it is told, or `lost`, `failed`, and
    `found` when it has attached again. before_send: when something is about to go that takes acknowledgements along.
    taking_back: see there. divide: makes several parts of one before it is held.
    """

    on_received: Callable[[Received], None]
    on_event: Callable[[int, Event], None]
    before_send: Callable[[], None] = lambda: None
    taking_back: TakingBack = field(default_factory=TakingBack)
    divide: Callable[[Received], Sequence[Received]] = lambda part: (part,)
