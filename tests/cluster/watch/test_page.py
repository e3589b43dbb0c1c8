"""The live page as a person sees it, in a headless browser, with made-up owners behind it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sluice.actors.ports import Ports
from sluice.cluster.watch.http import PAGE_PATHS, WatchHttp
from sluice.cluster.watch.panel import EXPLAIN
from tests.cluster.watch.browser import CHROMIUM, browser
from tests.cluster.watch.test_feed import Owners
from tests.cluster.watch.test_story import consumer, dispatcher

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
SHOTS = os.environ.get("WATCH_SCREENSHOTS", "")
"""A folder for pictures of the pages; they go to the test's own folder without it."""


class Cluster(Owners):
    """Two partitions; the test says who is there and what drains."""

    def __init__(self) -> None:
        super().__init__()
        self.draining = 0
        self.delivered = 0

    async def dispatchers(self, topic: str, subscription: str) -> list[dict[str, Any] | None]:
        self.delivered += 500
        share = 65536 // len(self.consumers)
        rows = [
            consumer(name, [[share * n, share * (n + 1) - 1]], self.draining if n == 0 else 0)
            for n, name in enumerate(self.consumers)
        ]
        return [
            dispatcher(partition, consumers=rows, drainingHashesCount=self.draining, msgOutCounter=self.delivered)
            for partition in range(2)
        ]

    async def subscriptions(self) -> dict[str, list[str]]:
        return {"orders": ["billing"], "trips": ["audit", "billing"], "sales..eu..trips": ["billing"]}


async def explain(request: web.Request) -> web.Response:
    """Answer as the admin interface would."""
    assert request.headers["Authorization"].startswith("Bearer s")
    asked = request.query.get("key") or f"hash {request.query['hash']}"
    assert request.match_info["topic"] == "trips"
    asked += {"public": "", "sales": " of the topic in eu"}[request.match_info["tenant"]]
    reason = {"gate": "draining", "text": f"{asked} drains at c1", "unblocks": "c1 acknowledges"}
    return web.json_response([{"partition": 0, "verdict": "draining", "reasons": [reason]}])


@pytest.fixture
async def served(ports: Ports) -> AsyncIterator[tuple[Cluster, str]]:
    """The made-up cluster, and where its page is."""
    cluster = Cluster()
    app = web.Application()
    app.add_routes(WatchHttp(ports, cluster).routes())
    app.router.add_get(EXPLAIN, explain)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield cluster, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_the_files_hold_nothing_from_elsewhere(served: tuple[Cluster, str]) -> None:
    _, url = served
    async with aiohttp.ClientSession() as session:
        for path in PAGE_PATHS:
            async with session.get(url + path) as answer:
                text = await answer.text()
                assert answer.status == 200
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "http://" not in text.replace("http://www.w3.org", "")
            assert "https://" not in text
            assert " style=" not in text
            assert "onclick" not in text


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
async def test_a_person_sees_owners_draining_hashes_and_events(
    served: tuple[Cluster, str], tmp_path: Path, dark: bool
) -> None:
    cluster, url = served
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{url}/watch#token=secret", dark=dark)
        await page.until("document.querySelector('#state').textContent === 'live'")
        assert await page.value("location.hash") == ""
        assert "a: " in await page.value("document.querySelector('#consumers').innerText")
        cluster.consumers, cluster.draining = ["a", "b", "c"], 40
        await page.until("document.querySelector('#events').innerText.includes('partition 1: b joined')")
        assert "draining 80" in await page.value("document.querySelector('#totals').innerText")
        colours = """(() => {
            const ring = document.querySelector('#ring');
            const dots = ring.getContext('2d').getImageData(0, 0, ring.width, ring.height).data;
            const seen = new Set();
            for (let i = 0; i < dots.length; i += 4)
                if (dots[i + 3] > 250) seen.add(dots[i] << 16 | dots[i + 1] << 8 | dots[i + 2]);
            return seen.size;
        })()"""
        assert await page.value(colours) >= 4
        await page.until("document.querySelector('#flow').getContext('2d')")
        await page.picture((Path(SHOTS) if SHOTS else tmp_path) / f"watch-{'dark' if dark else 'light'}.png")
        cluster.draining = 0
        await page.until("document.querySelector('#events').innerText.includes('everything is drained')")
        assert page.problems == []


@needs_browser
async def test_the_cluster_is_seen_before_a_subscription(
    served: tuple[Cluster, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page was empty, as if nothing ran."""
    cluster, url = served
    known: dict[str, list[str]] = {"orders": [], "trips": []}

    async def subscriptions() -> dict[str, list[str]]:
        return known

    monkeypatch.setattr(cluster, "subscriptions", subscriptions)
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{url}/watch#token=secret")
        await page.until("document.querySelector('#map').innerText.includes('bookie/b1')")
        await page.until("document.querySelector('#state').textContent === 'topics: 2, no subscription yet'")
        await page.picture((Path(SHOTS) if SHOTS else tmp_path) / "watch-without.png")
        known["trips"].append("billing")
        await page.until("document.querySelector('#state').textContent === 'live'")
        assert page.problems == []


@needs_browser
async def test_keys_are_explained_with_keyboard_alone(served: tuple[Cluster, str], tmp_path: Path) -> None:
    _, url = served
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{url}/watch?topic=trips&subscription=billing#token=secret")
        await page.until("document.querySelector('#state').textContent === 'live'")
        assert await page.value("document.querySelector('#chosen').selectedOptions[0].textContent") == "trips / billing"
        await page.value("document.querySelector('#key').focus()")
        for letter in "k7":
            await page.press(letter, letter)
        await page.press("Enter", "\r")
        await page.until("document.querySelector('#answer').innerText.includes('k7 drains at c1')")
        await page.value("document.querySelector('#ring').focus()")
        await page.press("ArrowRight")
        await page.press("Enter")
        await page.until("document.querySelector('#answer').innerText.includes('hash 512 drains at c1')")
        assert page.problems == []


@needs_browser
async def test_a_topic_of_another_tenant_is_explained(served: tuple[Cluster, str], tmp_path: Path) -> None:
    """The page asked for the topic in public/default, where there is none of that name."""
    _, url = served
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{url}/watch?topic=sales..eu..trips&subscription=billing#token=secret")
        await page.until("document.querySelector('#state').textContent === 'live'")
        await page.value("document.querySelector('#ring').focus()")
        await page.press("Enter")
        await page.until("document.querySelector('#answer').innerText.includes('of the topic in eu drains at c1')")
