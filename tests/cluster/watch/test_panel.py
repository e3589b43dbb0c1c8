"""The page with buttons that break things: who may press them, and what a person sees of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from sluice.actors.ports import Ports
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE, guard
from sluice.cluster.watch.http import PAGE_PATHS, WatchHttp
from sluice.cluster.watch.panel import EXPLAIN, Admin, Panel
from sluice.storage.errors import Conflict, NotFound
from tests.cluster.watch.browser import browser
from tests.cluster.watch.test_page import SHOTS, Cluster, explain, needs_browser

SECRET = "s" * 40
"""The admin token of the made-up cluster."""


class Load:
    """A load of two consumers; a press takes one away."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.pressed: list[tuple[str, str]] = []
        self.over = False
        self.lock = threading.Lock()

    def state(self) -> dict[str, Any]:
        names = [name for name in ("a", "b") if name in self.cluster.consumers]
        victims = [{"target": "", "label": "The others", "kinds": ["join-consumer"]}]
        victims += [{"target": name, "label": name, "kinds": ["kill-consumer", "freeze-consumer"]} for name in names]
        return {
            "victims": victims,
            "meanings": {
                "kill-consumer": "it gets SIGKILL",
                "freeze-consumer": "it stops",
                "join-consumer": "one more",
            },
            "done": [f"{kind} {target}" for kind, target in self.pressed],
            "phase": "act 2",
            "open": not self.over,
        }

    def press(self, kind: str, target: str) -> None:
        if self.over:
            raise Conflict("faults need a load, and there is none now")
        with self.lock:
            self.pressed.append((kind, target))
            self.cluster.consumers = [name for name in self.cluster.consumers if name != target]

    def end(self) -> None:
        self.over = True


@pytest.fixture
async def load(ports: Ports, tmp_path: Path) -> AsyncIterator[Load]:
    """A cluster whose admin interface wants its token, and a load on it; its data folder is tmp_path."""
    cluster = Cluster()
    cluster.consumers = ["a", "b", "c"]
    app = web.Application(middlewares=[guard(SECRET, PAGE_PATHS, "is in a file")])
    app.add_routes(WatchHttp(ports, cluster).routes())
    app.router.add_get(EXPLAIN, explain)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / PORT_FILE).write_text(str(runner.addresses[0][1]))
    (tmp_path / TOKEN_FILE).write_text(SECRET)
    yield Load(cluster)
    await runner.cleanup()


def panel(load: Load, tmp_path: Path) -> Panel:
    return Panel(Admin(tmp_path), load, topic="orders", subscription="billing")


def parts(address: str) -> tuple[str, dict[str, str]]:
    """Split an address into the server's URL and the headers that it wants."""
    split = urlsplit(address)
    return f"http://{split.netloc}", {"Authorization": f"Bearer {split.fragment.removeprefix('token=')}"}


async def test_only_the_printed_token_opens_not_the_clusters(load: Load, tmp_path: Path) -> None:
    with panel(load, tmp_path) as shown:
        base, right = parts(shown.address)
        fault = {"kind": "kill-consumer", "target": "a"}
        async with aiohttp.ClientSession() as session:
            for headers in ({}, {"Authorization": f"Bearer {SECRET}"}, {**right, "Host": "evil.example"}):
                for path in (
                    "/watch/faults",
                    "/watch/faults/events",
                    "/watch/events",
                    "/watch/past",
                    "/watch/subscriptions",
                ):
                    async with session.get(base + path, headers=headers) as answer:
                        assert answer.status in (401, 421), (path, headers)
                for path in ("/watch/faults", "/watch/end"):
                    async with session.post(base + path, json=fault, headers=headers) as answer:
                        assert answer.status in (401, 421)
            assert load.pressed == []
            assert not load.over
            async with session.post(base + "/watch/faults", json=fault, headers=right) as answer:
                assert answer.status == 202
        assert load.pressed == [("kill-consumer", "a")]
        assert SECRET not in shown.address


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"kind": 1, "target": "a"}', '"x"'])
async def test_unknown_fault_is_refused_in_one_line(load: Load, tmp_path: Path, body: str) -> None:
    with panel(load, tmp_path) as shown:
        base, right = parts(shown.address)
        async with (
            aiohttp.ClientSession() as session,
            session.post(base + "/watch/faults", data=body, headers=right) as answer,
        ):
            assert answer.status == 412
            assert "\n" not in (await answer.json())["reason"]


async def test_admin_interface_alone_can_break_nothing(load: Load, tmp_path: Path) -> None:
    base, headers = Admin(tmp_path).locate()
    async with aiohttp.ClientSession() as session:
        for method in ("GET", "POST"):
            async with session.request(method, base + "/watch/faults", headers=headers) as answer:
                assert answer.status == 404


async def test_controller_that_is_away_is_told_and_found_again(load: Load, tmp_path: Path) -> None:
    with panel(load, tmp_path) as shown:
        base, right = parts(shown.address)
        port = (tmp_path / PORT_FILE).read_text()
        async with aiohttp.ClientSession() as session:
            for away, status in (("9", 503), ("", 404), (port, 200)):
                (tmp_path / PORT_FILE).write_text(away)
                async with session.get(base + "/watch/subscriptions", headers=right) as answer:
                    assert answer.status == status


def test_without_a_cluster_there_is_no_page(tmp_path: Path) -> None:
    with (
        pytest.raises(NotFound, match="admin interface"),
        Panel(Admin(tmp_path), Load(Cluster()), topic="t", subscription="s"),
    ):
        pass


@needs_browser
async def test_a_button_pressed_by_keyboard_changes_the_ring(load: Load, tmp_path: Path) -> None:
    with panel(load, tmp_path) as shown:
        async with browser(tmp_path / "profile") as page:
            await page.open(shown.address)
            await page.until("document.querySelector('#state').textContent === 'live'")
            await page.until("document.querySelector('[aria-label=\"kill a\"]')")
            assert await page.value("location.hash") == ""
            assert await page.value("document.querySelector('[aria-label=\"kill a\"]').title") == "it gets SIGKILL"
            await page.until("document.querySelector('#consumers').innerText.includes('a: ')")
            before = await page.value("document.querySelector('#ring').toDataURL()")
            await asyncio.to_thread(load.lock.acquire)
            await page.value("document.querySelector('[aria-label=\"kill a\"]').focus()")
            await page.press("Enter", "\r")
            await page.until("document.querySelector('#broken').innerText.includes('kill consumer a: on its way')")
            await page.value("document.querySelector('[aria-label=\"kill b\"]').focus()")
            load.lock.release()
            await page.until("document.querySelector('#events').innerText.includes('partition 0: a left')")
            assert await page.value("document.querySelector('#ring').toDataURL()") != before
            await page.until("!document.querySelector('[aria-label=\"kill a\"]')")
            assert await page.value("document.activeElement.getAttribute('aria-label')") == "kill b"
            await page.until("document.querySelector('#done').innerText === 'kill-consumer a'")
            await page.picture((Path(SHOTS) if SHOTS else tmp_path) / "faults.png")
            await page.value("document.querySelector('#end').focus()")
            await page.press("Enter", "\r")
            await page.until("document.querySelector('#victims').inert && document.querySelector('#end').disabled")
            assert load.over
            await page.press("Enter", "\r")
            assert len(load.pressed) == 1
            assert page.problems == []


@needs_browser
async def test_without_a_load_there_are_no_buttons(load: Load, tmp_path: Path) -> None:
    base, _ = Admin(tmp_path).locate()
    async with browser(tmp_path / "profile") as page:
        await page.open(f"{base}/watch?topic=orders&subscription=billing#token={SECRET}")
        await page.until("document.querySelector('#state').textContent === 'live'")
        assert await page.value("document.querySelector('#break-panel').hidden")
        assert page.problems == []
