"""A candidate: the process of one machine that can be the controller, and which of them is.

A controller only suggests, so two of them break no promise. But one that reaches nobody does harm: it takes everybody
else for dead. And one on a machine that is away helps nobody. So it is not enough that its process is alive somewhere:
up to three machines have a candidate each. One candidate is *in office*, and the others ask it again and again. If it
is silent for SILENT_MS, one of the others takes over, under a new epoch, by writing the record.

A candidate that hears no other one may be the one that was cut off. So a candidate takes over only if another one that
it reaches does not hear the controller either. With two machines there is no other one, and the first to write the
record is the controller: then each side of a cut can reach itself only, and either is as good. The store alone decides
nothing else: a machine that reaches the store and no other machine stays what it is.

The one in office *acts*, that is starts and ends processes on suspicion, as long as it is not alone: others ask it, or
those that do not have ended. It looks whether the record is still its own, often if some do not ask, and leaves office
when the record is another's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sluice.actors.messages import Leading, WhoLeads
from sluice.actors.ownership.fenced_record import FencedRecord, record_in
from sluice.actors.ports import Ports, Unknown
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import Corrupt, Fenced, SluiceError

ASK_MS, ASK_TIMEOUT = 500, 1_000
SILENT_MS = 2_000
PROVEN_MS = 3_000
"""How long a look at the record counts."""
LOOK_MS, SURE_MS = 1_000, 10_000
"""Between looks at the record: if somebody is silent, and if not."""
KEY = "controller"
NAME = "candidate"
"""The name of this actor, in each process that has one."""


class ControllerCandidate(Actor):
    """See the module. take_office: starts the controller in this process. leave_office: ends the process.

    machine: where it is; another one on the same machine proves nothing. first: it takes office at its start, unless
    another one has it.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        take_office: Callable[[], Awaitable[None]],
        leave_office: Callable[[str], None],
        machine: str,
        first: bool = False,
    ) -> None:
        super().__init__(ports)
        self._host, self._machine = ports.me.partition("/")[0], machine
        self._take_office, self._leave_office, self._first = take_office, leave_office, first
        self._record = self._own_record()
        self._leader = ""
        self._epoch = 0
        self._leads = self._begun = self._runs = False
        self._heard = ports.clock.monotonic()
        self._others: dict[str, int] = {}
        """By process, when each other candidate asked last, or was named."""
        self._proven = self._looked = self._heard
        self._saved: list[str] = []
        self._attended = 0
        """The epoch of the last one in office that answered this one."""

    async def start(self) -> None:
        """Learn who is in office. Raises Unavailable."""
        await self._read()

    async def campaign(self) -> None:
        """Take office if that is to be, and ask the one in office from now on. Idempotent once it has returned.

        Raises what the start of the controller raises. The controller asks this actor, which has to have started.
        """
        if self._begun:
            return
        if self._first and not self._leads and await self._is_free():
            try:
                await self._take()
            except Fenced:
                await self._read()  # another one was faster
        if not self._runs:
            self._runs = True
            self.ports.spawn(self._run(), "candidate")  # the record is looked at while the controller starts, too
        if self._leads:
            await self._take_office()
        self._begun = True

    def _own_record(self) -> FencedRecord:
        """Return the record of this candidate, without notices: the one in office reads it often, and a notice delays a
        takeover.
        """
        return FencedRecord(self.ports, KEY, notices=False)

    async def _read(self) -> None:
        """Read the record, and follow the candidate that is in office. Raises Unavailable."""
        newest = await self.ports.meta.read(KEY)
        if newest is not None:
            value = record_in(KEY, newest.value)
            if not self._others:
                self._others = {host: 0 for host in _candidates_in(value) if host != self._host}
            self._follow(value["owner"].partition("/")[0], value["epoch"])

    async def _is_free(self) -> bool:
        """Whether it is known that nobody else is in office. An earlier process of this one's name has ended."""
        if self._leader in ("", self._host):
            return True
        answer = await self._ask(self._leader)
        return isinstance(answer, Unknown) and answer.gone

    async def _take(self) -> None:
        """Write the record, under a new epoch. Raises Fenced if another one is faster, and Unavailable."""
        value = await self._record.acquire()
        if value is not None and int(value["epoch"]) > self._epoch:
            raise Fenced("another candidate has taken office")
        if self._leader not in ("", self._host):
            self._others[self._leader] = 0  # it may come back
        await self._save()
        self._leader, self._epoch, self._leads = self._host, self._record.epoch, True
        now = self._proven = self.ports.clock.monotonic()
        self._others = dict.fromkeys(self._others, now)
        self.ports.log("takes_office", epoch=self._epoch)

    async def _begin_office(self) -> None:
        """Start the controller. It takes a while, in which the record is looked at as always."""
        try:
            await self._take_office()
        except SluiceError as error:
            self._leave_office(f"the controller does not start: {error}")

    @property
    def leads(self) -> bool:
        """Whether it is in office."""
        return self._leads

    @property
    def acts(self) -> bool:
        """Whether it may start and end others on suspicion."""
        return self._leads and self._acts(self.ports.clock.monotonic())

    @property
    def leader(self) -> str:
        """The process in office, as far as this one knows."""
        return self._leader

    def _follow(self, leader: str, epoch: int) -> None:
        if epoch > self._epoch:
            self._leader, self._epoch = leader, epoch
            self._heard = self.ports.clock.monotonic()
            self.ports.log("follows", leader=leader, epoch=epoch)

    async def on_who_leads(self, request: WhoLeads) -> Leading:
        now = self.ports.clock.monotonic()
        if request.asker and request.machine != self._machine:
            self._others[request.asker] = now
        return Leading(
            host=self._leader,
            epoch=self._epoch,
            leads=self._leads,
            acts=self.acts,
            silent_ms=0 if self._leads else now - self._heard,
            candidates=[self._host, *self._others],
            machine=self._machine,
        )

    async def _save(self) -> None:
        """Write the leader and the other candidates to the record: a candidate that starts again needs their names."""
        self._saved = sorted(self._others)
        await self._record.save({"candidates": self._saved})

    def _silent(self, now: int) -> list[str]:
        return [host for host, asked in self._others.items() if now - asked >= SILENT_MS]

    def _acts(self, now: int) -> bool:
        silent = self._silent(now)
        if not silent:
            return True
        alone = len(silent) == len(self._others) and len(silent) > 1
        return not alone and now - self._proven < PROVEN_MS

    async def _ask(self, host: str, *, asker: str = "") -> Leading | Unknown:
        try:
            return await self.ports.net.call(
                f"{host}/{NAME}", WhoLeads(asker=asker, machine=self._machine), ASK_TIMEOUT
            )
        except SluiceError as error:
            return Unknown(str(error))

    async def _run(self) -> None:
        """For as long as the actor lives."""
        while True:
            await self.ports.clock.sleep(ASK_MS)
            try:
                await (self._hold() if self._leads else self._attend())
            except SluiceError as error:  # a record that cannot be read ends nobody's term
                self.ports.log("candidate_waits", error=str(error))

    # -- in office ---------------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        """Look whether the record is still this one's, often if that is in doubt; forget candidates that have ended."""
        now = self.ports.clock.monotonic()
        silent = self._silent(now)
        if self._saved == sorted(self._others) and now - self._looked < (LOOK_MS if silent else SURE_MS):
            return
        self._looked = now
        for host in silent:
            self.ports.spawn(self._look_for(host), "look for a candidate")
        try:
            if self._saved != sorted(self._others):
                await self._save()
            await self._record.verify()
            self._proven = now
        except Fenced:
            self.ports.log("leaves_office", epoch=self._epoch)
            self._leave_office("another controller has taken over")

    async def _look_for(self, host: str) -> None:
        answer = await self._ask(host)
        if isinstance(answer, Unknown) and answer.gone:
            self._others.pop(host, None)

    # -- not in office -----------------------------------------------------------------------------------------------

    async def _attend(self) -> None:
        """Ask the one in office; take its place if it is gone."""
        if self._leader in ("", self._host):  # nobody yet, or an earlier process of this one's name
            await self._read()
            if self._leader == self._host:
                await self._contest(gone=True)
            return
        answer = await self._ask(self._leader, asker=self._host)
        now = self.ports.clock.monotonic()
        if isinstance(answer, Leading):
            if answer.leads and answer.epoch >= self._epoch:
                self._heard, self._epoch, self._attended = now, answer.epoch, answer.epoch
                self._others = {host: now for host in answer.candidates if host not in (self._host, self._leader)}
                return
            self._follow(answer.host, answer.epoch)
        gone = isinstance(answer, Unknown) and answer.gone
        if gone or now - self._heard >= SILENT_MS:
            await self._contest(gone=gone)

    async def _contest(self, *, gone: bool) -> None:
        """Take over, unless another one has, or hears the controller, or nobody can be reached. Raises Unavailable."""
        others = [host for host in self._others if host not in (self._host, self._leader)]
        answers: list[Leading] = []
        for host in others:
            answer = await self._ask(host)
            if isinstance(answer, Leading) and answer.machine != self._machine:
                answers.append(answer)
            elif isinstance(answer, Leading) or answer.gone:
                self._others.pop(host, None)
        for told in answers:
            self._follow(told.host, told.epoch)
        if any(told.epoch >= self._epoch and not gone and told.silent_ms < SILENT_MS for told in answers):
            return
        if not answers and any(host in self._others for host in others):
            return  # this one may be cut off
        if not answers and not gone and self._attended != self._epoch:
            return  # the same, if that one took over meanwhile: else two would take turns
        contested = self._epoch
        await self._read()
        if self._epoch > contested or (self.ports.clock.monotonic() - self._heard < SILENT_MS and not gone):
            return  # there is a new one
        try:
            await self._take()
        except Fenced:
            self._record = self._own_record()
            await self._read()
        else:
            self.ports.spawn(self._begin_office(), "office")


class _Saved(msgspec.Struct):
    """The part of the record that a candidate adds: the other candidates."""

    candidates: list[str] = []


def _candidates_in(record: dict[str, Any]) -> list[str]:
    """The processes that a record names. Raises Corrupt."""
    try:
        return msgspec.convert(record, _Saved).candidates
    except msgspec.ValidationError as error:
        raise Corrupt(f"the record {KEY} cannot be read: {error}") from error
