"""The choice of the process to call as the controller: candidates come and go, are silent, or know better."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

import sluice.cluster.wire.controller_search as module
from sluice.actors.messages import Done, Leading, WhoLeads
from sluice.actors.ports import Unknown
from sluice.cluster.wire.controller_search import ControllerSearch
from sluice.storage.errors import NotFound

SOON_MS = 5_000


class Candidates:
    """Processes by name, and who each of them takes for the controller, with its epoch; None is silent."""

    def __init__(self, **known: tuple[str, int] | None) -> None:
        self.known = {name.replace("_", "-"): leader for name, leader in known.items()}
        self.called: list[str] = []

    async def ask(self, address: str, request: WhoLeads, timeout: int) -> Leading | Unknown:
        """Return a candidate's answer."""
        name = address.partition("/")[0]
        if (leader := self.known.get(name)) is None:
            await asyncio.sleep(timeout / 1000)
            return Unknown("no answer")
        host, epoch = leader
        return Leading(host=host, epoch=epoch, leads=host == name, acts=True, silent_ms=0, candidates=[*self.known])

    async def call(self, host: str, timeout: int) -> Done | Unknown:
        """The controller's answer."""
        self.called.append(host)
        if (leader := self.known.get(host)) is None:
            await asyncio.sleep(timeout / 1000)
            return Unknown("no answer in time")
        return Done() if leader[0] == host else Unknown("no actor controller", gone=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits, which are those of a cluster."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    monkeypatch.setattr(module, "ASK_MS", 20)
    monkeypatch.setattr(module, "NAMES_S", 0.02)
    monkeypatch.setattr(module, "NAMES_S", 0.02)


async def called(candidates: Candidates, timeout: int = SOON_MS, names: list[str] | None = None) -> Done | Unknown:
    """Call the controller as somebody who knows the first process only."""

    async def listed() -> list[str]:
        return names or []

    search = ControllerSearch("controller", candidates.ask, listed)
    answering: Awaitable[Done | Unknown] = search.call(candidates.call, timeout)
    try:
        return await answering
    finally:
        search.close()


async def test_one_that_is_in_office_is_called_once() -> None:
    candidates = Candidates(controller=("controller", 1), controller_a=("controller", 1))
    assert await called(candidates) == Done()
    assert candidates.called == ["controller"]


async def test_one_that_has_left_office_says_who_is_in_it() -> None:
    """The first call of a command is its only one: it goes on with the other process by itself."""
    candidates = Candidates(controller=("controller-a", 2), controller_a=("controller-a", 2))
    assert await called(candidates) == Done()
    assert candidates.called == ["controller", "controller-a"]


async def test_one_that_is_away_is_not_waited_for() -> None:
    """A caller that has never heard of the others asks which candidates there are."""
    candidates = Candidates(controller=None, controller_a=("controller-a", 2), controller_b=("controller-a", 2))
    assert await called(candidates, names=["controller", "controller-b"]) == Done()
    assert candidates.called == ["controller", "controller-a"]


async def test_the_later_epoch_of_two_answers_is_believed() -> None:
    """A candidate that was away still takes itself for the controller."""
    candidates = Candidates(controller=("controller", 1), controller_a=("controller-a", 2))
    search = ControllerSearch("controller", candidates.ask)
    assert await search.call(candidates.call, SOON_MS) == Done()
    await search._ask_all()
    assert await search.call(candidates.call, SOON_MS) == Done()
    search.close()
    assert candidates.called == ["controller", "controller-a"]


async def test_if_nobody_answers_that_is_said_in_time() -> None:
    candidates = Candidates(controller=None)
    assert await called(candidates, timeout=50) == Unknown("no answer in time")


async def test_known_ones_are_asked_again_while_nobody_names_others() -> None:
    """The service that names the candidates may be on the machine that is away, and be silent for as long."""
    candidates = Candidates(controller=None)
    asked = asyncio.Event()

    async def silent() -> list[str]:
        asked.set()
        return await asyncio.Future[list[str]]()

    search = ControllerSearch("controller", candidates.ask, silent)
    calling = asyncio.ensure_future(search.call(candidates.call, SOON_MS))
    await asked.wait()
    candidates.known = {"controller": ("controller-a", 2), "controller-a": ("controller-a", 2)}
    assert await calling == Done()
    search.close()


async def test_a_new_candidate_is_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster has just started, and loses its controller before that is called again."""
    monkeypatch.setattr(module, "AGAIN_FIRST_S", 0.01)
    candidates = Candidates(controller=("controller", 1))
    asked = asyncio.Event()

    async def ask(address: str, request: WhoLeads, timeout: int) -> Leading | Unknown:
        if address.startswith("controller-a"):
            asked.set()
        return await candidates.ask(address, request, timeout)

    search = ControllerSearch("controller", ask)
    assert await search.call(candidates.call, SOON_MS) == Done()
    candidates.known |= {"controller-a": ("controller", 1)}
    await asyncio.wait_for(asked.wait(), SOON_MS / 1000)  # far less than AGAIN_MOST_S
    candidates.known |= {"controller": None, "controller-a": ("controller-a", 2)}
    assert await search.call(candidates.call, SOON_MS) == Done()
    search.close()


async def test_not_found_after_another_was_asked_is_no_answer() -> None:
    """The candidate before may have removed the topic, and its answer is lost: the caller must judge that."""
    candidates = Candidates(controller=None, controller_a=("controller-a", 2))

    async def call(host: str, timeout: int) -> Done | Unknown:
        if isinstance(answer := await candidates.call(host, timeout), Done):
            raise NotFound("there is no topic 't'")
        return answer

    search = ControllerSearch("controller", candidates.ask, lambda: _at_once(["controller-a"]))
    told = await search.call(call, SOON_MS)
    assert isinstance(told, Unknown)
    assert told.reason == "controller was asked first, and controller-a says: there is no topic 't'"
    with pytest.raises(NotFound):
        await search.call(call, SOON_MS)
    search.close()


async def _at_once(names: list[str]) -> list[str]:
    return names
