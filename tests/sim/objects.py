"""A simulated object store: put if absent, with 5xx before and after the effect, late writes and missing objects."""

from __future__ import annotations

from sluice.storage.errors import NotFound, Unavailable
from sluice.storage.format.frame import Buffer
from tests.sim.loop import SimLoop
from tests.sim.meta import Trouble


class ObjectStore:
    """The objects themselves; one in a world."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.trouble = Trouble(loop, f"objects/{seed}")
        self.objects: dict[str, bytes] = {}

    def write(self, name: str, data: bytes) -> bool:
        """Create if absent."""
        if name in self.objects:
            self.trouble.count("taken")
            return False
        self.objects[name] = data
        return True

    def erase(self, name: str) -> None:
        """Remove."""
        self.objects.pop(name, None)

    def lose(self, prefix: str = "") -> str | None:
        """Lose one object, as a store must not; returns its name."""
        names = sorted(name for name in self.objects if name.startswith(prefix))
        if not names:
            return None
        name = names[self.trouble.rng.randrange(len(names))]
        del self.objects[name]
        self.trouble.count("missing")
        return name

    def flip(self, prefix: str = "") -> str | None:
        """Flip one bit of one object; returns its name."""
        names = sorted(name for name, data in self.objects.items() if name.startswith(prefix) and data)
        if not names:
            return None
        name = names[self.trouble.rng.randrange(len(names))]
        damaged = bytearray(self.objects[name])
        damaged[self.trouble.rng.randrange(len(damaged))] ^= 1 << self.trouble.rng.randrange(8)
        self.objects[name] = bytes(damaged)
        self.trouble.count("bit flip")
        return name


class SimObjects:
    """The object store as one process sees it. Implements actors.ports.Objects."""

    def __init__(self, store: ObjectStore, machine: str) -> None:
        self._store = store
        self._trouble = store.trouble
        self._machine = machine

    async def put(self, name: str, data: Buffer) -> bool:
        """Create if absent."""
        await self._trouble.before(self._machine)
        self._trouble.check(f"put {name}")
        whole = bytes(data)
        if self._trouble.is_late():
            self._trouble.loop.after(
                self._trouble.between(self._trouble.faults.late_ms), self._store.write, name, whole
            )
            raise Unavailable("the object store did not answer in time")
        created = self._store.write(name, whole)
        await self._trouble.after(self._machine)
        return created

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """An object or a range of it."""
        await self._trouble.before(self._machine)
        self._trouble.check(f"get {name}")
        data = self._store.objects.get(name)
        await self._trouble.after(self._machine)
        if data is None:
            raise NotFound(f"no object {name}")
        return data[start:] if length is None else data[start : start + length]

    async def names(self, prefix: str) -> list[str]:
        """Every name with the prefix."""
        await self._trouble.before(self._machine)
        self._trouble.check(f"names {prefix}")
        found = sorted(name for name in self._store.objects if name.startswith(prefix))
        await self._trouble.after(self._machine)
        return found

    async def delete(self, name: str) -> None:
        """Remove."""
        await self._trouble.before(self._machine)
        self._trouble.check(f"delete {name}")
        if self._trouble.is_late():
            self._trouble.loop.after(self._trouble.between(self._trouble.faults.late_ms), self._store.erase, name)
            raise Unavailable("the object store did not answer in time")
        self._store.erase(name)
        await self._trouble.after(self._machine)
