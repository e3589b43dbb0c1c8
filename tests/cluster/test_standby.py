"""The processes that wait to take over: as many as are wanted, and nothing depends on them."""

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
        self.wanted = 1
        self.made = 0
        self.ended: list[str] = []

    async def make(self) -> HostProcess:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise Unavailable("no node")
        self.made += 1
        return HostProcess(f"broker-standby-{self.made}", Handle(), "n", "broker-standby")

    def end(self, host: HostProcess) -> None:
        self.ended.append(host.name)

    def standby(self) -> Standby:
        return Standby(self.make, self.end, lambda: self.wanted)


def host(name: str, outcome: Exception | str | None = None) -> Any:
    """A host whose `serve` ends like this."""
    return HostProcess(name, Handle(outcome), "n", "broker-standby")


def names(standby: Standby) -> list[str]:
    """Who waits."""
    return [each.name.removeprefix("broker-standby-") for each in standby.waiting]


async def settled(standby: Standby) -> None:
    """Until nothing is being made."""
    if standby._making is not None:
        await standby._making


async def test_one_waits_is_taken_once_and_told_whom_it_serves() -> None:
    making = Making()
    standby = making.standby()
    standby.refill(0)
    standby.refill(0)  # one is being made already
    await settled(standby)
    standby.refill(0)  # one is there
    await settled(standby)
    (only,) = standby.waiting
    assert (making.made, only.node) == (1, "n")
    assert await asyncio.gather(*(standby.take(only, f"broker-{number}") for number in range(2))) == [True, False]
    assert only.handle.serve.told == ["broker-0"]
    assert only.slot == "broker-0"
    assert standby.waiting == []


async def test_one_that_is_dead_or_frozen_is_ended_and_not_used() -> None:
    from ray.exceptions import RayError  # after cluster, which sets Ray's environment

    for outcome in (RayError("dead"), "silent"):
        making = Making()
        standby = making.standby()
        standby.found(found := host("a", outcome))
        assert not await standby.take(found, "broker-0")
        assert making.ended == ["a"]
        assert standby.waiting == []


async def test_as_many_wait_as_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made one after the other; those that are found count, and none is ended because it is one too many."""
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    making = Making()
    making.wanted = 3
    standby = making.standby()
    standby.found(host("a"))
    standby.refill(0)
    await settled(standby)
    assert names(standby) == ["a", "1", "2"]
    making.wanted = 1
    standby.refill(0)
    await settled(standby)
    assert (names(standby), making.ended) == (["a", "1", "2"], [])


async def test_one_whose_node_died_makes_room_for_another() -> None:
    making = Making()
    standby = making.standby()
    standby.found(host("a"))
    standby.keep({"n", "m"})
    assert names(standby) == ["a"]
    standby.keep({"m"})
    assert (names(standby), making.ended) == ([], ["a"])


async def test_a_failed_try_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    standby = Making(failures=2).standby()
    standby.refill(0)
    await settled(standby)
    assert names(standby) == ["1"]


async def test_one_that_is_wanted_sooner_is_made_sooner() -> None:
    making = Making()
    standby = making.standby()
    standby.refill(3600)
    await asyncio.sleep(0)
    assert making.made == 0
    standby.refill(7200)  # later than that: changes nothing
    standby.refill(0)
    await settled(standby)
    assert making.made == 1


async def test_who_needs_one_waits_for_it_and_not_for_ever() -> None:
    """It is made at once; if that fails, whoever waits can do something else."""
    making = Making(failures=1)
    standby = making.standby()
    standby.refill(3600)
    await standby.soon()
    assert (making.failures, names(standby)) == (0, [])
    await standby.soon()
    assert names(standby) == ["1"]
    await standby.soon()
    assert making.made == 1
