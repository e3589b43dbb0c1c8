"""Watches every actor that the controller started or found: its address, and whether it still answers.

An actor whose machine cannot be reached is another matter. A bookie or a gateway belongs to its machine, and stays what
it is: when the machine is back, nobody has lost anything. Owners move at once, without three misses, and their old
process is not ended from afar: such an order would be carried out when the machine is back, and may serve others.

A dead process is noticed at once (the first call to it fails, and its caller reports it with `Suspect`). A frozen one
answers nothing and is given up after MISSES pings in a row. An actor is pinged by one call at a time, so that a
stall of the controller itself counts as one miss, and a host by at most SAMPLE of its actors each PING_MS: when one of
them is given up, the others in its process are looked at without waiting for their turn.

An actor that ends for the same reason again and again is started again, and is an alarm
(`actors/controller/crash_loop_detector.py`).

The answer to a ping also says whether a bookie takes new runs. A full one answers, serves what it has, and is not to
be chosen for new ensembles until it says that it has room again.
"""

from __future__ import annotations

from typing import Any

from sluice.actors.controller.bookie_failure_detector import LOST_AFTER_MS, BookieFailureDetector
from sluice.actors.controller.running import NOWHERE, SERVED, Running, RunningActors, key_of
from sluice.actors.controller.start_order import Start, StartOrder
from sluice.actors.messages import Alive, Ping
from sluice.actors.ownership.fenced_record import process_of
from sluice.actors.ports import Address, Places, Ports, Unknown
from sluice.actors.runtime.host import why_ended
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Corrupt, Fenced, Invalid, NotFound, SluiceError, Unavailable

PING_MS, PING_TIMEOUT, MISSES = 500, 1_500, 3
SAMPLE = 16
BESIDE_MS = 1_000
"""The least time between looks at the other actors of a process because one of them was given up."""
START_TRIES = 50
RETRY_MS = 100
OWNERS = ("dispatcher", "topic")
ALONE = ("bookie", "gateway")
"""Kinds that belong to a machine: a few tries there tell that it cannot be had now."""
CALLER_PATIENCE = 20_000
"""Milliseconds that a caller waits for the start of an owner: less than LOCATE_TIMEOUT of the directory."""
GATHER_MS = 100
"""A caller of several actors gets those that start this soon after the first one, and asks for the rest again."""
GATEWAY_REST_MS = 5_000
"""Between attempts to start a gateway that does not: each one costs a process."""


class Supervisor:
    """Starts actors, watches them, and replaces the dead. failures: which bookies are down, and which for good."""

    def __init__(self, ports: Ports, places: Places, lost_after_ms: int = LOST_AFTER_MS) -> None:
        self.ports = ports
        self.failures = BookieFailureDetector(lost_after_ms)
        self._places = places
        self._running = RunningActors()
        self._starts = StartOrder(ports)
        self._looked: dict[str, int] = {}
        self._resting: dict[str, int] = {}
        self._turn = 0

    # -- who there is ---------------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Take over what runs already."""
        for kind, address, settings in await self._places.inventory():
            if kind in ("bookie", "topic", "dispatcher", "gateway"):
                key = key_of(kind, settings)
                self._running.enter(Running(kind, key, settings, address))

    def all(self) -> list[Running]:
        """Every actor that should run, in order of kind and name."""
        return self._running.all()

    @property
    def frames(self) -> int:
        """The newest kind of frame that all processes read."""
        return self._running.frames

    def of_kind(self, kind: str) -> list[Running]:
        """The actors of a kind, in order of name."""
        return self._running.of_kind(kind)

    def find(self, kind: str, settings: dict[str, Any]) -> Running | None:
        """The actor with these settings, if it should run."""
        return self._running.find(key_of(kind, settings))

    def remove(self, entry: Running) -> None:
        """Stop starting an actor again. Its process goes on."""
        self._running.remove(entry)

    def idle(self, least_ms: int) -> list[Running]:
        """Owners that nobody has used for so long; those of subscriptions first."""
        return self._running.idle(OWNERS, least_ms)

    def release(self, entry: Running, address: Address) -> bool:
        """Forget an actor that has closed at this address until a caller wants it. Returns False if it was replaced."""
        if entry.address != address:
            return False
        self.remove(entry)
        entry.address, entry.idle_ms, entry.misses, entry.closed = "", 0, 0, True
        return True

    def start_aside(self, kind: str, settings: dict[str, Any]) -> None:
        """Have it run, if it does not, and let nobody wait for it."""
        entry = self.want(kind, settings)
        if not entry.address and entry.starting is None:
            self.ports.spawn(self._start_aside(entry), "wake")

    def remember(self, entry: Running) -> None:
        """Watch an actor again that was forgotten."""
        if self._running.find(entry.name) is None:
            self._running.enter(entry)

    async def end(self, kind: str, settings: dict[str, Any]) -> None:
        """End it, and do not start it again."""
        entry = self.find(kind, settings)
        if entry is not None:
            self.remove(entry)
            if entry.address:
                await self._places.stop(entry.address)

    def lost(self) -> tuple[str, ...]:
        """The bookies that are lost for good."""
        return self.failures.lost(self.ports.clock.monotonic())

    def problem_of(self, entry: Running) -> str:
        """An actor's problem for an operator, in one line; empty if there is none."""
        again = entry.ends.alarm(self.ports.clock.monotonic())
        return "; ".join(filter(None, (entry.problem or entry.refuses, again)))

    # -- starting -------------------------------------------------------------------------------------------------

    def want(self, kind: str, settings: dict[str, Any]) -> Running:
        """The actor with these settings; from now on it should run."""
        key = key_of(kind, settings)
        if (entry := self._running.find(key)) is None:
            entry = Running(kind, key, settings)
            self._running.enter(entry)
        return entry

    async def ensure(self, entry: Running, patience: int | None = None, *, wanted: bool = True) -> Address:
        """The address of an actor, started if need be, before others if it is `wanted`. Raises what its start raises,
        and Unavailable if that takes more than `patience` milliseconds: it goes on then.
        """
        clock = self.ports.clock
        until = None if patience is None else clock.monotonic() + patience
        while entry.starting is not None or not entry.address:
            start = entry.starting or self._begin(entry)
            if wanted:
                self._starts.want(start)
            if not await start.over.wait(self.ports, None if until is None else max(until - clock.monotonic(), 0)):
                raise Unavailable(f"{entry.name} is being started: {entry.problem or 'that takes long'}")
            if start.error is not None:
                raise start.error
        return entry.address

    def _begin(self, entry: Running) -> Start:
        entry.starting, entry.away = Start(), False
        if entry.closed:  # while somebody was about to use it
            entry.closed = False
            self.remember(entry)
        self.ports.spawn(self._run_start(entry, entry.starting), "start")
        return entry.starting

    async def _run_start(self, entry: Running, start: Start) -> None:
        try:
            if not await self._places.acts():
                raise Unavailable("this controller reaches no other machine, or another one has taken its place")
            if entry.leaving is not None:
                await self._places.stop(entry.leaving[0], frozen=entry.leaving[1])
                entry.leaving = None
            if entry.kind in OWNERS:
                await self._starts.turn(start)
            self._running.runs_at(entry, await self._start(entry))
            entry.misses, entry.problem, entry.refuses = 0, "", ""
            if entry.kind == "bookie":
                self.failures.back(entry.settings["bookie"])
        except SluiceError as error:
            start.error = error
            entry.problem = str(error)
            now = self.ports.clock.monotonic()
            if entry.kind == "gateway":
                self._resting[entry.name] = now + GATEWAY_REST_MS
            if entry.kind == "bookie":
                self.failures.failed(entry.settings["bookie"], now, refused=isinstance(error, Corrupt))
        finally:
            self._starts.done(start)
            entry.starting = None
            start.over.set()

    async def ensure_all(self, entries: list[Running], patience: int | None = None) -> list[Address]:
        """The addresses of several actors, started side by side. Raises what the first failed start raises; patience:
        as of `ensure`, for all of them.
        """
        for error in await self.try_all(entries, patience):
            if error is not None:
                raise error
        return [await self.ensure(entry, patience) for entry in entries]

    async def ensure_some_of(
        self, entries: list[Running], numbers: list[int] | None, *, waits: bool = True
    ) -> list[Address]:
        """Start several actors side by side, and wait for one of those with these numbers, and a moment for the others
        of them; for all if it is None. waits False: for none.

        The start of one partition's owner may take long, and callers that want another's must not wait for it. Returns
        the addresses, empty where one is not there yet. Raises NotFound if there is none of those numbers; if none of
        them starts, what the start of the first one raises, and Unavailable if that takes more than CALLER_PATIENCE.
        """
        if numbers is None and waits:
            return await self.ensure_all(entries, CALLER_PATIENCE)
        wanted = [entries[number] for number in numbers or () if 0 <= number < len(entries)]
        if numbers and not wanted:
            raise NotFound(f"there is no partition {numbers[0]}; there are {len(entries)}")
        if not waits:
            wanted = []
        names = {entry.name for entry in wanted}
        for other in entries:
            if other.name not in names and not other.address and other.starting is None:
                self.ports.spawn(self._start_aside(other), "start")
        if len(wanted) == 1:
            await self.ensure(wanted[0], CALLER_PATIENCE)
        elif wanted:
            await self._ensure_first(wanted)
        return [entry.address for entry in entries]

    async def _ensure_first(self, wanted: list[Running]) -> None:
        """Wait until one runs, and GATHER_MS longer for the others. Raises what the first one's start raises if none
        does.
        """
        one, every = Signal(), Signal()
        errors: dict[str, SluiceError] = {}
        left = {entry.name: None for entry in wanted}

        async def start(entry: Running) -> None:
            try:
                await self.ensure(entry, CALLER_PATIENCE)
                one.set()
            except SluiceError as error:
                errors[entry.name] = error
            finally:
                del left[entry.name]
                if not left:
                    one.set()
                    every.set()

        for entry in wanted:
            if not entry.address or entry.starting is not None:
                self.ports.spawn(start(entry), "start")
            else:
                del left[entry.name]
                one.set()
        if left:
            await one.wait(self.ports)
        if left:
            await every.wait(self.ports, GATHER_MS)
        if len(errors) == len(wanted):
            raise errors[wanted[0].name]

    async def _start_aside(self, entry: Running) -> None:
        """Start one that nobody waits for; one that cannot be started as it is shall not be tried again and again."""
        try:
            await self.ensure(entry, wanted=False)
        except SluiceError as error:
            self.ports.log("start_failed", key=entry.name, error=str(error))
            if isinstance(error, (Invalid, NotFound)):
                self.remove(entry)

    async def try_all(
        self, entries: list[Running], patience: int | None = None, *, wanted: bool = True
    ) -> list[SluiceError | None]:
        """Start several actors side by side, as `ensure` does; returns why each could not be, None if it runs."""
        errors: list[SluiceError | None] = [None] * len(entries)
        left = [number for number, entry in enumerate(entries) if not entry.address]
        done = Signal()

        async def one(number: int) -> None:
            try:
                await self.ensure(entries[number], patience, wanted=wanted)
            except SluiceError as error:
                errors[number] = error
            finally:
                left.remove(number)
                if not left:
                    done.set()

        for number in list(left):
            self.ports.spawn(one(number), "start")
        if left:
            await done.wait(self.ports)
        return errors

    async def _start(self, entry: Running) -> Address:
        for attempt in range(START_TRIES):
            try:
                incarnation = f"{entry.kind}-{attempt}-{self.ports.rng.randrange(1 << 40):010x}"
                follows = entry.restarts and entry.kind == "dispatcher"
                settings = {**entry.settings, SERVED: True} if follows else entry.settings
                address = await self._places.start(entry.kind, incarnation, settings)
                self.ports.log("started", key=entry.name, address=address)
                return address
            except (Unavailable, Fenced) as error:
                entry.problem = str(error)
                self.ports.log("start_waits", key=entry.name, error=str(error))
                if entry.kind in ALONE and attempt >= 2:
                    raise
                await self.ports.clock.sleep(RETRY_MS)
        raise Unavailable(f"{entry.name} cannot be started: {entry.problem}")

    async def move(self, entries: list[Running]) -> None:
        """Have these end where they are and begin where they belong by now. Callers meanwhile wait for that.

        Returns when each was started once, or could not be.
        """
        for entry in entries:
            if entry.address and entry.starting is None:
                self.ports.log("moving", key=entry.name, address=entry.address)
                entry.leaving, entry.misses = (entry.address, False), 0
                self._running.runs_at(entry, "")
        await self.try_all(entries, CALLER_PATIENCE, wanted=False)

    # -- watching -------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Ping what runs, start what does not; for ever."""
        while True:
            await self.ports.clock.sleep(PING_MS)
            self._turn += 1
            for entry in self._running.inside(NOWHERE):
                if entry.starting is None and self._may_start(entry):
                    self.ports.spawn(self._try_ensure(entry), "restart")
            for entries in self._running.processes():
                first = self._turn * SAMPLE % len(entries) if len(entries) > SAMPLE else 0
                for place in range(first, first + min(SAMPLE, len(entries))):
                    entry = entries[place % len(entries)]
                    self.ports.spawn(self._look(entry, entry.address), "ping")

    def _may_start(self, entry: Running) -> bool:
        now = self.ports.clock.monotonic()
        if entry.kind == "gateway":
            return self._resting.get(entry.name, now) <= now
        return entry.kind != "bookie" or self.failures.may_start(entry.settings["bookie"], now)

    async def _look(self, entry: Running, address: Address, *, wanted: bool = False) -> None:
        """Ping one actor; replace it if it is gone, or was silent too often. Callers meanwhile wait for that."""
        if entry.looking is not None:
            await entry.looking.wait(self.ports)
            return
        done = entry.looking = Signal()
        try:
            reply = await self._ping(address)
        finally:
            entry.looking = None
            done.set()
        if not self._runs_still(entry, address) or (entry.closing and not wanted):  # it is gone when it has closed
            return
        if not isinstance(reply, Unknown):
            entry.misses = 0
            self._running.was_idle(entry, reply.idle_ms)
            self._running.reads(process_of(address), reply.frames)
            if entry.away:
                self._is_back(entry)
            if bool(entry.refuses) != bool(reply.refuses):
                self.ports.log("read_only" if reply.refuses else "writable", key=entry.name, reason=reply.refuses)
            entry.refuses = reply.refuses
            if entry.problem != reply.problem:
                self.ports.log("problem", key=entry.name, problem=reply.problem or "none any more")
            entry.problem = reply.problem
            return
        entry.misses += 1
        away = not reply.gone and await self._places.is_away(address)
        acts = await self._places.acts()
        if not self._runs_still(entry, address):
            return
        if not acts:
            entry.misses = 0  # who may be the one that is cut off learns nothing of others
        elif away and entry.kind in ALONE:
            self._is_away(entry)
        elif reply.gone or away or entry.misses >= MISSES:
            self._look_beside(address)
            if why := why_ended(address, reply):
                entry.ends.add(why, self.ports.clock.monotonic())
            await self._replace(entry, address, frozen=not reply.gone, wanted=wanted)

    def _runs_still(self, entry: Running, address: Address) -> bool:
        """Whether an actor should still run, and does so at this address.

        An actor that was deleted during its ping must not be found dead and started: it would create again the data
        that it served.
        """
        return entry.address == address and self._running.has(entry)

    def _is_away(self, entry: Running) -> None:
        """Mark an actor as away: its machine cannot be reached, and no other process can replace it. It keeps its
        address.
        """
        entry.misses = 0  # what was asked when it was away says nothing of it when it is back
        if not entry.away:
            entry.away = True
            self.ports.log("away", key=entry.name, address=entry.address)
            if entry.kind == "bookie":
                self.failures.down(entry.settings["bookie"], self.ports.clock.monotonic())

    def _is_back(self, entry: Running) -> None:
        entry.away = False
        self.ports.log("back", key=entry.name, address=entry.address)
        if entry.kind == "bookie":
            self.failures.back(entry.settings["bookie"])

    def _look_beside(self, address: Address) -> None:
        """One actor of a process was given up: look at the others in it."""
        process, now = process_of(address), self.ports.clock.monotonic()
        if now - self._looked.get(process, now - BESIDE_MS) < BESIDE_MS:
            return
        self._looked = {name: at for name, at in self._looked.items() if now - at < BESIDE_MS} | {process: now}
        for other in self._running.inside(process):
            if other.address != address:
                self.ports.spawn(self._look(other, other.address), "look beside")

    async def suspect(self, address: Address) -> None:
        """A caller got no answer from this address; returns when the actor there was replaced, if that was needed."""
        if (entry := self._running.at(address)) is not None:
            await self._look(entry, address, wanted=True)

    async def _ping(self, address: Address) -> Alive | Unknown:
        try:
            return await self.ports.net.call(address, Ping(), PING_TIMEOUT)
        except SluiceError as error:
            return Unknown(str(error), gone=True)

    async def _replace(self, entry: Running, address: Address, *, frozen: bool, wanted: bool) -> None:
        self.ports.log("replacing", key=entry.name, address=address, frozen=frozen)
        self._running.runs_at(entry, "")
        entry.misses, entry.leaving = 0, (address, frozen)
        entry.restarts += 1
        if entry.kind == "bookie":
            self.failures.down(entry.settings["bookie"], self.ports.clock.monotonic())
        await self._try_ensure(entry, wanted=wanted)

    async def _try_ensure(self, entry: Running, *, wanted: bool = False) -> None:
        try:
            await self.ensure(entry, CALLER_PATIENCE, wanted=wanted)
        except SluiceError as error:
            self.ports.log("start_failed", key=entry.name, error=str(error))
            if isinstance(error, NotFound) and entry.kind == "dispatcher":
                self.remove(entry)  # what it served was deleted meanwhile, as another controller was asked


def state_of(entry: Running, lost: tuple[str, ...]) -> str:
    """One word for an operator. lost: the bookies that are lost for good."""
    if entry.kind == "bookie" and entry.settings["bookie"] in lost:
        return "lost"
    if not entry.address:
        return "starting"
    if entry.away:
        return "away"
    return "read-only" if entry.refuses else "running"
