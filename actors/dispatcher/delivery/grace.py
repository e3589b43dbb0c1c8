"""Decides which place a consumer gets, and how long a place is kept for one that left (GR-1 to GR-8).

A consumer that attaches gets the first of these that exists: the place of its own incarnation; the place that another
one offered to its name; a place that is kept for its name; the place of an attached consumer of its name that does not
answer any more (whose messages stay with it until its lease is over); a new place. Only a new place moves hashes of
others. `actors.key_shared.state.hash_assignments` says what a place is and why no other hashes move.

**Durable.** The record holds the ring with every place. A consumer that attaches is answered only when the version with
its place is written, so a consumer that received anything has the same place under the next owner. A new owner counts
the grace from the time at which no holder of the place can be alive: it never ends early, and may end later.

**The second of a name.** While a consumer of the same name lives, a newcomer gets a place of its own. That place is not
kept before the newcomer asks for messages. The newcomer may be an attempt that its user gave up: then no consumer would
come back to the place, and its hashes would wait for the whole grace.

**An offer outlives its consumer.** A consumer that takes up an offered place may be an attempt that was given up as
well. So the offer holds until that consumer asks for messages.

**An earlier life** of a consumer holds nothing any more, as the consumer itself says: its session ends, and the new
life takes on its place.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.damping import Damping
from sluice.actors.dispatcher.delivery.leases import AT_ONCE, Leases
from sluice.actors.dispatcher.delivery.membership import base_of, life_of
from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.key_shared import NEW, AttachedConsumer, JoinAs, KeySharedDispatcher, same_ranges
from sluice.actors.messages import Attach, HandOver, SubscriptionSettings
from sluice.actors.ownership.names import check_name
from sluice.actors.ports import Ports
from sluice.storage.errors import Conflict, Invalid, Unavailable


class RecordedPlaces:
    """The ring with every place, where places are kept; see `Recorded`. damping: see the module of that name."""

    field = "places"

    def __init__(self, ports: Ports, core: KeySharedDispatcher, settings: SubscriptionSettings) -> None:
        self._ports, self._core = ports, core
        self._kind = [settings.selector, settings.replica_points]
        self.damping = Damping(settings.grace_ms)
        self.used = core.ring.keeps_places

    def to_record(self) -> Any:
        ring = self._core.ring
        if not ring.keeps_places:
            return None
        return {"kind": self._kind, "rows": ring.layout(), "flaps": self.damping.rows()}

    async def load(self, stored: Any) -> None:
        """Bring recorded places back, unless hashes are now assigned in another way."""
        ring, clock = self._core.ring, self._ports.clock
        if not ring.keeps_places or not stored:
            return
        if stored["kind"] == self._kind:
            ring.restore(stored["rows"], clock.now())
        self.damping.restore(stored["flaps"], clock.monotonic())


class ReconnectGrace:
    """The places of one subscription."""

    def __init__(self, context: SubscriptionContext, leases: Leases) -> None:
        self._ports, self._settings = context.ports, context.settings
        self._core, self._damping = context.core, context.damping
        self._membership, self._sessions, self._leases = context.membership, context.sessions, leases
        self._store, self._wakeups, self._ownership = context.store, context.wakeups, context.ownership
        self._damped: dict[int, tuple[str, int]] = {}
        """The consumers that wait for a place, by number: name, and until when (monotonic ms)."""
        self._damped_total = 0
        self._seconds: set[int] = set()
        """The numbers of consumers that came while one of their name lived, and have not asked for messages yet."""
        self._offered: set[int] = set()
        """The numbers of consumers at a place that was offered to them, and that have not asked for messages yet."""
        self.newcomers = False
        """Whether `asks` may have something to do: every poll looks at this."""
        self._coming: Counter[str] = Counter()
        """The names of the consumers that are attaching now."""

    @property
    def keeps_places(self) -> bool:
        """Whether this subscription keeps places."""
        return self._core.ring.keeps_places

    # -- coming ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def coming(self, name: str) -> Iterator[None]:
        """Keep the place of this name within the block: a consumer that attaches before the grace is over finds it."""
        self._coming[name] += 1
        try:
            yield
        finally:
            self._coming[name] -= 1
            if not self._coming[name]:
                del self._coming[name]
            self._wakeups.places.set()

    async def entry(self, request: Attach) -> JoinAs:
        """Return the place that a consumer gets; use it before anything is awaited. Raises Invalid, Unavailable."""
        if not self.keeps_places:
            return NEW
        living: set[int] = set()
        while True:
            entry, rival = self._decide(request, living)
            if rival is None:
                base = base_of(request.incarnation)
                return entry._replace(base=base, keeps_place=request.keep_place and not (living and entry == NEW))
            silent = await self._leases.silent([rival])
            if silent and self._sessions.is_open(rival) and self._core.ring.get(rival.number) is not None:
                self._leases.retire(rival, succeeded=True)
                return JoinAs(after=rival.number, base=base_of(request.incarnation), keeps_place=request.keep_place)
            living.add(rival.number)

    def _decide(self, request: Attach, living: set[int]) -> tuple[JoinAs, Session | None]:
        """Return the entry, or a consumer of the same name that must be asked first whether it lives."""
        entry = self._own_place(request)
        if entry is None and request.hands_over_to:
            entry = JoinAs(unassigned=True)
        if entry is None:
            entry = self._offered_place(request) or self._kept_place(request)
        if entry is not None:
            return entry, None
        for place in self._live():
            session = self._sessions.find(place.number)
            if place.name == request.consumer and place.keeps_place and session and place.number not in living:
                return NEW, session
        return self._new_place(request), None

    def _own_place(self, request: Attach) -> JoinAs | None:
        """Return the place of the incarnation. End an earlier life's session: its late requests get no place."""
        base = base_of(request.incarnation)
        place = next((place for place in self._core.ring.places() if place.base == base), None)
        if place is None:
            return None
        session = self._sessions.find(place.number) if place.slot not in self._core.ring.kept else None
        if session is not None:
            if life_of(session.incarnation) > life_of(request.incarnation):
                return JoinAs(unassigned=True)
            self._leases.end(session, "it began another life")
        return self._into(place, request)

    def _offered_place(self, request: Attach) -> JoinAs | None:
        ring = self._core.ring
        place = next((place for place in ring.places() if place.to and place.to == request.consumer), None)
        if place is None:
            return None
        if self._settings.selector == "sticky" and not same_ranges(place.ranges, request.ranges):
            raise Invalid(
                f"{request.consumer!r} takes over from {place.name!r}, and must bring the same hash ranges: "
                f"{', '.join(f'{low}-{high}' for low, high in place.ranges)}"
            )
        return JoinAs(into=place.slot) if place.slot in ring.kept else JoinAs(after=place.number)

    def _kept_place(self, request: Attach) -> JoinAs | None:
        """Return a place that is kept for the consumer's name, unless the former consumer may still come back."""
        ring = self._core.ring
        kept = [ring.place(slot) for slot in ring.kept]
        mine = [place for place in kept if place.name == request.consumer and place.keeps_place]
        free = [place for place in mine if not self._membership.awaits(place.base)]
        if mine and not free:
            raise Unavailable(f"consumer {request.consumer!r} may still be alive elsewhere; attach again")
        return self._into(free[0], request) if free else None

    def _into(self, place: AttachedConsumer, request: Attach) -> JoinAs | None:
        """Return the hashes of a place, unless the consumer now wants others."""
        ring = self._core.ring
        if place.slot not in ring.kept:
            return None
        if self._settings.selector == "sticky" and not same_ranges(place.ranges, request.ranges):
            ring.give_up([place.slot], self._ports.clock.now())
            return None
        return JoinAs(into=place.slot)

    def _new_place(self, request: Attach) -> JoinAs:
        others = self._core.ring.places()
        damped = self._settings.selector != "sticky" and self._delay(request.consumer) and others
        return JoinAs(unassigned=True) if damped else NEW

    def _delay(self, name: str) -> int:
        return self._damping.delay(name, self._ports.clock.monotonic())

    def _live(self) -> list[AttachedConsumer]:
        """Return the attached consumer of a place."""
        ring = self._core.ring
        kept = ring.kept
        return [place for place in ring.places() if place.slot not in kept]

    def entered(self, number: int, request: Attach) -> None:
        """Note that a consumer was attached as `entry` said."""
        ring = self._core.ring
        if not ring.keeps_places:
            return
        place, now = ring.get(number), self._ports.clock.monotonic()
        if place is not None and request.keep_place and not place.keeps_place:
            self._seconds = self._open(self._seconds) | {number}
        if place is not None and place.to:
            self._offered = self._open(self._offered) | {number}
        self.newcomers = bool(self._seconds or self._offered)
        if request.hands_over_to:
            self._offer(number, request.hands_over_to)
        elif place is None:
            self._damped[number] = (request.consumer, now + self._delay(request.consumer))
            self._damped_total += 1
            self._ports.log("damped", consumer=request.consumer, millis=self._delay(request.consumer))
        else:
            self._damping.given(request.consumer, now)
        self._wakeups.places.set()

    def _open(self, numbers: set[int]) -> set[int]:
        """Return those of these numbers whose sessions are open."""
        return {number for number in numbers if self._sessions.find(number) is not None}

    async def asks(self, number: int) -> None:
        """Keep the consumer's place from now on, and withdraw its offer: the consumer asks for messages.

        Only the consumer itself can offer the place again. The change is durable before the consumer gets any message.
        """
        if number in self._seconds or number in self._offered:
            place = self._core.ring.get(number)
            if place is not None:
                if number in self._seconds:
                    place.keep_place()
                if number in self._offered:
                    self._core.ring.offer(place, "")
                await self._store.barrier()
            self._seconds.discard(number)
            self._offered.discard(number)
        self.newcomers = bool(self._seconds or self._offered)

    # -- handing over ---------------------------------------------------------------------------------------------

    async def hand_over(self, session: Session, request: HandOver) -> None:
        """See messages.HandOver. Returns when the offer is durable."""
        check_name("consumer", request.to)
        if not self.keeps_places:
            raise Invalid("this subscription keeps no places to hand over: it needs grace_ms > 0")
        taken = any(place.name == request.to for place in self._live() if place.number != session.number)
        if taken and request.to != session.name and self._core.ring.get(session.number) is not None:
            raise Conflict(f"consumer {request.to!r} has hashes of its own already; hand over before it attaches")
        self._offer(session.number, request.to)
        await self._store.barrier()

    def _offer(self, number: int, to: str) -> None:
        ring = self._core.ring
        self._offered.discard(number)
        place = ring.get(number)
        if place is not None:
            ring.offer(place, to)
        else:
            self._damped.pop(number, None)
            ring.hand_over_told(number)
            self._wakeups.route.set()

    # -- time -----------------------------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Whether a place is kept for a consumer just now."""
        return bool(self._core.ring.kept or self._damped)

    async def run(self) -> None:
        """Give up places that were kept long enough, and give places to consumers that wait for one."""
        while self.keeps_places:
            await self._wakeups.places.wait(self._ports, self._look())
            self._wakeups.places.clear()
            if self._ownership.ended():
                return

    def _look(self) -> int | None:
        """Carry out due changes; return when to look again at the latest, ms from now."""
        now, ring = self._ports.clock.monotonic(), self._core.ring
        next_looks, over = [], list[int]()
        for slot, kept in list(ring.kept.items()):
            place = ring.place(slot)
            if kept.over is None:
                self._begin(slot, place, now)
            if place.name in self._coming or place.to in self._coming:
                continue
            if kept.over is None:
                next_looks.append(max(self._membership.trust_ms // 4, 1))
            elif kept.over <= now:
                over.append(slot)
            else:
                next_looks.append(kept.over - now)
        if over:
            self._give_up(over[:AT_ONCE], now)
            next_looks += [1] * (len(over) > AT_ONCE)  # the others in a turn of their own
        for number, (name, until) in list(self._damped.items()):
            if until <= now or not ring.places():
                self._give_place(number, name, now)
            else:
                next_looks.append(until - now)
        return min(next_looks, default=None)

    def _begin(self, slot: int, place: AttachedConsumer, now: int) -> None:
        """Begin the grace at the time at which no consumer that had the place can be alive."""
        if self._membership.awaits(place.base):
            return
        grace = self._settings.grace_ms if place.keeps_place else 0
        self._core.ring.keep(slot, now + grace, self._ports.clock.now() + grace)

    def _give_up(self, slots: Sequence[int], now: int) -> None:
        places = [self._core.ring.place(slot) for slot in slots]
        for place in places:
            self._ports.log("place_given_up", consumer=place.name)
        self._core.ring.give_up(slots, self._ports.clock.now())
        for place in places:
            if place.keeps_place:
                self._damping.given_up(place.name, now)
        self._changed()

    def _give_place(self, number: int, name: str, now: int) -> None:
        del self._damped[number]
        try:
            given = self._core.ring.give_place(number, self._ports.clock.now())
        except Conflict as error:
            self._ports.log("no_place", consumer=name, error=str(error))
            return
        if given:
            self._damping.given(name, now)
            self._changed()
            self._store.hold_back()  # its place is in the record before it gets anything

    def _changed(self) -> None:
        self._store.dirty()
        self._wakeups.all()

    def stats(self) -> dict[str, Any]:
        """Return the part of the subscription's statistics about places."""
        if not self.keeps_places:
            return {}
        left = self._ports.clock.now() - self._ports.clock.monotonic()
        waiting = [
            {"consumerName": name, "until": until + left}
            for number, (name, until) in self._damped.items()
            if self._sessions.find(number) is not None
        ]
        return {"dampedConsumers": waiting, "dampedConsumersTotal": self._damped_total}
