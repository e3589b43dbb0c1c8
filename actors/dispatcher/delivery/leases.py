"""Carries out what `membership` decides: ends sessions whose leases ran out, and waits for those of an earlier owner.

A process that has ended holds nothing, so the lease of a consumer in it is not waited for (`ports.Watch`, if the world
has one).

**A new owner** sends nothing until each consumer that may hold messages of an earlier owner has come back and said what
it holds, or must have stopped (promise 2). A consumer that comes back names the positions that it holds, but not their
keys. Until those messages are read again the new owner does not know their hashes: the ring may have changed, and an
earlier message of the same key would go to another consumer. So it first asks the topic for their hashes, and sends
nothing until the topic has answered. It cannot wait until the messages are read again, because reading stops when
permits or look-ahead are used up.

**Many at once.** A consumer that leaves moves hashes, which takes a millisecond with thousands of consumers. Where
thousands leave together, each in a change of its own, nothing else would be done for seconds. So those that leave
together are one change, AT_ONCE of them in a turn of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.membership import LeaseHolder, LeaseState
from sluice.actors.dispatcher.delivery.process_sessions import Beat
from sluice.actors.dispatcher.delivery.sessions import Session
from sluice.actors.messages import NO_POSITIONS, NO_ROWS, ReadRowIndex, RowIndex
from sluice.actors.ports import Watch
from sluice.actors.runtime.waiting import Backoff, Signal
from sluice.storage.errors import SluiceError

LIVENESS_MS = 5_000
"""Pulsar's connectionLivenessCheckTimeoutMillis."""
RETRY_FIRST, RETRY_MOST = 50, 2_000
AT_ONCE = 256
"""The number of consumers that leave in one change. A subscription with no more does not gather them."""
LOOKS = 4
"""How often in the time of a lease to check whether waiting messages move, and which keys are held."""


class Ending(NamedTuple):
    """The end of a session: its reason, and whether the place may be kept."""

    session: Session
    reason: str
    keep_place: bool = True


class Leases:
    """Ends sessions, and the waiting for consumers of an earlier owner.

    unidentified: sessions whose messages' hashes are not known yet, and what that waits for.
    """

    def __init__(self, context: SubscriptionContext) -> None:
        self._ports, self._topic, self._store = context.ports, context.topic, context.store
        self._membership, self._sessions, self._core = context.membership, context.sessions, context.core
        self._wakeups, self._ownership = context.wakeups, context.ownership
        self._waited_for = Signal()
        """Set when there is another lease to wait for."""
        self._short = max(self._membership.trust_ms // 2, 1)
        self._looked = 0
        self._ending: dict[int, tuple[Ending, Signal]] = {}
        """The sessions that end in one of the next turns, by number, each with the signal that is set then."""
        self._was_idle = False
        """Whether the last look found no message that could be sent."""
        self.unidentified: dict[int, str] = {}

    async def run(self, look: Callable[[], None]) -> None:
        """End expired sessions, twice in the time of trust; where nothing waits, no later than the first lease that may
        end. look: called a few times in a lease while there is anything that could be sent and no consumer is awaited.
        """
        rest = self._short
        while True:
            await self._waited_for.wait(self._ports, rest, partial(self._rest_longer, look))
            self._waited_for.clear()
            now = self._ports.clock.monotonic()
            await self.end_expired(now)
            self.forget_retired(self._membership.overdue(LeaseState.RETIRED, now))
            self._store.look_if_idle()
            if self._membership.all(LeaseState.AWAITED):
                self._wakeups.came_or_went()
                rest = self._short
            else:
                rest = self._rest(idle=self._look(look))

    async def end_expired(self, now: int) -> None:
        """End the sessions whose leases are over. A session that is renewed before its turn goes on."""
        while True:
            overdue = [member.session for member in self._membership.overdue(LeaseState.ATTACHED, now)]
            sessions = [self._sessions.find(number) for number in overdue[:AT_ONCE]]
            self._end_all([Ending(session, "lease expired") for session in sessions if session is not None])
            if len(overdue) <= AT_ONCE:
                return
            await self._ports.clock.sleep(0)

    def _rest_longer(self, look: Callable[[], None]) -> int:
        """Return how long (ms) there still is no session to end; 0: there is one.

        Other work takes no task: thousands of subscriptions may have messages waiting, each with timers of its own.
        """
        if self._membership.next_end() <= self._ports.clock.monotonic():
            return 0
        idle = self._look(look)
        # Where nothing waits, a heartbeat that finds this owner not certain has it look.
        self._store.look_if_idle(self._membership.lease_ms if idle else None)
        return self._rest(idle=idle)

    def _look(self, look: Callable[[], None]) -> bool:
        """Call `look` if it is time; once more when no message waits any more. Return whether it was time."""
        idle = self._core.idle()
        if idle and self._was_idle:
            return True
        now = self._ports.clock.monotonic()
        if now >= self._looked + self._membership.lease_ms // LOOKS:
            self._was_idle, self._looked = idle, now
            look()
        return False

    def _rest(self, *, idle: bool) -> int:
        """Return how long (ms) there is nothing to look at. A consumer that comes meanwhile has a whole lease."""
        if not idle or not (end := self._membership.next_end()):
            return self._short
        return max(min(end - self._ports.clock.monotonic(), self._membership.lease_ms), self._short)

    # -- the living -----------------------------------------------------------------------------------------------

    def renew(self, session: Session) -> None:
        """Renew the lease of a session whose consumer was heard or answered."""
        self._membership.renew(session.incarnation, self._ports.clock.monotonic())

    def heartbeat(self, number: int, turn: int, now: int) -> Beat:
        """Renew a session whose process lives. turn: of the poll that waits there, 0 for none. See SessionOwner.

        No await lies between knowing that this is the owner and renewing. A living process need not ask for messages: a
        heartbeat does not keep a place that others want (`silent`).
        """
        session = self._sessions.find(number)
        if session is None or self._ownership.ended():
            return Beat.REFUSED
        if not self._store.certain(now):
            self._store.look_if_idle()
            return Beat.REFUSED
        self._membership.renew(session.incarnation, now)
        return Beat.RENEWED if not turn or session.waits_in(turn) else Beat.UNASKED

    def watch_session(self, session: Session, process: str) -> None:
        """End this session as soon as its process has ended."""
        if self._ports.watch is not None and self._ports.watch.sees(process):
            session.watched_by(self._ports.spawn(self._end_with(self._ports.watch, session, process), "watch"))

    # -- ends -----------------------------------------------------------------------------------------------------

    def end(self, session: Session, reason: str, *, dismissed: bool = False, keep_place: bool = True) -> None:
        """End a session: its messages go to the others, or wait for the consumer (`grace`).

        dismissed: the consumer does not know, and stays a member. keep_place False: it will not come back.
        """
        self._end_all([Ending(session, reason, keep_place)], dismissed=dismissed)

    async def end_in_turn(self, session: Session, reason: str, *, keep_place: bool = True) -> None:
        """End a session as `end` does, together with all others that end now; returns when that is done."""
        if len(self._sessions) <= AT_ONCE:
            self.end(session, reason, keep_place=keep_place)
            return
        if not self._ending:
            self._ports.spawn(self._end_in_turns(), "ends")
        _, over = self._ending.setdefault(session.number, (Ending(session, reason, keep_place), Signal()))
        await over.wait(self._ports)

    async def _end_in_turns(self) -> None:
        while self._ending:
            await self._ports.clock.sleep(0)  # who else ends comes along
            turn = [self._ending[number] for number in [*self._ending][:AT_ONCE]]
            self._end_all([ending for ending, _ in turn if self._sessions.is_open(ending.session)])
            for ending, over in turn:
                del self._ending[ending.session.number]
                over.set()

    def _end_all(self, endings: Sequence[Ending], *, dismissed: bool = False) -> None:
        if not endings:
            return
        late = self._late_copies([ending.session for ending in endings])
        for session, reason, _ in endings:
            self._ports.log("session_ended", consumer=session.name, session=session.number, reason=reason)
            self._sessions.close(session)
        leaving = {session.number: keep and session.number not in late for session, _, keep in endings}
        self._core.leave_all(leaving, now=self._ports.clock.now())
        if not dismissed:
            for session, *_ in endings:
                self._membership.leave(session.incarnation)
        self._changed()

    def _late_copies(self, sessions: Iterable[Session]) -> set[int]:
        """Return the numbers of sessions that come from late copies of a request: their consumers had ended before.

        Such a session never polled, and another session has its name and a place. A session that handed its place over
        has none, so it does not count as that other session.
        """
        unheard = [session for session in sessions if session.turn == 0]
        if not (unheard and self._core.ring.keeps_places):
            return set()
        names, placed = {session.name for session in unheard}, {place.number for place in self._core.ring.places()}
        named = [other for other in self._sessions.all() if other.name in names and other.number in placed]
        owners: dict[str, list[int]] = {}
        for other in named:
            owners.setdefault(other.name, []).append(other.number)
        return {one.number for one in unheard if owners.get(one.name, [one.number]) != [one.number]}

    def dismiss(self, reason: str) -> None:
        """End every session; see `Membership.dismiss`."""
        attached = self._membership.all(LeaseState.ATTACHED)
        self._membership.dismiss()
        self._waited_for.set()
        self._end_all([Ending(session, reason) for session in self._sessions.all()], dismissed=True)
        for member in attached:
            self._forget_when_ended(member)

    async def silent(self, asked: Sequence[Session]) -> list[Session] | None:
        """Ask sessions whether they live, by ending their long polls: a consumer that lives polls again at once.

        Return those that do not within LIVENESS_MS, without those whose sessions ended; None: one of them lives.
        """
        await self._store.be_certain()  # else no poll would be answered
        until = self._ports.clock.monotonic() + LIVENESS_MS
        for session in asked:
            session.ask()
        silent = []
        for session in asked:
            lives = await session.lives.wait(self._ports, max(until - self._ports.clock.monotonic(), 0))
            if self._sessions.is_open(session):
                if lives:
                    return None
                silent.append(session)
        return silent

    def retire(self, session: Session, *, succeeded: bool = False) -> None:
        """Take the place of a consumer that does not answer; it keeps its messages as long as its lease may last.

        succeeded: another consumer takes its place over at once; until then the place stays as it is.
        """
        self._ports.log("retired", consumer=session.name, session=session.number)
        if not succeeded:
            self._core.retire(session.number, now=self._ports.clock.now())
        self._sessions.close(session)
        member = self._membership.retire(session.incarnation)
        self._waited_for.set()
        self._changed()
        self._forget_when_ended(member)

    def forget_retired(self, members: Iterable[LeaseHolder]) -> None:
        """Forget retired consumers whose leases are over: their messages go to the others."""
        leaving: dict[int, bool] = {}
        for member in members:
            self._membership.leave(member.incarnation)
            if member.session:
                reason = "it did not answer"
                self._ports.log("session_ended", consumer=member.name, session=member.session, reason=reason)
                leaving[member.session] = True
            self._changed()
        self._core.leave_all(leaving, now=self._ports.clock.now())

    def _changed(self) -> None:
        self._store.dirty()
        self._wakeups.came_or_went()

    def _forget_when_ended(self, member: LeaseHolder) -> None:
        """Wait for this member no longer than its process lives."""
        if self._ports.watch is not None and self._ports.watch.sees(member.process):
            self._ports.spawn(self._forget_with(self._ports.watch, member), "watch")

    async def _end_with(self, watch: Watch, session: Session, process: str) -> None:
        await watch.ended(process)
        session.watched_by(None)
        if self._sessions.is_open(session):
            await self.end_in_turn(session, "its process ended")

    async def _forget_with(self, watch: Watch, member: LeaseHolder) -> None:
        await watch.ended(member.process)
        gone = self._membership.ended(member.incarnation)
        if gone is not None:
            self.forget_retired([gone])

    # -- consumers of an earlier owner ----------------------------------------------------------------------------

    def expect_members(self) -> None:
        """Send nothing before every member of the record has come back, must have stopped, or has ended."""
        self._membership.start(self._ports.clock.monotonic())
        for member in self._membership.all(LeaseState.AWAITED):
            self._forget_when_ended(member)

    def awaited(self) -> list[LeaseHolder]:
        """Return the members of an earlier owner that have not come back and may still be alive."""
        if self._membership.forget_overdue(self._ports.clock.monotonic()):
            self._store.dirty()
        return self._membership.all(LeaseState.AWAITED)

    def settled(self) -> bool:
        """Return whether no consumer is awaited, and the messages of those that came back are known."""
        return not (self.awaited() or self.unidentified)

    def identify(self, session: Session) -> None:
        """Ask for the hashes of messages that this consumer holds and that were not read."""
        if self._core.ordered and len(self._core.claims_of(session.number)):
            self.unidentified[session.number] = "the topic was not asked yet"
            self._ports.spawn(self._identify(session), "identify")

    async def _identify(self, session: Session) -> None:
        """Ask until there is an answer, or the session is over: with anything else the keys stay unknown."""
        found = await self._row_index(session)
        if self._sessions.is_open(session):
            self._core.bring(session.number, found.positions, found.hashes)
        self.unidentified.pop(session.number, None)
        self._wakeups.route.set()

    async def _row_index(self, session: Session) -> RowIndex:
        """Return the index columns of the session's unread messages; wait for the topic while the session is open."""
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while self._sessions.is_open(session) and len(unread := self._core.claims_of(session.number)):
            try:
                return await self._topic.ask(ReadRowIndex(positions=unread))
            except SluiceError as error:
                self.unidentified[session.number] = str(error)
                self._ports.log("identify_waits", session=session.number, error=str(error))
            await wait.pause()
        return RowIndex(positions=NO_POSITIONS, hashes=NO_ROWS)
