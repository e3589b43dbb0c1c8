"""A simulated metadata store: linearizable versions, whose replies may be lost and whose writes may come late.

`Unavailable` may mean that nothing happened, that the version was written and only the answer was lost, or that the
write is still on its way and will be made later, if it then still follows the newest version.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sluice.actors.ports import Version
from sluice.storage.errors import Corrupt, SluiceError, Unavailable
from tests.sim.loop import SimLoop


@dataclass
class StoreFaults:
    """How a store misbehaves. Chances are per call, times in milliseconds."""

    delay_ms: tuple[int, int] = (0, 3)
    fail_before: float = 0.0
    fail_after: float = 0.0
    late: float = 0.0
    late_ms: tuple[int, int] = (200, 10_000)
    slow: float = 0.0
    slow_ms: tuple[int, int] = (200, 3_000)


class Trouble:
    """Decides the fate of each call to a store."""

    def __init__(self, loop: SimLoop, seed: str) -> None:
        self.faults = StoreFaults()
        self.counters: dict[str, int] = {}
        self.loop = loop
        self.rng = random.Random(seed)
        self.cut: dict[str, int] = {}
        """Machines that cannot reach the store, by the number of cuts."""
        self.refused: dict[str, type[SluiceError]] = {}
        """How calls are refused, by what they begin with: the call's name, and behind it the key or name."""

    async def before(self, machine: str) -> None:
        """The way to the store: takes time, and may end in Unavailable with nothing done."""
        faults = self.faults
        await self.loop.pause(self.between(faults.delay_ms))
        if faults.slow and self.rng.random() < faults.slow:
            self.count("slow")
            await self.loop.pause(self.between(faults.slow_ms))
        if machine in self.cut:
            self.count("cut")
            raise Unavailable("the store cannot be reached")
        if faults.fail_before and self.rng.random() < faults.fail_before:
            self.count("failed before")
            raise Unavailable("the store answers 503")

    def check(self, call: str) -> None:
        """Refuse a call that is to be refused at present, with nothing done."""
        for start, error in self.refused.items():
            if call.startswith(start):
                self.count("refused")
                raise error(f"the store refuses {call}")

    async def after(self, machine: str) -> None:
        """The way back: may lose the answer of a call that took effect."""
        if self.faults.fail_after and self.rng.random() < self.faults.fail_after:
            self.count("answer lost")
            raise Unavailable("the store's answer was lost")
        await self.loop.pause(self.between(self.faults.delay_ms))
        if machine in self.cut:
            self.count("answer lost")
            raise Unavailable("the store cannot be reached any more")

    def is_late(self) -> bool:
        """Whether this write goes through only later."""
        if self.faults.late and self.rng.random() < self.faults.late:
            self.count("late")
            return True
        return False

    def between(self, span: tuple[int, int]) -> int:
        """A seeded time from a span."""
        return span[0] + int(self.rng.random() * (span[1] - span[0] + 1))

    def count(self, what: str) -> None:
        """Count a fault that happened."""
        self.counters[what] = self.counters.get(what, 0) + 1


class MetaStore:
    """The records themselves; one in a world."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.trouble = Trouble(loop, f"meta/{seed}")
        self.records: dict[str, list[bytes]] = {}
        self.history: list[tuple[int, str, str, int]] = []
        """(time, machine, key, number) of each version that was written, for the checks."""
        self.damaged: dict[str, int] = {}
        """Records with a version that fails its checksum, and its number."""

    def write(self, machine: str, key: str, number: int, value: bytes) -> bool:
        """Put a version if it is absent and follows the newest."""
        versions = self.records.get(key, [])
        if number != len(versions) + 1:
            self.trouble.count("conflict")
            return False
        self.records.setdefault(key, []).append(value)
        self.history.append((self.trouble.loop.now, machine, key, number))
        return True


class SimMeta:
    """The metadata store as one process sees it. Implements actors.ports.Meta."""

    def __init__(self, store: MetaStore, machine: str) -> None:
        self._store = store
        self._trouble = store.trouble
        self._machine = machine

    async def read(self, key: str) -> Version | None:
        """The newest version."""
        await self._trouble.before(self._machine)
        self._trouble.check(f"read {key}")
        versions = self._store.records.get(key)
        if versions and self._store.damaged.get(key) == len(versions):
            raise Corrupt(f"version {len(versions)} of {key} fails its checksum", version=len(versions))
        found = Version(len(versions), versions[-1]) if versions else None
        await self._trouble.after(self._machine)
        return found

    async def create(self, key: str, number: int, value: bytes) -> bool:
        """Put a version if it is absent and follows the newest."""
        await self._trouble.before(self._machine)
        self._trouble.check(f"create {key}")
        value = bytes(value)
        if self._trouble.is_late():
            delay = self._trouble.between(self._trouble.faults.late_ms)
            self._trouble.loop.after(delay, self._store.write, self._machine, key, number, value)
            raise Unavailable("the store did not answer in time")
        done = self._store.write(self._machine, key, number, value)
        await self._trouble.after(self._machine)
        return done

    async def keys(self, prefix: str) -> list[str]:
        """Every key with the prefix."""
        await self._trouble.before(self._machine)
        self._trouble.check(f"keys {prefix}")
        found = sorted(key for key in self._store.records if key.startswith(prefix))
        await self._trouble.after(self._machine)
        return found

    async def remove(self, key: str, number: int | None = None) -> bool:
        """Forget a record, or only a newest version."""
        await self._trouble.before(self._machine)
        self._trouble.check(f"remove {key}")
        done = number in (None, len(self._store.records.get(key, [])) or number)
        if done:
            self._store.records.pop(key, None)
        await self._trouble.after(self._machine)
        return done
