"""Questions of the admin ports to all owners: few at once, and one that gives no answer hides none of the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.actors.lookup.directory import ANSWER_TIMEOUT
from sluice.actors.messages import Ping
from sluice.actors.ports import Address, Unknown
from sluice.cluster.admin.broker import ASKED, Broker, Named
from sluice.cluster.admin.server_routes import AdminHttp
from sluice.storage.errors import Corrupt, SluiceError, Unavailable
from tests.actors.controller.test_controller import CONTROLLER, Stage, play
from tests.actors.test_damaged_records import damage


class Watched:
    """The questions to owners that are under way, and how many of them there were at most, by process."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch, hanging: str = "") -> None:
        """hanging: a process that answers no Ping."""
        self.now, self.most, self.total = Counter[str](), Counter[str](), Counter[str]()
        self._clock, self._call, self._hanging = stage.client.clock, stage.client.net.call, hanging
        monkeypatch.setattr(stage.client.net, "call", self.call)

    async def call(self, to: Address, request: Any, timeout: int) -> Any:
        if not isinstance(request, Ping):
            return await self._call(to, request, timeout)
        process = to.partition("/")[0]
        self.now[process] += 1
        self.total[process] += 1
        self.most[process] = max(self.most[process], self.now[process])
        if process == self._hanging:
            await self._clock.sleep(timeout)
            reply: Any = Unknown("it hangs")
        else:
            reply = await self._call(to, request, timeout)
        self.now[process] -= 1
        return reply


def test_an_answer_of_all_owners_asks_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once they answer in one turn of their loop, which stood still for that long."""

    async def scenario(stage: Stage) -> None:
        await stage.create_only(partitions=5 * ASKED)
        watched = Watched(stage, monkeypatch)
        replies = await Broker(stage.client, CONTROLLER).replies(Named("t", None), None, Ping())
        assert list(replies) == list(range(5 * ASKED))
        assert watched.total.total() == 5 * ASKED
        assert watched.most.total() <= ASKED

    play(scenario)


def test_a_process_that_hangs_holds_up_its_own_owners_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.create_only(partitions=5 * ASKED)
        watched = Watched(stage, monkeypatch, hanging="broker-1")
        began = stage.client.clock.monotonic()
        rows = await Broker(stage.client, CONTROLLER).some("t", None, Ping())
        assert [row is not None for row in rows] == [partition % 2 == 0 for partition in range(5 * ASKED)]
        assert stage.client.clock.monotonic() - began <= 2 * ANSWER_TIMEOUT
        assert (watched.most["broker-0"], watched.most["broker-1"]) == (ASKED, ASKED)

    play(scenario)


@pytest.mark.parametrize("error", [Corrupt, Unavailable])
def test_the_live_page_shows_the_other_partitions(error: type[SluiceError]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.broken["t/1"] = error("its record is damaged")
        await stage.create_only(partitions=3)
        rows = await Broker(stage.client, CONTROLLER).some("t", None, Ping())
        assert [row is not None for row in rows] == [True, False, True]

    play(scenario)


def test_the_live_page_lists_what_other_topics_have(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        for topic in ("bad", "good"):
            await stage.create_only(topic)
            await stage.client.meta.create(f"subscription/{topic}/0/s", 1, b"?")
        await damage(stage)
        page = AdminHttp(stage.client, controller=CONTROLLER, data_dir=tmp_path, port=0)
        assert await page.subscriptions() == {"bad": [], "good": ["s"]}

    play(scenario)
