"""Questions of the admin ports to all owners: an owner that cannot be started hides no answer of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.actors.messages import Ping
from sluice.cluster.admin.broker import Broker
from sluice.cluster.admin.server_routes import AdminHttp
from sluice.storage.errors import Corrupt, SluiceError, Unavailable
from tests.actors.controller.test_controller import CONTROLLER, Stage, play
from tests.actors.test_damaged_records import damage


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
