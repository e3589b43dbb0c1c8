"""The reference model: what a Key_Shared subscription does, in plain Python, one message at a time.

Slow and obvious on purpose. It has no tables by hash, no counters, no flags that could go stale: every question is
answered by walking over all messages. The broker's dispatcher must agree with it, message for message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mmh3

from sluice.actors.messages import SubscriptionSettings

FAR = 1 << 62


@dataclass
class Message:
    """A message. state: fresh, replay, unordered, waiting, held, pending, dead or done."""

    position: int
    hash: int
    state: str
    holder: int = 0
    delivered: bool = False
    sent: bool = False
    due: bool = False
    removed: bool = False
    redeliveries: int = 0
    until: int = 0
    revoked: bool = False
    overtook: bool = False


@dataclass
class Consumer:
    """A consumer. granted, credited and sent are cumulative."""

    number: int
    name: str
    granted: int = 0
    credited: int = 0
    sent: int = 0
    blocked: bool = False
    claims: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    ring: list[int] = field(default_factory=list)


@dataclass
class Model:
    """A subscription on one partition."""

    settings: SubscriptionSettings
    messages: dict[int, Message] = field(default_factory=dict)
    consumers: list[Consumer] = field(default_factory=list)
    parts: list[tuple[int, int]] = field(default_factory=list)
    points: dict[int, list[int]] = field(default_factory=dict)
    recent: dict[int, int] = field(default_factory=dict)
    brought: int = -1
    last_read: int = -1
    mark_delete: int = -1
    all_blocked: bool = False
    next_number: int = 1
    given_back: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of what was given back before it was read here: how often that was counted, and until when it waits."""
    now: int = 0
    first_deliveries: list[tuple[int, int]] = field(default_factory=list)

    # -- hashes -----------------------------------------------------------------------------------------------------

    def reduce(self, masked: int) -> int:
        """Reduce a masked hash for the selector (KS-2, KS-3)."""
        if self.settings.selector == "consistent_hashing":
            return masked % 65535 + 1
        return masked % 65536 or 1

    def owner(self, hash: int) -> int:
        """Return the number of the consumer that owns a hash, or 0."""
        if self.settings.selector == "consistent_hashing":
            at = sorted(point for point, line in self.points.items() if line)
            if not at:
                return 0
            return self.points[next((point for point in at if point >= hash), at[0])][0]
        return next((number for upper, number in sorted(self.parts) if upper >= hash), 0)

    def _add_to_ring(self, consumer: Consumer) -> None:
        same = [other.ring[0] for other in self.consumers if other.name == consumer.name and other.ring]
        index = min(set(range(len(same) + 1)) - set(same))
        points = set()
        for point in range(self.settings.replica_points):
            text = f"{consumer.name}\0{index}\0{point}".encode()
            points.add((mmh3.hash(text, 0, signed=False) & 0x7FFFFFFF) % 65535 + 1)
        consumer.ring = [index, *sorted(points)]
        for place in sorted(points):
            self.points.setdefault(place, []).append(consumer.number)

    def _add_part(self, consumer: Consumer) -> None:
        if not self.parts:
            self.parts = [(65536, consumer.number)]
            return
        self.parts.sort()
        lowers = [0, *(upper for upper, _ in self.parts)]
        widths = [upper - lower for lower, (upper, _) in zip(lowers, self.parts, strict=False)]
        biggest = widths.index(max(widths))
        self.parts.append((self.parts[biggest][0] - widths[biggest] // 2, consumer.number))

    def _leave_selector(self, number: int) -> None:
        for line in self.points.values():
            if number in line:
                line.remove(number)
        self.parts.sort()
        at = next((i for i, (_, owner) in enumerate(self.parts) if owner == number), None)
        if at is not None:
            upper, _ = self.parts.pop(at)
            if at == len(self.parts) and self.parts:
                self.parts[-1] = (upper, self.parts[-1][1])

    # -- membership -------------------------------------------------------------------------------------------------

    def consumer(self, number: int) -> Consumer | None:
        """Return the consumer with this number, or None."""
        return next((consumer for consumer in self.consumers if consumer.number == number), None)

    def join(self, name: str, holding: Sequence[int]) -> int:
        """Add a consumer."""
        consumer = Consumer(self.next_number, name, claims=set(holding))
        self.brought = max([self.brought, *holding])
        self.next_number += 1
        if self.settings.selector == "consistent_hashing":
            self._add_to_ring(consumer)
        else:
            self._add_part(consumer)
        self.consumers.append(consumer)
        self._claim(consumer)
        self._revoke()
        if len(self.consumers) > 1 and any(m.state != "done" for m in self.messages.values()):
            limit = {"read_position": self.last_read, "last_sent_position": self.last_sent()}.get(
                self.settings.policy, -1
            )
            if limit > self.mark_delete:
                self.recent[consumer.number] = limit
        return consumer.number

    def last_sent(self) -> int:
        """Return the highest position with no unsent message at or below it."""
        unsent = [m.position for m in self.messages.values() if m.state in ("fresh", "replay", "held") and not m.sent]
        if not unsent:
            return max(self.last_read, self.mark_delete)
        first = min(unsent)
        if first & 0xFFFFFFFF:
            return first - 1
        before = [m.position for m in self.messages.values() if m.position < first and m.state != "done"]
        return max(before, default=self.mark_delete)

    def leave(self, number: int) -> None:
        """Remove a consumer. Its messages wait in order."""
        self._leave_selector(number)
        for message in self.messages.values():
            if message.state == "pending" and message.holder == number:
                self._give_back(message, "replay")
        self.consumers = [consumer for consumer in self.consumers if consumer.number != number]
        self.recent.pop(number, None)
        if len(self.consumers) <= 1:
            self.recent.clear()
        if not self.consumers:
            for message in self.messages.values():
                message.sent = False
        self._settle()

    def _claim(self, consumer: Consumer) -> None:
        held = {m.hash for m in self.messages.values() if m.state == "pending" and m.holder != consumer.number}
        for message in self.messages.values():
            if message.position in consumer.claims and message.state != "done":
                consumer.claims.discard(message.position)
                free = not self.ordered or message.hash not in held
                if message.state in ("fresh", "replay", "unordered", "waiting", "held") and free:
                    message.state, message.holder = "pending", consumer.number
                    message.delivered = message.sent = True
                    message.removed |= message.position in consumer.finished
                elif message.position in consumer.finished and message.state != "pending":
                    message.state = "done"
        self._settle()

    # -- the log ----------------------------------------------------------------------------------------------------

    def append(self, messages: Sequence[tuple[int, int]], delayed: Sequence[int] = ()) -> None:
        """Read messages forward, as (position, masked hash); `delayed` ones are held with their keys."""
        for position, masked in messages:
            self.last_read = position
            if position not in self.messages:
                self._add(Message(position, self.reduce(masked), "fresh"))
        for consumer in self.consumers:
            self._claim(consumer)
        self._revoke()
        for position in delayed:
            if self.messages[position].state == "fresh":
                self.messages[position].state = "held"

    def bring(self, number: int, messages: Sequence[tuple[int, int]]) -> None:
        """Hand in a consumer's unread messages, (position, masked hash): its own, unless another one has the hash."""
        consumer = self.consumer(number)
        if consumer is None:
            return
        elsewhere = {m.hash for m in self.in_state("pending") if m.holder != number}
        consumer.claims -= consumer.finished - {position for position, _ in messages}
        for position, masked in messages:
            mine = position in consumer.claims and self.reduce(masked) not in elsewhere
            if mine and position not in self.messages:
                self._add(Message(position, self.reduce(masked), "fresh"))
        for other in self.consumers:
            self._claim(other)
        self._revoke()

    def due(self, messages: Sequence[tuple[int, int]]) -> None:
        """Make delayed messages due."""
        if self.in_state("held"):
            for message in self.in_state("fresh"):
                message.state = "replay"
        for position, masked in messages:
            if position not in self.messages:
                self._add(Message(position, self.reduce(masked), "unordered", due=True))
            elif self.messages[position].state == "held":
                self.messages[position].state = "replay"
        for consumer in self.consumers:
            self._claim(consumer)
        self._revoke()

    def _add(self, message: Message) -> None:
        """Add a message that was read, with its earlier redelivery count and delay."""
        self.messages[message.position] = message
        if message.position not in self.given_back:
            return
        message.redeliveries, message.until = self.given_back.pop(message.position)
        message.delivered = True
        message.due &= not self.keeps
        if message.until > self.now:
            message.state = "waiting"
        elif (message.redeliveries and message.state == "fresh") or (self.keeps and message.state == "unordered"):
            message.state = "replay"
        if 0 < self.settings.max_redeliver_count < message.redeliveries:
            message.state = "dead"

    def _note(self, consumer: Consumer, positions: set[int], until: int, counted: bool) -> None:
        """Count messages that the consumer claimed and gave back before they were read."""
        for position in positions - consumer.finished:
            count, before = self.given_back.get(position, (0, 0))
            if counted or until:
                self.given_back[position] = (count + counted, max(before, until))

    def in_state(self, *states: str) -> list[Message]:
        """Return the messages in these states, by position."""
        return sorted((m for m in self.messages.values() if m.state in states), key=lambda m: m.position)

    def room(self) -> int:
        """Return how many messages may be read forward (KS-39, KS-40)."""
        if not self.consumers or self.all_blocked:
            return 0
        waiting = sum(not self._unreached(m) for m in self.in_state("fresh", "replay", "unordered"))
        permits = sum(self.allowance(c) for c in self.consumers) - len(self.in_state("fresh"))
        s = self.settings
        limit = s.look_ahead_per_subscription
        if s.look_ahead_per_consumer > 0:
            limit = s.look_ahead_per_consumer * len(self.consumers)
            if s.look_ahead_per_subscription > 0:
                limit = min(limit, s.look_ahead_per_subscription)
        return max(min(permits, limit - waiting), 0)

    # -- permits and limits -----------------------------------------------------------------------------------------

    def unacked(self, consumer: Consumer) -> int:
        """Return the number of messages that a consumer holds."""
        return sum(m.state == "pending" and m.holder == consumer.number for m in self.messages.values())

    def allowance(self, consumer: Consumer) -> int:
        """Return how many more messages a consumer may get."""
        permits = max(consumer.credited - consumer.sent, 0)
        limit = self.settings.max_unacked_messages_per_consumer
        return min(permits, max(limit - self.unacked(consumer), 0)) if limit > 0 else permits

    def _settle(self) -> None:
        each, whole = (
            self.settings.max_unacked_messages_per_consumer,
            self.settings.max_unacked_messages_per_subscription,
        )
        for consumer in self.consumers:
            if each > 0 and self.unacked(consumer) >= each:
                consumer.blocked = True
            elif consumer.blocked and self.unacked(consumer) <= each // 2:
                consumer.blocked = False
                consumer.credited = consumer.granted
        held = len(self.in_state("pending", "waiting"))
        if whole > 0 and held >= whole:
            self.all_blocked = True
        elif held < whole / 2:
            self.all_blocked = False

    def grant(self, number: int, total: int) -> None:
        """Set a consumer's cumulative permits."""
        consumer = self.consumer(number)
        if consumer is not None and total > consumer.granted:
            consumer.granted = total
            if not consumer.blocked:
                consumer.credited = total

    # -- acknowledgements -------------------------------------------------------------------------------------------

    def acknowledge(self, positions: Sequence[int]) -> list[int]:
        """Mark messages done, by any consumer. Return those that were not done before."""
        done = sorted({p for p in positions if p in self.messages and self.messages[p].state != "done"})
        for position in done:
            self.messages[position].state = "done"
        for consumer in self.consumers:
            consumer.claims -= set(positions)
        self.given_back = {at: said for at, said in self.given_back.items() if at not in positions}
        self._settle()
        return done

    def negative_acknowledge(self, number: int, positions: Sequence[int], now: int, delay: int, counted: bool) -> int:
        """Give back those of the positions that the consumer holds."""
        mine = [m for m in self.in_state("pending") if m.holder == number and m.position in positions]
        consumer = self.consumer(number)
        unread = {p for p in consumer.claims if p in positions} if consumer else set()
        if consumer:
            consumer.claims -= unread
            self._note(consumer, unread, now + delay if delay else 0, counted)
        for message in mine:
            message.until = now + delay
            self._give_back(message, "waiting" if delay else "unordered" if counted else "replay")
            if counted:
                self._count_redelivery(message)
        self._revoke()
        self._settle()
        return len(mine) + len(unread)

    def redeliver_all(self, number: int, seen: Sequence[int], unseen: int) -> int:
        """Give back all messages sent to the consumer. The counts of those that it saw rise."""
        consumer = self.consumer(number)
        if consumer is None:
            return 0
        mine = [m for m in self.in_state("pending") if m.holder == number]
        total = len(mine) + len(consumer.claims)
        self._note(consumer, consumer.claims & set(seen), 0, True)
        consumer.claims.clear()
        consumer.sent -= unseen
        for message in mine:
            self._give_back(message, "replay")
            if message.position in seen:
                self._count_redelivery(message)
        self._settle()
        return total

    def _count_redelivery(self, message: Message) -> None:
        if message.state != "done":
            message.redeliveries += 1
            if 0 < self.settings.max_redeliver_count < message.redeliveries:
                message.state = "dead"

    def _give_back(self, message: Message, into: str) -> None:
        message.state = "done" if message.removed else "replay" if self.keeps and into == "unordered" else into
        message.revoked = False
        message.due &= not self.keeps

    def _revoke(self) -> None:
        """Ask back each held message behind an earlier one of its hash that waits, if that one keeps its place."""
        if self.keeps:
            waits = self.in_state("fresh", "replay", "waiting", "held")
            for message in self.in_state("pending"):
                earlier = any(m.hash == message.hash and m.position < message.position for m in waits)
                message.revoked |= earlier and not message.due

    def revoked(self, number: int) -> list[int]:
        """Return the messages that a consumer was asked to give back and still has."""
        return [m.position for m in self.in_state("pending") if m.revoked and m.holder == number]

    def remove(self, positions: Sequence[int] | None, up_to: int | None) -> None:
        """Take messages out, for a skip, an expiry or a clear."""
        if positions is None and up_to is None:
            self.given_back.clear()
        for consumer in self.consumers:
            gone = {
                p for p in consumer.claims if (positions is None or p in positions) and (up_to is None or p <= up_to)
            }
            if self.ordered:
                consumer.finished |= gone
            else:
                consumer.claims -= gone
        for message in self.messages.values():
            if (positions is not None and message.position not in positions) or message.state == "done":
                continue
            if up_to is not None and message.position > up_to:
                continue
            if message.state == "pending" and self.ordered:
                message.removed = True
            else:
                message.state = "done"
        self._settle()

    def mark_deleted(self, position: int) -> None:
        """Move the mark-delete position, and release consumers that joined recently."""
        self.given_back = {at: said for at, said in self.given_back.items() if at > position}
        self.mark_delete = max(self.mark_delete, position)
        self.recent = {number: limit for number, limit in self.recent.items() if limit > self.mark_delete}

    # -- dispatch ---------------------------------------------------------------------------------------------------

    @property
    def ordered(self) -> bool:
        """Whether messages of a hash wait for one another."""
        return not self.settings.allow_out_of_order_delivery

    @property
    def keeps(self) -> bool:
        """Whether a message that comes back keeps its place (nack_order=key)."""
        return self.settings.nack_order == "key" and self.ordered and self.settings.policy == "draining_hashes"

    def _waits_for_redelivery(self, message: Message) -> bool:
        """Return whether an earlier one of its hash waits for its delay, or one that was asked back is still out."""
        if not self.keeps:
            return False
        same = [m for m in self.messages.values() if m.hash == message.hash]
        return any(
            (m.state == "waiting" and m.position < message.position) or (m.state == "pending" and m.revoked)
            for m in same
        )

    def _unreached(self, message: Message) -> bool:
        """Return whether the message came back from an earlier owner's holder, and earlier ones are not read yet."""
        return self.keeps and message.state == "replay" and message.position > self.last_read

    def _gate(self, message: Message, owner: int) -> bool:
        """Return whether the policy itself holds a message back."""
        if not self.ordered:
            return False
        elsewhere = any(
            m.hash == message.hash and m.state == "pending" and m.holder != owner for m in self.messages.values()
        )
        if self.settings.policy == "draining_hashes" or (elsewhere and self.brought > self.mark_delete):
            return elsewhere
        if owner not in self.recent:
            return False
        limit = self.recent[owner] if message.state == "fresh" else min(self.recent.values())
        return message.position > limit and (elsewhere or not self.settings.remember_unacked_keys)

    def route(self, now: int) -> list[tuple[int, int, int]]:
        """Send all that may go out; return (consumer, position, redeliveries) in order of sending."""
        self.now = now
        for message in self.in_state("waiting"):
            if message.until <= now:
                message.state = "replay" if self.keeps else "unordered"
        self._settle()
        fresh, replay = self.in_state("fresh"), self.in_state("replay")
        if self.keeps and fresh and replay and replay[-1].position > fresh[0].position:
            for message in fresh:
                message.state = "replay"
        out: list[tuple[int, int, int]] = []
        permits = {consumer.number: self.allowance(consumer) for consumer in self.consumers}
        for states in (("replay", "unordered"), ("fresh",)):
            batch = [m for m in self.in_state(*states) if not self._unreached(m)]
            waiting = {m.hash for m in self.in_state("replay")} if states == ("fresh",) and self.ordered else set()
            going = []
            blocked: set[int] = set()
            for message in batch:
                owner = self.owner(message.hash)
                stop = any(m.hash == message.hash and m.position < message.position for m in self.in_state("held"))
                stop = (
                    stop
                    or message.hash in blocked
                    or message.hash in waiting
                    or not owner
                    or self._waits_for_redelivery(message)
                    or self._gate(message, owner)
                )
                if not stop and permits[owner] > 0:
                    permits[owner] -= 1
                    going.append((message, owner))
                elif self.ordered:
                    blocked.add(message.hash)
            for message, owner in going:
                self._send(message, owner)
                out.append((owner, message.position, message.redeliveries))
            for message in self.in_state("fresh") if states == ("fresh",) else ():
                message.state = "replay"
        self._settle()
        return out

    def _send(self, message: Message, owner: int) -> None:
        if not message.delivered and not message.due:
            self.first_deliveries.append((message.hash, message.position))
        if self.keeps and not message.due:
            same = [m for m in self.in_state("pending") if m.hash == message.hash and not m.due]
            later = [m for m in same if m.position > message.position]
            assert not later, "nothing goes out while a later message of its key is out"
        message.state, message.holder, message.delivered, message.sent = "pending", owner, True, True
        consumer = self.consumer(owner)
        assert consumer is not None
        consumer.sent += 1
