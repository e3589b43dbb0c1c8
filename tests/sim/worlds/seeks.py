"""The broker's world with somebody who seeks: back to the beginning or to a message, again and again.

A seek that was answered gives every message from its position on once more to somebody: what had been acknowledged
before it was asked must be acknowledged again (L1), and then there is rest (L3). Order, single holders and everything
else are judged as ever; only that a message comes again needs no other reason (S5, S6). Half of the worlds keep what is
acknowledged; in the others the topic trims. What is gone by then nobody gets again, but the answer says where the
subscription stands now, and from there on nothing may be trimmed any more.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import request_of, shown
from sluice.actors.ports import Address, Ports, Unknown
from sluice.loadgen.base import history
from sluice.storage.errors import SluiceError
from sluice.storage.format.position import parse, show
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER, SUBSCRIPTION, TOPIC, BrokerWorld, Course, Size

KEPT_MS = 3_600_000
ADMIN_TIMEOUT = 10_000


class SeeksWorld(BrokerWorld):
    """See the module."""

    name = "seeks"

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"seeks/{world.seed}")
        size = Size.draw(rng, options)
        topic = msgspec.structs.replace(size.topic, retention_ms=rng.choice((0, KEPT_MS)))
        course = SeeksCourse(world, faults, options, replace(size, topic=topic))
        course.excused |= {"unexplained_redelivery", "acked_redelivered"}
        course.begun = lambda: world.background(course.seek_often(rng), "somebody seeks")
        return course


class SeeksCourse(Course):
    """One run, in which somebody seeks during the trouble."""

    async def seek_often(self, rng: random.Random) -> None:
        """Seek now and then until the trouble is over."""
        ports = self.world.client("operator")
        directory = Directory(ports, CONTROLLER)
        end = self.world.loop.now + self.size.trouble_ms
        while self.world.loop.now < end:
            await self.world.loop.pause(rng.randrange(1, max(self.size.trouble_ms // 4, 2)))
            partition = rng.randrange(self.size.traffic.partitions)
            try:
                await self._move(rng, ports, directory, partition)
            except SluiceError as error:
                ports.log("no seek", error=str(error))

    def _target(self, rng: random.Random, partition: int) -> str:
        """The beginning, or a message before everything that is still owed to somebody: nothing is ever skipped."""
        sends = [send for send in self.past.sends if send[1] == partition]
        stored = [send for send in sends if send[6] == history.OK and send[5] > 0]
        unknown = min((send[7] for send in sends if send[6] != history.OK), default=self.past.stamp())
        owed = min((send[5] for send in stored if self.past.is_open(send[2], send[3])), default=1 << 62)
        safe = [send[5] for send in stored if send[5] <= owed and send[8] < unknown]
        return show(rng.choice(safe)) if safe and rng.random() < 0.7 else "earliest"

    async def _move(self, rng: random.Random, ports: Ports, directory: Directory, partition: int) -> None:
        target = self._target(rng, partition)
        address = await directory.dispatcher(TOPIC, partition, SUBSCRIPTION, self.size.traffic.settings)
        done = len(self.past.finishes)
        answer = await self._ask(ports, directory, address, "seek", {"message_id": target})
        if answer is not None:
            position = parse(answer["position"])
            after = {
                (s[2], s[3]) for s in self.past.sends if s[1] == partition and s[6] == history.OK and s[5] >= position
            }
            again = set(self.past.finishes[:done]) - set(self.past.finishes[done:])
            self._add("sought", self.past.reopen(after & again))

    async def _ask(
        self, ports: Ports, directory: Directory, address: Address, verb: str, arguments: dict[str, Any]
    ) -> Any:
        """Return the dispatcher's answer to an administrative verb, None if it is not known. Raises SluiceError."""
        reply = await ports.net.call(address, request_of(verb, arguments), ADMIN_TIMEOUT)
        if isinstance(reply, Unknown):
            await directory.suspect(address)
            return None
        self._add(verb, 1)
        return shown(reply)


class SkipsWorld(BrokerWorld):
    """The broker's world with an operator who skips, clears and expires what waits, or seeks to the end.

    Nobody is owed what was skipped, so nothing is missed here. But the rest keeps its order, a key one holder, and in
    the end nothing is left over: no backlog that nobody can work off, no hash that drains for ever (L3).
    """

    name = "skips"

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"skips/{world.seed}")
        course = SkipsCourse(world, faults, options, Size.draw(rng, options))
        course.excused |= {"unexplained_redelivery", "acked_redelivered", "lost"}
        course.begun = lambda: world.background(course.seek_often(rng), "somebody skips")
        return course


class SkipsCourse(SeeksCourse):
    """One run, in which somebody moves the subscription about during the trouble."""

    async def _move(self, rng: random.Random, ports: Ports, directory: Directory, partition: int) -> None:
        address = await directory.dispatcher(TOPIC, partition, SUBSCRIPTION, self.size.traffic.settings)
        now = self.past.base() // 1000
        verb, arguments = rng.choice(
            (
                ("clear_backlog", {}),
                ("skip", {"messages": rng.choice((1, 5, 100))}),
                ("expire", {"before": now - rng.randrange(1_000)}),
                ("seek", {"message_id": "latest"}),
            )
        )
        await self._ask(ports, directory, address, verb, arguments)

    async def _rest(self) -> None:
        """Wait for no messages, because they may have been skipped."""
        self.past.finish([(send[2], send[3]) for send in self.past.sends])
        await super()._rest()
