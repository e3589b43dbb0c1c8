"""The list of bookies: cached, and those that failed lately are chosen last."""

from __future__ import annotations

import pytest

from sluice.actors.ledger.bookies import AVOID_MS, REFRESH_MS, Bookies, NoAnswer
from sluice.actors.messages import BookieList, ListLedgers
from sluice.storage.errors import Unavailable
from tests.actors.ledger.fakes import Lab
from tests.sim.loop import simulated


@simulated
async def test_ensembles_are_chosen_among_writable_bookies() -> None:
    lab = Lab("abcd")
    asked = []

    async def listed() -> BookieList:
        asked.append(1)
        return BookieList(ids=list("abcd"), addresses=list("abcd"), read_only=["d"])

    bookies = Bookies(lab.ports, listed)
    assert sorted(await bookies.choose(3)) == ["a", "b", "c"]
    bookies.suspect("b")
    for _ in range(10):
        assert "b" not in await bookies.choose(2)
    assert len(asked) == 1
    lab.loop.now += AVOID_MS
    assert {name for _ in range(30) for name in await bookies.choose(2)} == {"a", "b", "c"}
    assert len(asked) == 2
    with pytest.raises(Unavailable, match="4 bookies are needed, 3"):
        await bookies.choose(4)


@simulated
async def test_silence_makes_a_bookie_suspect_until_it_answers() -> None:
    lab = Lab("ab")
    silent = ["a"]
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie in silent else None)
    with pytest.raises(NoAnswer):
        await lab.bookies.ask("a", ListLedgers(), 100)
    assert lab.bookies.suspected("a")
    silent.clear()
    await lab.bookies.ask("a", ListLedgers(), 100)
    assert not lab.bookies.suspected("a")
    with pytest.raises(NoAnswer, match="not known"):
        await lab.bookies.ask("z", ListLedgers(), 100)


@simulated
async def test_a_source_that_is_away_leaves_the_old_list() -> None:
    lab = Lab("ab")
    answers: list[BookieList | None] = [BookieList(ids=["a"], addresses=["a"]), None]

    async def listed() -> BookieList:
        answer = answers.pop(0)
        if answer is None:
            raise Unavailable("the controller is away")
        return answer

    bookies = Bookies(lab.ports, listed)
    await bookies.refresh()
    lab.loop.now += REFRESH_MS
    await bookies.refresh()
    assert bookies.writable() == ["a"]
    assert answers == []


@simulated
async def test_a_bookie_is_looked_up_until_it_answers() -> None:
    """However long ago it failed: it may be elsewhere since then."""
    lab = Lab("ab")
    lab.wire.rules.append(lambda bookie, request: "lose" if bookie == "a" else None)
    where = ["a"]

    async def listed() -> BookieList:
        return BookieList(ids=["one"], addresses=where)

    bookies = Bookies(lab.ports, listed)
    with pytest.raises(NoAnswer):
        await bookies.ask("one", ListLedgers(), 100)
    where[:] = ["b"]
    lab.loop.now += AVOID_MS
    await bookies.ask("one", ListLedgers(), 100)


@simulated
async def test_bookies_of_one_process_then_every_ledger_has_the_same() -> None:
    """They share a disk, and appends to several partitions cost the fewest syncs. One that failed is avoided still."""
    lab = Lab("abcd", me="here/topic-1.1")
    places = {name: f"here/{name}.1" for name in "abcd"}

    async def listed() -> BookieList:
        return BookieList(ids=list(places), addresses=list(places.values()))

    bookies = Bookies(lab.ports, listed)
    assert {await bookies.choose(2) for _ in range(20)} == {("a", "b")}
    bookies.suspect("a")
    assert {await bookies.choose(2) for _ in range(20)} == {("b", "c")}
    places["d"] = "there/d.1"
    lab.loop.now += AVOID_MS
    assert len({await bookies.choose(2) for _ in range(50)}) > 1
