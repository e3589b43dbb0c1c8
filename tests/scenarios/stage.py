"""A stage for golden conversations: a few actors, a script of commands, and the whole exchange as text.

A script is a text file. Lines that begin with `#` are for the reader, lines that begin with `>` are commands, and the
lines below a command are what was said because of it: who asked whom for what, and the outcome as the asker saw it.
The network takes a millisecond, each command 60 for what follows from it, and a poll waits 200 for messages. Nothing is
random, and background talk (pings, tail reads) is left out.

    > bookies b1 b2 b3                     start bookies
    > topic E Qw Qa                        start the owner of the topic; again: a newer owner beside the old one
    > subscription key=value ...           start the dispatcher with these settings; again: a newer owner
    > join NAME / leave NAME               a consumer attaches or detaches; it speaks only when the script says so
    > publish KEY KEY ... [delay=MS]       one run; publish_unanswered does not wait for the outcome
    > poll NAME PERMITS                    ask for so many more messages
    > ack NAME POSITION ... / nack NAME POSITION ...
    > explain KEY                          ask why the messages of a key wait
    > crash NAME / pause NAME / resume NAME    a process: b1, topic, dispatcher
    > wait MS
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sluice.actors.bookie import Bookie
from sluice.actors.dispatcher import Dispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import (
    Acknowledge,
    AddRun,
    Attach,
    BookieList,
    Delivery,
    Detach,
    Explain,
    FenceLedger,
    FenceState,
    HeadsRead,
    Located,
    LocateTopic,
    NegativeAcknowledge,
    OpenProducer,
    Poll,
    Publish,
    Published,
    ReadHeads,
    ReadRun,
    RunRead,
    SubscriptionSettings,
    Text,
    TopicSettings,
    shown,
)
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import Blob, Reply, Request
from sluice.actors.runtime.host import Actor
from sluice.actors.topic.topic import Topic
from sluice.cluster.launch.topic_rooms import topic_resources
from sluice.storage.errors import SluiceError
from sluice.storage.format.batch import make_batch
from sluice.storage.format.frame import decode_head, make_run
from sluice.storage.format.position import parse, position, show
from tests.sim.net import LinkFaults
from tests.sim.world import Process, World
from tests.sim.worlds.ledger import BOOKIE

SETTLE_MS = 60
"""How long a command's consequences are listened to."""
NAMES = "registry/registry"


class Names(Actor):
    """A directory that answers with the newest owner of each role."""

    def __init__(self, ports: Ports, stage: Stage) -> None:
        super().__init__(ports)
        self._stage = stage

    async def on_locate_topic(self, request: LocateTopic) -> Located:
        """Return the newest owner of the topic."""
        settings = msgspec.json.encode(self._stage.topic_settings).decode()
        return Located(addresses=[self._stage.address("topic")], settings=settings)

    async def on_suspect(self, request: object) -> Reply:
        """Take note. The script decides what becomes of the suspect."""
        return Located(addresses=[])

    async def on_list_bookies(self, request: object) -> BookieList:
        """Return all bookies, by name."""
        names = self._stage.bookies
        return BookieList(ids=names, addresses=[self._stage.address(name) for name in names])


class Stage:
    """A stage for one script. transcript: the script with the exchange that followed each command."""

    def __init__(self) -> None:
        self.world = World(1, shuffle=False)
        self.world.network.faults = LinkFaults(delay_ms=(1, 1), gone_hint=1.0, share_above=1 << 30)
        self.world.disk_faults.sync_ms = self.world.disk_faults.read_ms = (1, 1)
        self.world.meta.trouble.faults.delay_ms = self.world.objects.trouble.faults.delay_ms = (0, 0)
        self.world.power_loss = 1.0
        self.world.witness = self._witness
        self.topic_settings = TopicSettings()
        self.bookies: list[str] = []
        self.transcript: list[str] = []
        self._listening = False
        self._roles: dict[str, list[str]] = {"topic": [], "dispatcher": []}
        self._consumers: dict[str, _Consumer] = {}
        self._keys: dict[int, str] = {}
        self._sequence = 0
        self._sessions: dict[Address, int] = {}

    def play(self, script: str) -> str:
        """Run every command of a script. Return the transcript."""
        self.world.play(lambda world: self._play(script.splitlines()))
        return "\n".join(self.transcript) + "\n"

    def address(self, role: str) -> Address:
        """Return the role's address; if it has several owners, the newest one's."""
        return self.world.process(self._process(role)).address

    async def _play(self, lines: list[str]) -> None:
        self._names_client = self.world.client("stage")
        await self.world.start("registry", lambda ports: Names(ports, self), fixed=True)
        for line in lines:
            if line.startswith(">"):
                self.transcript.append(line)
                verb, *words = line[1:].split()
                self._listening = True
                await getattr(self, f"_do_{verb}")(*words)
                await self.world.loop.pause(SETTLE_MS)
                self._listening = False
            elif line.startswith("#") or not line.strip():
                self.transcript.append(line)

    def _process(self, role: str) -> str:
        owners = self._roles.get(role)
        return owners[-1] if owners else role

    # -- commands --

    async def _do_bookies(self, *names: str) -> None:
        self.bookies += names
        for name in names:
            await self.world.start(name, _bookie(name), disk=name)

    async def _do_topic(self, ensemble: str, write: str, ack: str) -> None:
        self.topic_settings = TopicSettings(ensemble=int(ensemble), write_quorum=int(write), ack_quorum=int(ack))
        await self._own("topic", self._make_topic)

    async def _do_subscription(self, *pairs: str) -> None:
        plain: dict[str, Any] = {"initial_position": "earliest", "selector": "auto_split"}
        for pair in pairs:
            name, _, value = pair.partition("=")
            plain[name] = int(value) if value.isdigit() else value
        self._settings = msgspec.convert(plain, SubscriptionSettings)
        await self._own("dispatcher", self._make_dispatcher)

    async def _own(self, role: str, make: Callable[[Ports], Actor]) -> None:
        name = role + "'" * len(self._roles[role])
        self._roles[role].append(name)
        await self.world.start(name, make)

    def _make_topic(self, ports: Ports) -> Topic:
        directory = Directory(ports, NAMES)
        resources = topic_resources()
        return Topic(
            ports, topic="t", partition=0, settings=self.topic_settings, bookies=directory.bookies, resources=resources
        )

    def _make_dispatcher(self, ports: Ports) -> Dispatcher:
        directory = Directory(ports, NAMES)
        return Dispatcher(ports, topic="t", partition=0, subscription="s", settings=self._settings, directory=directory)

    async def _do_join(self, name: str) -> None:
        known = self._consumers.get(name)
        consumer = known or _Consumer(self.world.client(name))
        self._consumers[name] = consumer
        consumer.session = consumer.turn = consumer.granted = 0
        holding = np.array(sorted(consumer.holding), np.int64)
        request = Attach(consumer=name, incarnation=f"{name}-1", holding=holding)
        reply = await self._ask(consumer.ports, "dispatcher", request)
        if reply is not None:
            consumer.session = reply.session

    async def _do_leave(self, name: str) -> None:
        consumer = self._consumers[name]
        consumer.holding.clear()
        await self._ask(consumer.ports, "dispatcher", Detach(session=consumer.session))

    async def _do_publish(self, *words: str) -> None:
        ports = self._names_client
        keys = [word for word in words if not word.startswith("delay=")]
        delays = [int(word[6:]) for word in words if word.startswith("delay=")]
        due = ports.clock.now() + delays[0] if delays else 0
        rows = pa.table({"key": keys, "payload": keys, "deliver_at": pa.array([due] * len(keys), pa.int64())})
        run = make_run(make_batch(rows, now=ports.clock.now(), producer="producer"))
        address = self.address("topic")
        if address not in self._sessions:
            opened = await self._ask(ports, address, OpenProducer(producer="producer", incarnation="producer-1"))
            if opened is None:
                return
            self._sessions[address] = opened.session
        request = Publish(
            producer="producer", session=self._sessions[address], first_sequence=self._sequence, count=run.count,
            delayed=run.delayed, shape=run.shape, crc=run.crc, payload=Blob(run.payload),
        )  # fmt: skip
        placed = await self._ask(ports, address, request)
        if placed is not None:
            self._sequence += run.count
            for offset, key in enumerate(keys):
                self._keys[position(placed.ledger, placed.first_entry + offset)] = key

    async def _do_poll(self, name: str, permits: str) -> None:
        consumer = self._consumers[name]
        consumer.turn += 1
        consumer.granted += int(permits)
        request = Poll(session=consumer.session, turn=consumer.turn, granted=consumer.granted, wait=200)
        reply = await self._ask(consumer.ports, "dispatcher", request)
        if isinstance(reply, Delivery):
            consumer.holding.update(_positions(reply))
            if reply.events and not reply.parts:
                await self._do_poll(name, "0")

    async def _do_ack(self, name: str, *positions: str) -> None:
        consumer = self._consumers[name]
        consumer.acks += 1
        done = [parse(text) for text in positions]
        consumer.holding.difference_update(done)
        request = Acknowledge(
            session=consumer.session, ack_turn=consumer.acks, acks=np.array(done, np.int64), durable=True
        )
        await self._ask(consumer.ports, "dispatcher", request)

    async def _do_nack(self, name: str, *positions: str) -> None:
        consumer = self._consumers[name]
        back = [parse(text) for text in positions]
        consumer.holding.difference_update(back)
        request = NegativeAcknowledge(session=consumer.session, positions=np.array(back, np.int64))
        await self._ask(consumer.ports, "dispatcher", request)

    async def _do_explain(self, key: str) -> None:
        await self._ask(self._names_client, "dispatcher", Explain(key=key.encode()))

    async def _do_crash(self, role: str) -> None:
        self.world.crash(self._process(role))

    async def _do_restart(self, role: str) -> None:
        await self.world.restart(self._process(role))

    async def _do_pause(self, name: str) -> None:
        self.world.pause(name)

    async def _do_resume(self, name: str) -> None:
        self.world.resume(name)

    async def _do_publish_unanswered(self, *words: str) -> None:
        """Publish and do not wait: the owner is frozen, and its answer may come at any time or never."""
        self.world.background(self._do_publish(*words), "late publish")

    async def _do_wait(self, milliseconds: str) -> None:
        await self.world.loop.pause(int(milliseconds))

    async def _ask(self, ports: Ports, role: str, request: Request[Any]) -> Any:
        try:
            reply = await ports.net.call(role if "/" in role else self.address(role), request, 2_000)
        except SluiceError:
            return None
        return None if isinstance(reply, Unknown) else reply

    # -- what was said --

    def _witness(
        self, caller: Process, to: Address, request: Request[Any], outcome: Reply | Unknown | tuple[str, str]
    ) -> None:
        asked = _ASKED.get(type(request))
        if asked is None or not self._listening:
            return
        if isinstance(outcome, Delivery) and outcome.events and not outcome.parts:
            return  # only news about hash ranges; the consumer polls again at once
        who = caller.name
        if who == "stage":
            who = "operator" if isinstance(request, Explain) else "producer"
        whom = to.partition("/")[2].partition(".")[0]
        if isinstance(outcome, Unknown):
            told = "no answer"
        elif isinstance(outcome, tuple):
            told = f"refused, {outcome[0]}"
        else:
            told = self._told(outcome)
        self.transcript.append(f"{who} -> {whom}: {asked(request)} -> {told}")

    def _told(self, reply: Reply) -> str:
        if isinstance(reply, Published):
            last = reply.first_entry + reply.count - 1
            return f"confirmed {reply.ledger}:{reply.first_entry}..{last}" + (", again" if reply.duplicate else "")
        if isinstance(reply, Delivery):
            got = [f"{show(at)} {self._keys.get(at, '?')}" for at in _positions(reply)]
            return ", ".join(got) or "nothing"
        if isinstance(reply, FenceState):
            return f"fenced, it knows {reply.last_confirmed} confirmed"
        if isinstance(reply, Text):
            reason = shown(reply)["reasons"][0]
            return f"{reason['gate']}: {reason['text']}; what helps: {reason['unblocks']}"
        if isinstance(reply, HeadsRead):
            return "the heads" if all(reply.heads) else "some are missing"
        if isinstance(reply, RunRead):
            return "no such run" if reply.head is None else "the run"
        return "done"


class _Consumer:
    """A consumer that speaks only when the script says so."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.session = self.turn = self.granted = self.acks = 0
        self.holding: set[int] = set()


def _positions(delivery: Delivery) -> list[int]:
    return [position(part.ledger, part.first_entry + int(row)) for part in delivery.parts for row in part.rows]


def _bookie(name: str) -> Callable[[Ports], Bookie]:
    return lambda ports: Bookie(ports, bookie_id=name, settings=BOOKIE)


def _add(request: AddRun) -> str:
    header = decode_head(request.head)
    again = " for recovery" if request.recovery else ""
    return f"add run {header.run} of ledger {request.ledger}{again}, epoch {request.epoch}"


def _read(request: ReadRun) -> str:
    fencing = "" if request.fence_epoch is None else f", fencing with epoch {request.fence_epoch}"
    return f"read run {request.run} of ledger {request.ledger}{fencing}"


def _heads(request: ReadHeads) -> str:
    return f"read the heads of runs {' '.join(map(str, request.runs.tolist()))} of ledger {request.ledger}"


def _list(positions: np.ndarray) -> str:
    return " ".join(show(int(at)) for at in positions)


_ASKED: dict[type[Request[Any]], Callable[[Any], str]] = {
    AddRun: _add,
    ReadHeads: _heads,
    ReadRun: _read,
    FenceLedger: lambda request: f"fence ledger {request.ledger} with epoch {request.epoch}",
    Publish: lambda request: f"publish {request.count} from sequence {request.first_sequence}",
    Attach: lambda request: "attach" + (f", holding {_list(request.holding)}" if len(request.holding) else ""),
    Detach: lambda request: "detach",
    Explain: lambda request: f"explain {request.key.decode()}",
    Poll: lambda request: f"poll, {request.granted} permits in all",
    Acknowledge: lambda request: f"acknowledge {_list(request.acks)}",
    NegativeAcknowledge: lambda request: f"give back {_list(request.positions)}",
}
"""What is shown of a request; the others are background talk."""

TEXTS = Path(__file__).parent / "text"
