"""The live page as a person sees it, in a headless browser, with made-up owners behind it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sluice.actors.ports import Ports
from sluice.actors.recorder.flight_file import RecordedSubscription, assemble, pack
from sluice.cluster.host.recordings import FOLDER
from sluice.cluster.http.guard import guard
from sluice.cluster.watch.http import PAGE_PATHS, WatchHttp
from sluice.cluster.watch.panel import EXPLAIN
from tests.actors.recorder.test_replay import RecordedDriver
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
async def served(ports: Ports, tmp_path: Path) -> AsyncIterator[tuple[Cluster, str]]:
    """The made-up cluster, and where its page is."""
    cluster = Cluster()

    async def recordings(_: object) -> Path:
        return tmp_path

    app = web.Application(middlewares=[guard("secret", PAGE_PATHS, "is secret")])
    app.add_routes(WatchHttp(ports, cluster, recordings=recordings).routes())
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


MINUTE_MS = 60_000
TOKEN = {"Authorization": "Bearer secret"}


def recorded_drain(folder: Path) -> None:
    """Ten minutes ago a consumer took all keys of a topic; for five minutes they have drained for a second one."""
    driver = RecordedDriver()
    driver.now = time.time_ns() // 1_000_000 - 10 * MINUTE_MS
    keys = [f"k{number}" for number in range(20)]
    driver.join("early", 50)
    driver.send(*keys)
    driver.now += 5 * MINUTE_MS
    driver.join("late", 50)
    driver.publish(*keys)
    driver.route()
    chunk = driver.recording.taken(driver.now)
    assert chunk is not None
    of = RecordedSubscription("trips", 0, "billing", 7)
    (folder / FOLDER / "broker-0").mkdir(parents=True)
    data = assemble([pack(type(chunk)(of, chunk.first, chunk.at, chunk.calls))])
    (folder / FOLDER / "broker-0" / "flight-00000001").write_bytes(data)


@needs_browser
async def test_the_slider_shows_what_was_then(served: tuple[Cluster, str], tmp_path: Path) -> None:
    _, url = served
    recorded_drain(tmp_path)

    async def look(seconds: int) -> None:
        script = f"const b = document.querySelector('#back'); b.value = {seconds}; b.dispatchEvent(new Event('change'))"
        await page.value(f"(() => {{ {script} }})()")

    async with browser(tmp_path / "profile") as page:
        await page.open(f"{url}/watch?topic=trips&subscription=billing#token=secret")
        await page.until("document.querySelector('#state').textContent === 'live'")
        await look(-450)
        await page.until("document.querySelector('#state').textContent === 'the past'")
        consumers = "document.querySelector('#consumers').innerText"
        assert await page.value(consumers) == "early: 20 delivered, 20 held"
        await look(-60)
        await page.until(f"{consumers}.includes('late: ')")
        assert "draining 0" not in await page.value("document.querySelector('#totals').innerText")
        await page.picture((Path(SHOTS) if SHOTS else tmp_path) / "past.png")
        moved, *_ = [key for key in (f"k{number}" for number in range(20)) if await drains(url, key)]
        await page.value(f"(() => {{ document.querySelector('#key').value = '{moved}' }})()")
        await page.value("document.querySelector('#why').requestSubmit()")
        await page.until("document.querySelector('#answer').innerText.includes('but early#')")
        await look(0)
        await page.until("document.querySelector('#state').textContent === 'live'")
        await page.until(f"{consumers}.startsWith('a: ')")
        assert page.problems == []


async def drains(url: str, key: str) -> bool:
    """Whether a key drained a minute ago."""
    at = time.time_ns() // 1_000_000 - MINUTE_MS
    asked = {"topic": "trips", "subscription": "billing", "key": key, "at": str(at)}
    path = f"{url}/watch/past"
    async with aiohttp.ClientSession(headers=TOKEN) as session, session.get(path, params=asked) as answer:
        (row,) = await answer.json()
        return bool(row["verdict"] == "draining")


@pytest.mark.parametrize("asked", [{"at": "-1"}, {"at": "soon"}, {"at": "9" * 30}, {"at": "1", "hash": "x"}, {}])
async def test_a_moment_that_is_none_is_refused(served: tuple[Cluster, str], asked: dict[str, str]) -> None:
    _, url = served
    names = {"topic": "trips", "subscription": "billing"}
    path = f"{url}/watch/past"
    async with aiohttp.ClientSession(headers=TOKEN) as session, session.get(path, params=names | asked) as answer:
        assert (answer.status, "at is a time" in await answer.text()) == (412, True)


async def test_a_past_without_recordings_is_not_found(served: tuple[Cluster, str], tmp_path: Path) -> None:
    _, url = served
    recorded_drain(tmp_path)
    asked = {"topic": "trips", "subscription": "audit", "at": str(time.time_ns() // 1_000_000)}
    path = f"{url}/watch/past"
    async with aiohttp.ClientSession(headers=TOKEN) as session, session.get(path, params=asked) as answer:
        assert (answer.status, "no recording reaches back so far" in await answer.text()) == (404, True)


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
