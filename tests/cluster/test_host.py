"""A host: it gets itself going after Ray restarted it, and who waits for an actor that ends learns of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnavailableError

from actors.actor import Actor
from actors.messages import Alive, Done, ListLedgers, Ping, Stats
from actors.ports import Meta, Objects, Ports, Unknown
from actors.wire import Reply, Request
from cluster import host
from storage.errors import InvariantViolation


class Handle:
    """An actor's handle whose first calls fail, as while Ray takes the actor for restarting."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.calls = 0
        self.wake = self

    def remote(self) -> str:
        self.calls += 1
        return "ref"

    def get(self, ref: str) -> None:
        """What ray.get does with the reference."""
        assert ref == "ref"
        if self.left:
            self.left -= 1
            raise ActorUnavailableError("the actor is restarting", None)


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_it_knocks_until_it_is_awake(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """Each failed call is followed by another; after the one that works there is no more."""
    handle: Any = Handle(failures)
    monkeypatch.setattr(ray, "get", handle.get)
    monkeypatch.setattr(host, "KNOCK_S", 0)
    host.knock(handle)
    assert handle.calls == failures + 1


class Slow(Actor):
    """Answers pings. Nothing else is answered before `go` is set."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self.go = asyncio.Event()

    async def handle(self, request: Request[Any]) -> Reply:
        if isinstance(request, Ping):
            return Alive()
        if isinstance(request, ListLedgers):
            raise InvariantViolation("it cannot go on")
        await self.go.wait()
        return Done()


class Parts:
    """A host of slow actors."""

    def __init__(self) -> None:
        self.made: list[Slow] = []

    def stores(self, settings: dict[str, Any]) -> tuple[Meta, Objects]:
        nothing: Any = None
        return nothing, nothing

    def actor(self, kind: str, ports: Ports, settings: dict[str, Any]) -> Actor:
        self.made.append(Slow(ports))
        return self.made[-1]


async def waiting_for(parts: Parts) -> tuple[host.Host, asyncio.Task[Reply | Unknown]]:
    """A host with one actor, and somebody who waits for its answer."""
    runs = host.Host("host", parts, {}, [])
    await runs.start("topic", "slow", {})
    waiting = asyncio.create_task(runs.deliver("slow", Stats()))
    await asyncio.sleep(0)
    return runs, waiting


async def test_who_waits_for_an_actor_that_is_stopped_learns_that_it_is_gone() -> None:
    """At once, and not when its patience ends: it has to find the next one."""
    runs, waiting = await waiting_for(Parts())
    await runs.stop("slow")
    answer = await asyncio.wait_for(waiting, 1)
    assert isinstance(answer, Unknown)
    assert answer.gone
    assert not waiting.cancelling()


async def test_so_does_who_waits_for_one_that_breaks() -> None:
    """And who asked the question that broke it."""
    runs, waiting = await waiting_for(Parts())
    broken = await runs.deliver("slow", ListLedgers())
    answer = await asyncio.wait_for(waiting, 1)
    assert isinstance(broken, Unknown)
    assert isinstance(answer, Unknown)
    assert (broken.gone, answer.gone) == (True, True)


async def test_who_gives_up_waiting_ends_nothing_else() -> None:
    """A time-out of the caller is the caller's; the actor answers the next one."""
    parts = Parts()
    runs, waiting = await waiting_for(parts)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    parts.made[0].go.set()
    assert await runs.deliver("slow", Stats()) == Done()
