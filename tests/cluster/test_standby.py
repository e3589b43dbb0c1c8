"""The process that waits to take over: one at a time, and nothing depends on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import cluster.standby as module
from cluster.standby import HostProcess, Standby
from storage.errors import Unavailable


class Remote:
    """A remote method that answers, raises, or never answers."""

    def __init__(self, outcome: Exception | str | None) -> None:
        self.outcome = outcome
        self.told: list[str] = []

    async def remote(self, slot: str) -> None:
        self.told.append(slot)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome == "silent":
            await asyncio.Event().wait()


class Handle:
    """A host's handle."""

    def __init__(self, outcome: Exception | str | None = None) -> None:
        self.serve = Remote(outcome)


class Making:
    """Makes hosts and notes which were ended. failures: so many tries fail first."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.made = 0
        self.ended: list[str] = []

    async def make(self) -> HostProcess:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise Unavailable("no node")
        self.made += 1
        return HostProcess(f"broker-standby-{self.made}", Handle(), "n")

    def end(self, host: HostProcess) -> None:
        self.ended.append(host.name)


def host(name: str, outcome: Exception | str | None = None) -> Any:
    """A host whose `serve` ends like this."""
    return HostProcess(name, Handle(outcome), "n")


def where(standby: Standby) -> str | None:
    """The node of the process that waits."""
    return standby.node


async def settled(standby: Standby) -> None:
    """Until nothing is being made."""
    if standby._making is not None:
        await standby._making


async def test_one_waits_is_taken_once_and_told_whom_it_serves() -> None:
    making = Making()
    standby = Standby(making.make, making.end)
    assert where(standby) is None
    assert await standby.take("broker-0") is None
    standby.refill(0)
    standby.refill(0)  # one is being made already
    await settled(standby)
    standby.refill(0)  # one is there
    await settled(standby)
    assert making.made == 1
    assert where(standby) == "n"
    first, second = await asyncio.gather(standby.take("broker-0"), standby.take("broker-1"))
    assert [first is None, second is None] == [False, True]
    assert first is not None
    assert first.handle.serve.told == ["broker-0"]
    assert where(standby) is None


async def test_one_that_is_dead_or_frozen_is_ended_and_not_used() -> None:
    from ray.exceptions import RayError  # after cluster, which sets Ray's environment

    for outcome in (RayError("dead"), "silent"):
        making = Making()
        standby = Standby(making.make, making.end)
        standby.found(host("a", outcome))
        assert await standby.take("broker-0") is None
        assert making.ended == ["a"]


async def test_there_is_never_a_second_one() -> None:
    making = Making()
    standby = Standby(making.make, making.end)
    standby.found(host("a"))
    standby.found(host("b"))
    assert making.ended == ["b"]


async def test_a_failed_try_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    making = Making(failures=2)
    standby = Standby(making.make, making.end)
    standby.refill(0)
    await settled(standby)
    assert where(standby) == "n"


async def test_one_that_is_wanted_sooner_is_made_sooner() -> None:
    making = Making()
    standby = Standby(making.make, making.end)
    standby.refill(3600)
    await asyncio.sleep(0)
    assert making.made == 0
    standby.refill(7200)  # later than that: changes nothing
    standby.refill(0)
    await settled(standby)
    assert making.made == 1
