"""The actors of one process: each is started once, and one whose background task fails ends, and nothing else does."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from sluice.actors.messages import Ping
from sluice.actors.ports import Address, Ports, Unknown
from sluice.actors.ports.wire import pack
from sluice.actors.runtime.host import Actor
from sluice.cluster.base.real import Tasks
from sluice.cluster.host.process import ProcessActors
from sluice.storage.errors import AccessDenied, Corrupt, Fenced, Invalid, InvariantViolation, SluiceError, Unavailable
from tests.cluster.helpers import admin_ports
from tests.kit.asking import answer_of


class Worker(Actor):
    """Has one background task, which ends as it is told."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Begin the task."""
        self.ports.spawn(self._work(), "work")

    async def _work(self) -> None:
        await self.outcome


class Door(Worker):
    """Serves many clients, as a gateway does."""

    outlives = (SluiceError,)


async def run_one(kind: type[Worker], error: Exception | None) -> tuple[bool, list[tuple[str, str]]]:
    """Let the task of an actor of this class end; whether the actor still answers, and what was dropped."""
    dropped: list[tuple[str, str]] = []
    made: list[Worker] = []

    def make(_kind: str, address: Address, tasks: Tasks, _settings: dict[str, Any]) -> Actor:
        made.append(kind(dataclasses.replace(admin_ports(me=address), spawn=tasks)))
        return made[-1]

    actors = ProcessActors("host", make, lambda actor, why: dropped.append((actor, why)))
    await actors.start("worker", "one", {})
    await actors.start("worker", "other", {})
    if error is None:
        made[0].outcome.set_result(None)
    else:
        made[0].outcome.set_exception(error)
    works = [task for task in asyncio.all_tasks() if task.get_name() == "work"]
    await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)  # who watches the task is told in the next turn of the loop
    answers = [await answer_of(actors, name, "Ping", pack(Ping())) for name in ("one", "other")]
    assert not isinstance(answers[1], Unknown), "the other actor of the process has nothing to do with it"
    await actors.close()
    return not isinstance(answers[0], Unknown), dropped


@pytest.mark.parametrize(
    "error", [Unavailable("x"), AccessDenied("x"), Invalid("x"), Corrupt("x"), Fenced("x"), KeyError("x")]
)
def test_a_failed_background_task_ends_its_actor(error: Exception) -> None:
    """The actor answered pings without its writer before, for ever, and nobody replaced it."""
    answers, dropped = asyncio.run(run_one(Worker, error))
    assert not answers
    assert dropped == [("one", f"{type(error).__name__}: {error}")]


def test_a_task_that_is_done_ends_nothing() -> None:
    assert asyncio.run(run_one(Worker, None)) == (True, [])


def test_one_clients_trouble_does_not_end_a_door() -> None:
    assert asyncio.run(run_one(Door, Unavailable("x"))) == (True, [])
    assert asyncio.run(run_one(Door, InvariantViolation("x")))[0] is False


async def test_two_that_wait_for_a_disk_make_one_actor() -> None:
    """A disk is being released, and two ask meanwhile for the same actor."""
    made: list[str] = []

    def make(_kind: str, address: Address, tasks: Tasks, _settings: dict[str, Any]) -> Actor:
        made.append(address)
        return Worker(dataclasses.replace(admin_ports(me=address), spawn=tasks))

    actors = ProcessActors("host", make, lambda actor, why: None)
    free = asyncio.Event()
    task = asyncio.ensure_future(_until(free))
    actors._releasing[task] = None
    task.add_done_callback(actors._releasing.pop)
    both = asyncio.gather(actors.start("worker", "one", {}), actors.start("worker", "one", {}))
    await asyncio.sleep(0)
    free.set()
    assert list(await both) == ["host/one"] * 2
    assert made == ["host/one"]
    assert len(actors.inventory()) == 1
    await actors.close()


async def _until(event: asyncio.Event) -> None:
    await event.wait()


class Stubborn(Worker):
    """Has a defect in its stop."""

    async def stop(self, reason: str) -> None:
        """See Actor."""
        raise KeyError(reason)


async def test_an_actor_that_does_not_stop_well_has_ended() -> None:
    """The process takes its tasks and its disk back, as if it had stopped well."""
    made: list[Worker] = []

    def make(_kind: str, address: Address, tasks: Tasks, _settings: dict[str, Any]) -> Actor:
        made.append(Stubborn(dataclasses.replace(admin_ports(me=address), spawn=tasks)))
        return made[-1]

    actors = ProcessActors("host", make, lambda actor, why: None)
    await actors.start("worker", "one", {})
    await actors.start("worker", "other", {})
    await actors.close()
    await asyncio.sleep(0)
    assert actors.inventory() == []
    assert [one.ended_because for one in made] == ["the process ends"] * 2
    assert "work" not in [task.get_name() for task in asyncio.all_tasks()]
