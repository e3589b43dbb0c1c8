"""Proves at once, for all owners in a process, that none of them has been replaced.

An owner that writes nothing would have to look at its record again and again to know that nobody has taken it. Here the
process looks at one record for all of them, `process/<process>`, and a new owner that takes a record from one of its
actors writes a version there: a *notice*. A process that finds the notice it knows knows that all its owners own what
they owned.

**Why that is enough.** A new owner writes its version of the record, then the notice to the process of the owner before
it, and only then has it taken over (`fenced_record`); whatever it waits for, it waits for from then on. Let an owner
find its record its own at a moment a, asked after its process had read notice n, and let the process find n again at
a later moment b. An owner that took the record before a would have been found there. An owner that took it since has,
at b, not yet written a notice: it would be another one than n. So its waiting begins after b, as if the owner had
looked at b at the record itself.

A new owner that dies before its notice leaves the duty to the next, in the record that it wrote. A notice costs the
process one look at each record of its own, and concerns nobody else; what was proved before it stays proved, so these
looks may be spread over the time of trust. Notices are versions of one small record, which is never removed: a process
that found none could not tell that one had come and gone. Their numbers alone tell one from another, so a damaged one
is a notice like any other.
"""

from __future__ import annotations

from sluice.actors.ports import Address, Meta, Ports, Version
from sluice.actors.runtime.backoff import Backoff
from sluice.actors.runtime.signal import Signal
from sluice.storage.errors import Corrupt, Unavailable

NOTICES = "process/"
REMEMBERED = 64
"""The number of past notices for which a process knows until when owners that looked before them were proved."""
RETRY_FIRST, RETRY_MOST = 10, 1_000
SOON_MS = 100
"""The time within which a woken owner looks, if it still lives."""
PATIENCE_MS = 2_000
"""The time after which an owner that waits for another one's look looks by itself: the other one may have ended."""


def process_of(address: Address) -> str:
    """The name of the process that has the actor at an address."""
    return address.partition("/")[0]


class OwnershipProof:
    """The shared proof of ownership of all owners of one process; see `Ports.process`.

    notice: counts the notices that were found, 0 before the first look. proven: monotonic ms at which the last look
    was asked.
    """

    def __init__(self) -> None:
        self.notice = self.proven = 0
        self._before: dict[int, int] = {}
        """When the last look was asked that found an earlier notice."""
        self._found: Version | None = None
        self._looking: Signal | None = None
        self._looks = self._expected = 0

    def until(self, notice: int) -> int:
        """Monotonic ms: up to here an owner is proved that found its record its own when this was the notice."""
        return self.proven if notice == self.notice else self._before.get(notice, 0)

    def expect(self, now: int) -> None:
        """Note that an owner is woken to look soon."""
        self._expected = now + SOON_MS

    def comes(self, now: int) -> bool:
        """Whether somebody looks just now, or is about to."""
        return self._looking is not None or now < self._expected

    async def prove(self, ports: Ports, age: int = 0) -> None:
        """Look for a notice, together with all who look just now, unless somebody did less than `age` ms ago. Raises
        what the store refuses with.
        """
        if self.notice and ports.clock.monotonic() - self.proven < age:
            return
        while (looking := self._looking) is not None:
            looks = self._looks
            if await looking.wait(ports, PATIENCE_MS):
                if self._looks == looks:
                    raise Unavailable("whoever looked for a notice found nothing out")
                return
            if self._looking is looking:
                break
        await self._look(ports)

    async def _look(self, ports: Ports) -> None:
        looking = self._looking = Signal()
        try:
            asked = ports.clock.monotonic()
            found = await newest_version(ports.meta, NOTICES + process_of(ports.me))
            if found != self._found:
                self._found = found
                self._before[self.notice] = self.proven
                self._before.pop(self.notice - REMEMBERED, None)
                self.notice, self.proven = self.notice + 1, asked
            self.proven = max(self.proven, asked)
            self._looks += 1
        finally:
            self._expected = 0
            looking.set()
            if self._looking is looking:
                self._looking = None


async def newest_version(meta: Meta, key: str) -> Version:
    """The newest version of a record: number 0 if there is none. One that is damaged has no value, and another can
    follow it, which mends the record. Raises Unavailable, and Corrupt if not even the number is known.
    """
    try:
        return await meta.read(key) or Version(0, b"")
    except Corrupt as error:
        if not error.version:
            raise
        return Version(error.version, b"")


async def give_notice(ports: Ports, process: str, taken: str) -> None:
    """Tell a process that something was taken from an owner in it. taken: what, and under which epoch, which no
    other notice of this taker says together. Retries while the store is away.
    """
    key, notice = NOTICES + process, f"{ports.me} {taken}".encode()
    wait = Backoff(ports, RETRY_FIRST, RETRY_MOST)
    while True:
        try:
            newest = await newest_version(ports.meta, key)
            if newest.value == notice:
                return  # an earlier try, whose reply was lost
            if await ports.meta.create(key, newest.number + 1, notice):
                return
            after = await newest_version(ports.meta, key)
            if 0 < newest.number < after.number:
                return  # somebody gave notice after the record was taken, which says the same
        except Unavailable as error:
            ports.log("notice_waits", process=process, error=str(error))
        await wait.pause()
