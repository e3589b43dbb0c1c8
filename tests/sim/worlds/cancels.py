"""The broker's world with somebody who takes delayed messages back, or gives them other times, and believes answers.

Every answer is judged by what happened: nothing said to be cancelled is delivered after that, and it is said again when
it is asked again; nothing said to be rescheduled comes before its new time; `too late: delivered` is said of what
somebody finished alone, `unknown` of what was trimmed alone, `too late: due` of what is due alone. Meanwhile buckets
seal and merge, get lost, and change owners, and the record of the changes is folded into tables.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

from sluice.actors.dispatcher.delivery import changed_delays
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages.delayed import (
    CANCELLED,
    RESCHEDULED,
    TOO_LATE_AT,
    TOO_LATE_DELIVERED,
    TOO_LATE_DUE,
    UNKNOWN,
)
from sluice.actors.ports import Ports
from sluice.loadgen.base import history
from sluice.storage.format.position import show
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.broker import CONTROLLER, BrokerWorld, Course, Size
from tests.sim.worlds.operators import insist

Message = tuple[bytes, int]


class CancelsWorld(BrokerWorld):
    """See the module."""

    name = "cancels"
    favourites = ("two_owners", "crash", "lost_object")

    def __call__(self, world: World, faults: list[Fault], options: dict[str, str]) -> dict[str, int]:
        """Play a run, in which few changes are many."""
        with patch.object(changed_delays, "FOLD_AT", random.Random(f"fold/{world.seed}").choice((1, 5, 4_096))):
            return super().__call__(world, faults, options)

    def course(self, world: World, faults: list[Fault], options: dict[str, str]) -> Course:
        """See BrokerWorld."""
        rng = random.Random(f"cancels/{world.seed}")
        course = CancelsCourse(world, faults, options, _size(rng, options))
        course.begun = lambda: world.background(course.change_often(rng), "somebody changes delays")
        return course


def _size(rng: random.Random, options: dict[str, str]) -> Size:
    size = Size.draw(rng, options)
    settings = msgspec.structs.replace(
        size.traffic.settings,
        delayed_tracker=rng.choice(("bucket", "bucket", "bucket", "memory")),
        delayed_delivery_shared_index_enabled=rng.random() < 0.3,
        delay_key_policy=rng.choice(("pass", "pass", "pass", "block_key")),
    )
    delays = (200, 2_000, 10_000) if size.dense else (2_000, 20_000, 60_000)
    traffic = replace(
        size.traffic,
        settings=settings,
        delayed=rng.choice((0.3, 0.6, 1.0)),
        delay_ms=rng.choice(delays),
        sends=rng.randint(5, 30),
    )
    topic = msgspec.structs.replace(size.topic, roll_entries=rng.choice((50, 5_000_000)))
    return replace(size, traffic=traffic, topic=topic, trouble_ms=max(size.trouble_ms, 1_000))


class CancelsCourse(Course):
    """One run, with somebody who changes delays during the trouble, and a while into the rest."""

    def __init__(self, world: World, faults: list[Fault], options: dict[str, str], size: Size) -> None:
        super().__init__(world, faults, options, size)
        self._cancelled: dict[Message, int] = {}
        self._moved: list[tuple[Message, int, int]] = []
        """Message, moment of the answer, due time (ms)."""
        self._asked_again: dict[Message, int] = {}
        """The moment at which somebody last asked for a new time."""
        self._changing = True
        self._swept: set[bytes] = set()
        """Keys of which all was cancelled, also what was stored and not confirmed yet."""
        self._repeated: set[Message] = set()
        """What somebody asked again to have cancelled: an answer that was lost may have said that it is."""

    async def change_often(self, rng: random.Random) -> None:
        """Cancel and reschedule now and then until the trouble is over and a little longer."""
        ports = self.world.client("operator")
        directory = Directory(ports, CONTROLLER)
        end = self.world.loop.now + self.size.trouble_ms + 500
        while self.world.loop.now < end:
            await self.world.loop.pause(rng.randrange(1, max(self.size.trouble_ms // 8, 2)))
            await self._change(rng, ports, directory, rng.randrange(self.size.traffic.partitions))
        await self._published()
        await self._ask_about_the_rest(ports, directory)
        self._changing = False

    async def _change(self, rng: random.Random, ports: Ports, directory: Directory, partition: int) -> None:
        sends = [s for s in self.past.sends if s[1] == partition and s[9] > 0 and s[5] >= 0]
        known = [s for s in sends if s[6] == history.OK or (s[2], s[3]) in self._cancelled]
        if not known:
            return
        verb = rng.choice(("cancel_delayed", "reschedule_delayed"))
        time = {} if verb == "cancel_delayed" else {"deliver_at": self._new_time(rng)}
        targets = rng.sample(known, min(len(known), rng.choice((1, 3, 40))))
        if rng.random() < 0.4:
            key = rng.choice(known)[2].decode()
            targets = [send for send in known if send[2] == key.encode()]
            chosen = rng.choice(({"key": key}, {"key": key, "due_from": 1}))
            self._swept.update([] if time else [key.encode()])
            answer = await insist(ports, directory, self.size.traffic.settings, partition, verb, {**chosen, **time})
            # Also what was sent while the question was under way.
            self._expect([s for s in self.past.sends if s[1] == partition and s[2] == key.encode()], time)
            self._add(f"{verb} by key", int(answer[CANCELLED]) + int(answer[RESCHEDULED]))
        await self._ask_each(ports, directory, partition, verb, time, targets)

    async def _ask_about_the_rest(self, ports: Ports, directory: Directory) -> None:
        """Ask which messages a filter cancelled, because only their number was reported."""
        for partition in range(self.size.traffic.partitions):
            swept = [s for s in self.past.sends if s[1] == partition and s[9] > 0 and s[2] in self._swept]
            open_ones = [send for send in swept if self.past.is_open(send[2], send[3])]
            if open_ones:
                await self._ask_each(ports, directory, partition, "cancel_delayed", {}, open_ones)

    async def _ask_each(
        self,
        ports: Ports,
        directory: Directory,
        partition: int,
        verb: str,
        time: dict[str, int],
        targets: list[list[Any]],
    ) -> None:
        places = {f"{show(send[5])}:{partition}": send for send in targets}
        self._expect(list(places.values()), time)
        wanted = {"message_ids": [place.rpartition(":")[0] for place in places]}
        repeated = {(send[2], send[3]) for send in targets} if not time else set()
        answer = await insist(
            ports,
            directory,
            self.size.traffic.settings,
            partition,
            verb,
            {**wanted, **time},
            lambda: self._repeated.update(repeated),
        )
        assert {row["messageId"] for row in answer["messages"]} == set(places), "somebody was not answered"
        for row in answer["messages"]:
            self._judge_answer(places[row["messageId"]], row["answer"], time.get("deliver_at", 0))

    def _new_time(self, rng: random.Random) -> int:
        return self.past.base() // 1000 + rng.choice((1, 50, 500, self.size.traffic.delay_ms))

    def _expect(self, sends: list[list[Any]], time: dict[str, int]) -> None:
        """From now on these may come at the new time: whether they have it is known when the answer is there."""
        for send in sends:
            if time and send[9] > 0:
                send[9] = min(send[9], time["deliver_at"])
                self._asked_again[send[2], send[3]] = self.past.stamp()

    # -- judgement --

    def _judge_answer(self, send: list[Any], answer: str, due: int) -> None:
        message = (send[2], send[3])
        self._add(answer.partition(" consumer")[0], 1)
        before = message in self._cancelled
        assert not before or answer in (CANCELLED, UNKNOWN), f"{message} was cancelled, and is now {answer!r}"
        finished = not before and not self.past.is_open(*message)
        # Cancelled with its key, or by a call whose answer was lost, and trimmed since.
        swept = answer == UNKNOWN and (send[2] in self._swept or message in self._repeated)
        if answer == CANCELLED or (swept and not finished):
            self._cancelled.setdefault(message, self.past.stamp())
            send[6] = history.INFO
            self.past.finish([message])
        elif answer == RESCHEDULED:
            self._moved.append((message, self.past.stamp(), due))
        elif answer == TOO_LATE_DELIVERED:
            assert finished, f"{message} is said to be delivered, and nobody finished it"
        elif answer == TOO_LATE_DUE:
            early = "early" not in self.excused and send[9] > self.past.base() // 1000
            assert not early, f"{message} is said to be due, and is not"
        elif answer == UNKNOWN:
            assert before or finished, f"{message} is said to be unknown, and waits"
        else:
            holder = answer.removeprefix(TOO_LATE_AT)
            assert holder in {f"worker-{each.number % 4}" for each in self.consumers}, answer

    async def _rest(self) -> None:
        """There is no rest while somebody waits for an answer."""
        while self._changing:
            await self.world.loop.pause(100)
        await super()._rest()

    def _judge(self) -> None:
        """Check that no cancelled message came after the answer, and no rescheduled one before its time."""
        received: dict[Message, list[int]] = {}
        for row in self.past.receives:
            received.setdefault((row[4], row[5]), []).append(row[9])
        for message, told in self._cancelled.items():
            late = [moment for moment in received.get(message, ()) if moment > told]
            assert not late, f"{message} was cancelled at {told}, and came at {late}"
        for message, told, due in self._moved:
            last = self._asked_again[message]
            if "early" in self.excused or last > told:
                continue
            early = [moment for moment in received.get(message, ()) if told < moment < due * 1000]
            assert not early, f"{message} was moved to {due} at {told}, and came at {early}"
            self._add("times kept", 1)
        super()._judge()
