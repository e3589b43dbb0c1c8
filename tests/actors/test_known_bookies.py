"""Which bookies a controller knows: those of its settings, those that were added, and those that ever served."""

from __future__ import annotations

from sluice.actors.controller.controller import COOKIES
from sluice.actors.messages import AddBookies, ListBookies
from sluice.storage.errors import Unavailable
from tests.actors.controller.test_controller import Stage, play


def test_bookies_can_be_added_and_stay_known() -> None:
    """A running controller takes more; a new one with a shorter list finds those that have served."""

    async def scenario(stage: Stage) -> None:
        wanted = AddBookies(ids=[*stage.bookies, "bookie-3"])
        assert (await stage.ask(wanted)).ids == ["bookie-3"]
        assert (await stage.ask(wanted)).ids == []
        assert (await stage.ask(ListBookies())).ids == [f"bookie-{number}" for number in range(4)]
        await stage.client.meta.create(f"{COOKIES}bookie-3/cookie", 1, b"x")
        stage.world.crash("controller")
        for name in stage.world.alive("bookie-"):
            stage.world.crash(name)
        stage.bookies = stage.bookies[:1]
        await stage.begin()
        assert (await stage.ask(ListBookies())).ids == ["bookie-0", "bookie-3"]

    play(scenario)


def test_bookies_that_are_unknown_at_first_are_started_later() -> None:
    """A store that was away when a controller began hides no data until the next one begins."""

    async def scenario(stage: Stage) -> None:
        await stage.client.meta.create(f"{COOKIES}bookie-3/cookie", 1, b"x")
        stage.world.crash("controller")
        refused = stage.world.meta.trouble.refused
        refused[f"keys {COOKIES}"] = Unavailable
        await stage.begin()
        await stage.client.clock.sleep(5_000)
        assert (await stage.ask(ListBookies())).ids == stage.bookies
        del refused[f"keys {COOKIES}"]

        async def there() -> bool:
            return bool((await stage.ask(ListBookies())).ids == [*stage.bookies, "bookie-3"])

        await stage.until(there, "a bookie that has served is not started")

    play(scenario)
