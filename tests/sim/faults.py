"""Faults as data: what goes wrong in a run is a list of (kind, numbers), drawn from the seed or given by hand.

Swarm testing: each seed takes a random part of the kinds, some seeds many and some few, because a fault can hide what
another one would show. Every fault has its own random stream, derived from the seed and its kind, so that taking one
out of the list leaves the draws of the others as they were: that is what makes shrinking work.

Two sorts of kinds. A *condition* changes how the network, the disks or the stores behave, for the whole safety phase.
An *episode* is an activity of its own: it waits, does something to a victim, and later takes it back. `Nemesis.heal`
ends both: conditions go back to normal, partitions are joined, frozen processes go on, crashed ones are restarted,
and from then on the world owes progress.

None of these faults may cost confirmed data by itself: a crash loses what was not synced, a failed sync ends its
bookie. Damage to synced bytes (`bit_flip`, `lost_object`) hits one victim in a run, which the quorums must bear.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.storage.errors import AccessDenied, Corrupt, SluiceError
from tests.sim.world import World

Values = dict[str, float]


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, and numbers (chances 0..1, times in milliseconds)."""

    kind: str
    values: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return self.kind + "".join(f" {name}={value:g}" for name, value in self.values)

    def __getitem__(self, name: str) -> float:
        return dict(self.values)[name]

    def quickened(self, factor: float) -> Fault:
        """The same fault with its times multiplied: episodes come more often and are shorter."""
        times = ("every", "length", "down")
        return Fault(
            self.kind, tuple((name, value * factor if name in times else value) for name, value in self.values)
        )

    def whole(self, name: str) -> int:
        """A number of milliseconds."""
        return int(self[name])


def parse(text: str) -> Fault:
    """Read `kind name=value name=value` back; missing numbers come from the middle of their range."""
    kind, *rest = text.split()
    if kind not in KINDS:
        raise ValueError(f"no fault {kind!r}; there are {', '.join(KINDS)}")
    values = {name: (low + high) / 2 for name, (low, high) in KINDS[kind].ranges.items()}
    for pair in rest:
        name, _, value = pair.partition("=")
        if name not in values:
            raise ValueError(f"{kind} has no number {name!r}")
        values[name] = float(value)
    return Fault(kind, tuple(values.items()))


def draw(seed: int, kinds: list[str] | None = None, favourites: Sequence[str] = ()) -> list[Fault]:
    """The faults of a seed: a random part of the kinds, with random numbers. Favourites are there every other time."""
    rng = random.Random(f"swarm/{seed}")
    density = rng.choice((0.0, 0.15, 0.3, 0.3, 0.5, 0.8))
    chosen: list[Fault] = []
    for kind, what in KINDS.items():
        taken = rng.random() < (max(density, 0.5) if density and kind in favourites else density)
        values = tuple(
            (name, round(low + rng.random() ** 2 * (high - low), 4)) for name, (low, high) in what.ranges.items()
        )
        if taken and (kinds is None or kind in kinds):
            chosen.append(Fault(kind, values))
    return chosen


class Nemesis:
    """Does the faults of a list to a world, and takes them back."""

    def __init__(self, world: World, faults: list[Fault]) -> None:
        self.world = world
        self.faults = faults
        self.roles: dict[str, Callable[[], list[str]]] = {}
        """Names of the processes that may be hit, by role; `any` is all of them."""
        self.revive: dict[str, Callable[[str], Awaitable[object]]] = {}
        """How a crashed process of a role comes back; the default is `World.restart` on its old disk."""
        self.special: dict[str, Callable[[Fault, random.Random], Awaitable[object]]] = {}
        """What a scenario itself does for a kind (two_owners, churn): one episode."""
        self.active = False
        self._joins: dict[int, Callable[[], None]] = {}
        self._episodes = 0

    def begin(self) -> None:
        """Start the safety phase."""
        self.active = True
        for fault in self.faults:
            self.world.record("nemesis", str(fault))
            kind = KINDS[fault.kind]
            if kind.condition is not None:
                kind.condition(self.world, fault)
            if kind.episode is not None:
                rng = random.Random(f"{fault.kind}/{self.world.seed}")
                self._run(self._repeat(fault, kind.episode, rng))

    async def heal(self) -> None:
        """End the safety phase: everything works again, and everything that was down is up."""
        self.active = False
        world = self.world
        world.record("nemesis", "heals")
        world.network.heal()
        for trouble in (world.meta.trouble, world.objects.trouble):
            trouble.faults = type(trouble.faults)()
            trouble.cut.clear()
            trouble.refused.clear()
        calm = type(world.disk_faults)()
        for name, value in vars(calm).items():
            setattr(world.disk_faults, name, value)
        world.place_failures = world.zombies = 0.0
        for name in world.names():
            world.resume(name)
        await self._revive()
        world.background(self._ward(), "ward")

    async def _ward(self) -> None:
        """Bring up, again and again, what an earlier fault still keeps down."""
        while True:
            await self.world.loop.pause(500)
            await self._revive()

    async def _revive(self) -> None:
        for role in self.roles:
            for name in self.roles[role]():
                if not self.world.is_up(name):
                    await self.bring_back(role, name)

    async def bring_back(self, role: str, name: str) -> None:
        """Start a crashed process again; the world may refuse for now."""
        try:
            await self.revive.get(role, self.world.restart)(name)
        except SluiceError as error:
            self.world.record("nemesis", "could not restart", name=name, error=str(error))

    def victim(self, rng: random.Random) -> tuple[str, str] | None:
        """A live process to hit: (role, name)."""
        every = [(role, name) for role in self.roles for name in self.roles[role]() if self.world.is_up(name)]
        return every[rng.randrange(len(every))] if every else None

    def isolate(self, rng: random.Random) -> Callable[[], None] | None:
        """Cut some machines from the others, or one from another, in one direction or both."""
        machines = self.world.machines()
        if len(machines) < 2:
            return None
        rng.shuffle(machines)
        if rng.random() < 0.5:
            left, right = machines[:1], machines[1:2]
        else:
            size = rng.randrange(1, len(machines))
            left, right = machines[:size], machines[size:]
        return self.world.partition(left, right, both=rng.random() < 0.5, felt=False)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self.world.background(work, "nemesis")

    async def _repeat(self, fault: Fault, episode: Episode, rng: random.Random) -> None:
        while True:
            await self.world.loop.pause(1 + int(rng.expovariate(1.0) * fault["every"]))
            if not self.active:
                return
            await episode(self, fault, rng)


Episode = Callable[[Nemesis, Fault, random.Random], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Kind:
    """How a kind of fault is drawn and done."""

    ranges: dict[str, tuple[float, float]]
    condition: Callable[[World, Fault], None] | None = None
    episode: Episode | None = None


async def _crash(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    hit = nemesis.victim(rng)
    if hit is None:
        return
    nemesis.world.crash(hit[1])
    await nemesis.world.loop.pause(int(rng.random() * fault["down"]))
    if nemesis.active and not nemesis.world.is_up(hit[1]):
        await nemesis.bring_back(*hit)


async def _crash_all(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    """A power failure: everything at once."""
    hit = [(role, name) for role in nemesis.roles for name in nemesis.roles[role]() if nemesis.world.is_up(name)]
    for _, name in hit:
        nemesis.world.crash(name)
    nemesis.world.count("power failure")
    await nemesis.world.loop.pause(int(rng.random() * fault["down"]))
    for role, name in hit:
        if nemesis.active and not nemesis.world.is_up(name):
            await nemesis.bring_back(role, name)


async def _pause(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    hit = nemesis.victim(rng)
    if hit is None:
        return
    nemesis.world.pause(hit[1])
    await nemesis.world.loop.pause(int(rng.random() * fault["length"]))
    nemesis.world.resume(hit[1])


async def _partition(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    join = nemesis.isolate(rng)
    if join is not None:
        await nemesis.world.loop.pause(int(rng.random() * fault["length"]))
        join()


async def _cut_stores(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    """A machine cannot reach the metadata or the object store, though it reaches its peers."""
    hit = nemesis.victim(rng)
    if hit is None:
        return
    machine = nemesis.world.process(hit[1]).machine
    trouble = rng.choice((nemesis.world.meta.trouble, nemesis.world.objects.trouble))
    trouble.cut[machine] = trouble.cut.get(machine, 0) + 1
    await nemesis.world.loop.pause(int(rng.random() * fault["length"]))
    if trouble.cut.get(machine, 0) > 1:
        trouble.cut[machine] -= 1
    else:
        trouble.cut.pop(machine, None)


async def _deny(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    """A token expires: one of the stores refuses everybody, until it is renewed. Or the records of partitions are
    damaged, until somebody mends the file.
    """
    world = nemesis.world
    trouble = rng.choice((world.meta.trouble, world.objects.trouble))
    refused: dict[str, type[SluiceError]] = {"": AccessDenied}
    if trouble is world.meta.trouble and rng.random() < 0.5:
        refused = dict.fromkeys(("read partition/", "create partition/"), Corrupt)
    trouble.refused.update(refused)
    await world.loop.pause(int(rng.random() * fault["length"]))
    for call in refused:
        trouble.refused.pop(call, None)


async def _jump(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    machines = nemesis.world.machines()
    if machines:
        machine = machines[rng.randrange(len(machines))]
        nemesis.world.skews[machine] = int((rng.random() * 2 - 1) * fault["skew"])
        nemesis.world.count("clock jump")
        nemesis.world.record("nemesis", "clock jump", machine=machine, skew=nemesis.world.skews[machine])


async def _special(nemesis: Nemesis, fault: Fault, rng: random.Random) -> None:
    act = nemesis.special.get(fault.kind)
    if act is not None:
        nemesis.world.count(fault.kind)
        await act(fault, rng)


def _network(**settings: str) -> Callable[[World, Fault], None]:
    def apply(world: World, fault: Fault) -> None:
        for name, value in settings.items():
            setattr(world.network.faults, name, fault[value])

    return apply


def _delay(world: World, fault: Fault) -> None:
    world.network.faults.delay_ms = (0, fault.whole("most"))


def _late(world: World, fault: Fault) -> None:
    world.network.faults.late = fault["chance"]
    world.network.faults.late_ms = (100, fault.whole("most"))


def _slow_disk(world: World, fault: Fault) -> None:
    world.disk_faults.slow_chance = fault["chance"]
    world.disk_faults.slow_ms = (5, fault.whole("most"))


def _failed_sync(world: World, fault: Fault) -> None:
    world.disk_faults.fail_sync_chance = fault["chance"]


def _full_disk(world: World, fault: Fault) -> None:
    world.disk_faults.capacity = fault.whole("bytes")


def _torn(world: World, fault: Fault) -> None:
    world.disk_faults.keep_chance = fault["keep"]
    world.disk_faults.zero_chance = fault["zero"]


def _store(which: str, setting: str) -> Callable[[World, Fault], None]:
    def apply(world: World, fault: Fault) -> None:
        store = world.meta if which == "meta" else world.objects
        setattr(store.trouble.faults, setting, fault["chance"])

    return apply


def _zombies(world: World, fault: Fault) -> None:
    world.zombies = fault["chance"]


def _places(world: World, fault: Fault) -> None:
    world.place_failures = fault["chance"]


_FEW = (0.0, 0.1)
_MORE = (0.0, 0.3)
_EVERY = (200.0, 8000.0)

KINDS: dict[str, Kind] = {
    "loss": Kind({"chance": _FEW}, _network(loss="chance")),
    "delay": Kind({"most": (3, 400)}, _delay),
    "repeat": Kind({"chance": _MORE}, _network(repeat="chance")),
    "late": Kind({"chance": _FEW, "most": (500, 30_000)}, _late),
    "blob_loss": Kind({"chance": (0.0, 1.0)}, _network(blob_loss="chance")),
    "no_hint": Kind({"hint": (0.0, 0.5)}, _network(gone_hint="hint")),
    "partition": Kind({"every": _EVERY, "length": (50, 15_000)}, episode=_partition),
    "pause": Kind({"every": _EVERY, "length": (20, 30_000)}, episode=_pause),
    "crash": Kind({"every": _EVERY, "down": (0, 5_000)}, episode=_crash),
    "power": Kind({"every": (2_000, 20_000), "down": (0, 3_000)}, episode=_crash_all),
    "torn": Kind({"keep": (0.0, 1.0), "zero": (0.0, 0.5)}, _torn),
    "slow_disk": Kind({"chance": _MORE, "most": (50, 3_000)}, _slow_disk),
    "failed_sync": Kind({"chance": (0.0, 0.01)}, _failed_sync),
    "full_disk": Kind({"bytes": (20_000, 400_000)}, _full_disk),
    "bit_flip": Kind({"every": _EVERY}, episode=_special),
    "meta_503": Kind({"chance": _MORE}, _store("meta", "fail_before")),
    "meta_lost_answer": Kind({"chance": _MORE}, _store("meta", "fail_after")),
    "meta_late": Kind({"chance": _FEW}, _store("meta", "late")),
    "meta_slow": Kind({"chance": _FEW}, _store("meta", "slow")),
    "object_503": Kind({"chance": _MORE}, _store("objects", "fail_before")),
    "object_lost_answer": Kind({"chance": _MORE}, _store("objects", "fail_after")),
    "object_late": Kind({"chance": _FEW}, _store("objects", "late")),
    "object_slow": Kind({"chance": _FEW}, _store("objects", "slow")),
    "lost_object": Kind({"every": (1_000, 10_000)}, episode=_special),
    "cut_stores": Kind({"every": _EVERY, "length": (50, 15_000)}, episode=_cut_stores),
    "clock": Kind({"every": _EVERY, "skew": (1, 10_000)}, episode=_jump),
    "no_place": Kind({"chance": (0.0, 0.5)}, _places),
    "zombie": Kind({"chance": (0.0, 1.0)}, _zombies),
    "two_owners": Kind({"every": (500, 8_000)}, episode=_special),
    "churn": Kind({"every": (5, 1_000)}, episode=_special),
    "process_crash": Kind({"every": (1_000, 30_000)}, episode=_special),
    "process_freeze": Kind({"every": (1_000, 30_000), "length": (20, 30_000)}, episode=_special),
    "node_loss": Kind({"every": (3_000, 60_000), "down": (0, 40_000)}, episode=_special),
    "node_hang": Kind({"every": (3_000, 60_000), "down": (0, 40_000)}, episode=_special),
    "slow_process": Kind({"chance": _MORE, "most": (500, 200_000)}),
    "start_death": Kind({"chance": _MORE}),
    "answer_loss": Kind({"chance": _FEW}),
    "controller_restart": Kind({"every": (1_000, 60_000), "down": (0, 5_000)}, episode=_special),
    "machine_cut": Kind({"every": (6_000, 60_000), "length": (500, 40_000)}, episode=_special),
    "two_controllers": Kind({"every": (1_000, 60_000), "length": (20, 30_000)}, episode=_special),
    "hang_up": Kind({"every": (20, 4_000)}, episode=_special),
    "stores_403": Kind({"every": _EVERY, "length": (50, 10_000)}, episode=_deny),
    "node_drain": Kind({"every": (6_000, 60_000), "down": (0, 20_000)}, episode=_special),
    "clock_leap": Kind({"every": (300, 6_000), "length": (2_000, 20_000)}, episode=_special),
}
"""Every kind of fault, with the ranges of its numbers. New ones come last: each seed draws for all, in this order."""
