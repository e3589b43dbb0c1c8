"""The broker's world with consumers that restart under their names, on a subscription that keeps their places.

Two kinds of seeds. In a *steady* one the grace outlasts everything: consumers are killed and come back, close and come
back, hand over to newcomers of their own or another name, while dispatchers are killed and replaced. Nobody is added
and nobody stays away, so every key must be with one of them, under whatever name it came, from the first message to the
last: nobody else's keys move. In the others the grace is short and the usual churn goes on, so that places are given
up, flappers are damped, and names repeat; there the order, single holders and the final rest are judged as ever.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from sluice.storage.errors import SluiceError
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import BrokerWorld, Course, Size
from tests.sim.worlds.clients import SimConsumer
from tests.sim.worlds.redeliveries import RedeliveriesCourse

STEADY_GRACE_MS = 3_600_000
SHORT_GRACES = (200, 1_000, 5_000)
HASHES = 65_536


class GraceWorld(BrokerWorld):
    """See the module."""

    name = "grace"
    favourites: Sequence[str] = ("two_owners", "crash", "churn")

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"grace/{world.seed}")
        steady = rng.random() < 0.7
        size = Size.draw(rng, options)
        settings = msgspec.structs.replace(
            size.traffic.settings,
            grace_ms=STEADY_GRACE_MS if steady else rng.choice(SHORT_GRACES),
            lease_ms=rng.choice((3_000, 10_000)),
        )
        if steady:
            selector = rng.choice(("consistent_hashing", "auto_split", "sticky"))
            settings = msgspec.structs.replace(settings, selector=selector)
        traffic = replace(size.traffic, settings=settings, sends=rng.randint(5, 30), think_ms=rng.choice((2, 30)))
        size = replace(size, traffic=traffic, consumers=rng.randint(2, 5), trouble_ms=rng.randint(2_000, 15_000))
        course: GraceCourse = (SteadyCourse if steady else GraceCourse)(world, faults, options, size)
        course.begun = lambda: world.background(course.change(rng), "owners change")
        return course


class GraceCourse(RedeliveriesCourse):
    """A run with a short grace, and the usual coming and going."""

    def _judge(self) -> None:
        Course._judge(self)


@dataclass(eq=False)
class Post:
    """A post that one consumer at a time holds, or two while it is handed over."""

    number: int
    name: str
    now: SimConsumer
    handing_over: bool = False


class SteadyCourse(GraceCourse):
    """A run in which everybody comes back in time."""

    def __init__(self, world: World, faults: list[Fault], options: dict[str, str], size: Size) -> None:
        super().__init__(world, faults, options, size)
        self._posts: list[Post] = []
        self._post_of: dict[str, int] = {}
        """By consumer: at which post it is."""
        self._ending = False

    async def _begin_clients(self) -> None:
        """Everybody is there before the first message."""
        for number in range(self.size.consumers):
            name = f"worker-{number}"
            self._posts.append(Post(number, name, self._start(number, name)))
        while not all(part.session for consumer in self.consumers for part in consumer.parts):
            await self.world.loop.pause(5)
        for number in range(self.size.producers):
            self.producers.append(self._produce(number))
        self.nemesis.revive["consumer"] = self._leave_it

    def _start(self, number: int, name: str) -> SimConsumer:
        sticky, share = self.size.traffic.settings.selector == "sticky", HASHES // self.size.consumers
        last = HASHES - 1 if number == self.size.consumers - 1 else (number + 1) * share - 1
        consumer = SimConsumer(
            self.world,
            self.past,
            self.size.traffic,
            len(self.consumers),
            calm=self._ending,
            called=name,
            ranges=[(number * share, last)] if sticky else [],
        )
        self._post_of[consumer.name] = number
        self.consumers.append(consumer)
        return consumer

    def join(self) -> SimConsumer:
        """At the end everybody comes back, also who goes only now; there is nobody new."""
        self._ending = True
        self.world.background(self._fill_all(), "everybody comes back")
        return self.consumers[-1]

    async def _fill_all(self) -> None:
        while True:
            for post in self._posts:
                if not post.handing_over:
                    self._fill(post)
            await self.world.loop.pause(100)

    def _fill(self, post: Post) -> None:
        """Start the consumer of a post again if it is gone."""
        if not self.world.is_up(post.now.name):
            post.now = self._start(post.number, post.name)
            self._add("restarts", 1)

    async def _churn(self, fault: Fault, rng: random.Random) -> None:
        """A post is restarted, one way or the other."""
        post = self._posts[rng.randrange(len(self._posts))]
        if post.handing_over or len(self.consumers) > 60:
            return
        old = post.now
        if not self.world.is_up(old.name):
            self._fill(post)
        elif old.gone:
            return  # it closes
        elif rng.random() < 0.4 and all(part.session for part in old.parts):  # else it may not have its place yet
            post.handing_over = True
            self.world.background(self._hand_over(post, rng), "hand over")
        elif rng.random() < 0.5:
            old.leave()
        else:
            old.gone = True
            self.world.crash(old.name)

    async def change(self, rng: random.Random) -> None:
        """Owners are replaced; posts are restarted, also without any fault that says so."""
        own = random.Random(f"restarts/{self.world.seed}")
        self.world.background(super().change(rng), "owners change")
        while self.nemesis.active:
            await self.world.loop.pause(own.randrange(100, 2_000))
            if self.nemesis.active:
                await self._churn(Fault("churn"), own)

    async def _hand_over(self, post: Post, rng: random.Random) -> None:
        """Announce, let the newcomer attach, and then stop, whatever befalls either of them."""
        old, to = post.now, rng.choice((post.name, f"{post.name}-{len(self.consumers)}"))
        offered: list[str] = []
        old.ports.spawn(self._offer(old, to, offered), "offer")
        while not offered and self.world.is_up(old.name):
            await self.world.loop.pause(20)
        if not self.world.is_up(old.name):
            # Nobody knows whether the offer came through everywhere: it comes back as what it was.
            post.handing_over = False
            return
        post.name, post.now = to, self._start(post.number, to)
        self._add("hand-overs", 1)
        for _ in range(rng.choice((0, 20, 400))):
            if not self.world.is_up(old.name) or all(part.handing_over.done for part in old.parts):
                break
            await self.world.loop.pause(10)
        if self.world.is_up(old.name):
            old.leave() if rng.random() < 0.7 else self.world.crash(old.name)
        old.gone = True
        post.handing_over = False

    async def _offer(self, old: SimConsumer, to: str, offered: list[str]) -> None:
        for part in old.parts:
            try:
                await part.handing_over.offer(to)
            except SluiceError as error:
                raise AssertionError(f"GR-3: a hand-over to {to} was refused: {error!r}") from None
        offered.append(to)

    def _judge(self) -> None:
        """Every key was at one post."""
        posts: dict[tuple[int, bytes], int] = {}
        for name, _, partition, position, key, *_ in self.past.receives:
            post = self._post_of[name]
            before = posts.setdefault((partition, key), post)
            assert before == post, f"GR-1: {key!r} ({position}) moved from post {before} to post {post}, to {name}"
        self._add("keys at their posts", len(posts))
        super()._judge()
