"""Immediate requests at their host: in the caller's turn, never before the start, and answered when the actor ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sluice.actors.messages import AddRun, Done
from sluice.actors.ports import Ports, Unknown
from sluice.actors.ports.wire import Blob, Packed, pack
from sluice.actors.runtime.host import Actor, Answer, HostedActor, Outcome
from sluice.actors.runtime.waiting import ask
from sluice.storage.errors import Fenced, SluiceError
from tests.sim.loop import current_loop
from tests.sim.world import World

ADD = AddRun(ledger=1, epoch=1, head=b"head", payload=Blob(b"payload"))


class Waiter(Actor):
    """An actor whose requests wait; it declines those of ledger 2."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.go = asyncio.Event()
        self.waiting: list[Callable[[Outcome], None]] = []
        self.asked: list[AddRun] = []

    @property
    def at_work(self) -> bool:
        return False

    async def start(self) -> None:
        await self.go.wait()

    def now_add_run(self, request: AddRun, answer: Callable[[Outcome], None]) -> bool:
        if request.ledger == 2:
            return False
        if request.ledger == 3:
            raise Fenced("told to refuse")
        if request.ledger == 4:
            raise ValueError("told to fail")
        self.asked.append(request)
        self.waiting.append(answer)
        return True

    async def on_add_run(self, request: AddRun) -> Done:
        return Done()


class Site:
    """A hosted actor, the tasks of its host, and the answers that have come."""

    def __init__(self, world: World) -> None:
        self.ports = world.client("c")
        self.actor = Waiter(self.ports)
        self.tasks = 0
        self.broken: list[str] = []
        self.answers: list[Answer] = []
        self.hosted = HostedActor(self.actor, self._break, self._spawn)

    def _break(self, work: str, error: Exception) -> None:
        self.broken.append(work)
        self.hosted.end(f"{error}")

    def _spawn(self, work: Any, name: str) -> Any:
        self.tasks += 1
        return self.ports.spawn(work, name)

    async def started(self) -> Site:
        self.actor.go.set()
        await self.hosted.start()
        return self

    def accept(self, request: AddRun = ADD, *, packed: bool = True) -> None:
        self.hosted.accept("AddRun", pack(request) if packed else request, self.answers.append)


def play(scenario: Callable[[Site], Any], *, start: bool = True) -> None:
    async def run(world: World) -> None:
        site = Site(world)
        await scenario(await site.started() if start else site)

    World(1).play(run)


def test_an_immediate_request_is_taken_at_once_without_a_task() -> None:
    async def scenario(site: Site) -> None:
        site.accept()
        assert (len(site.actor.waiting), site.tasks, site.answers) == (1, 0, [])
        assert site.actor.used
        site.actor.waiting[0](Done())
        site.actor.waiting[0](Fenced("a second answer"))
        assert [type(answer) for answer in site.answers] == [Packed]
        assert not site.actor.used

    play(scenario)


def test_a_value_passes_as_it_is() -> None:
    async def scenario(site: Site) -> None:
        site.accept(packed=False)
        assert site.actor.asked[0] is ADD
        site.actor.waiting[0](Done())
        assert site.answers == [Done()]

    play(scenario)


def test_an_immediate_request_waits_for_the_start() -> None:
    async def scenario(site: Site) -> None:
        starting = asyncio.create_task(site.hosted.start())
        site.accept()
        await current_loop().pause(10)
        assert (site.actor.asked, site.answers) == ([], [])
        site.actor.go.set()
        await starting
        await current_loop().pause(10)
        assert len(site.actor.asked) == 1

    play(scenario, start=False)


def test_a_declined_request_goes_to_the_other_handler() -> None:
    async def scenario(site: Site) -> None:
        site.accept(AddRun(ledger=2, epoch=1, head=b"", payload=Blob(b"")))
        await current_loop().pause(1)
        assert (site.tasks, len(site.answers)) == (1, 1)
        assert not site.actor.used

    play(scenario)


@pytest.mark.parametrize("ledger", [3, 4])
def test_an_error_in_a_handler_is_a_refusal_or_a_defect(ledger: int) -> None:
    async def scenario(site: Site) -> None:
        site.accept(AddRun(ledger=ledger, epoch=1, head=b"", payload=Blob(b"")))
        if ledger == 3:
            assert site.answers == [("Fenced", "told to refuse")]
            assert site.broken == []
        else:
            assert isinstance(site.answers[0], Unknown)
            assert (site.answers[0].gone, site.broken) == (True, ["AddRun"])

    play(scenario)


def test_the_end_of_an_actor_answers_what_waits() -> None:
    async def scenario(site: Site) -> None:
        site.accept()
        site.hosted.end("stopped")
        site.actor.waiting[0](Done())
        (answer,) = site.answers
        assert isinstance(answer, Unknown)
        assert answer.gone

    play(scenario)


class Echo:
    """A net that answers at once."""

    def ask(self, to: str, request: Any, timeout: int, on_answer: Callable[[Any], None]) -> None:
        on_answer(Done())


@pytest.mark.parametrize("over", [False, True])
def test_an_error_in_an_answer_ends_a_live_asker(over: bool) -> None:
    async def run(world: World) -> None:
        works: list[Any] = []
        ports = Ports(
            me="a", clock=None, net=Echo(), objects=None, meta=None, rng=None,  # type: ignore[arg-type]
            spawn=lambda work, name: works.append(work), log=lambda event, **fields: None,  # type: ignore[arg-type]
        )  # fmt: skip
        ports.actor.over = over

        def fail(outcome: object) -> None:
            raise Fenced(f"told so by {outcome}")

        ask(ports, "b", ADD, 1, fail)
        assert len(works) == (0 if over else 1)
        for work in works:
            with pytest.raises(SluiceError):
                await work

    World(1).play(run)
