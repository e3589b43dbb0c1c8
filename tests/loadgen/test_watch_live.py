"""The live page of a real flood in a headless browser: what a person presses there is seen in the ring."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from sluice.loadgen.base.broker import ClusterConnect
from sluice.loadgen.base.history import HistoryClock
from sluice.loadgen.base.options import FloodOptions
from sluice.loadgen.load.publish import PublishJob
from sluice.loadgen.run.fault_buttons import Page
from sluice.loadgen.run.flood import run_flood
from tests.cluster.watch.browser import Page as Tab
from tests.cluster.watch.browser import browser
from tests.cluster.watch.test_page import SHOTS, needs_browser

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200), needs_browser]

COLOURS = """(() => {
    const ring = document.querySelector('#ring');
    const dots = ring.getContext('2d').getImageData(0, 0, ring.width, ring.height).data;
    const seen = new Map();
    for (let i = 0; i < dots.length; i += 4)
        if (dots[i + 3] > 250) {
            const colour = dots[i] << 16 | dots[i + 1] << 8 | dots[i + 2];
            seen.set(colour, (seen.get(colour) ?? 0) + 1);
        }
    return [...seen.values()].filter((count) => count > 2000).length;
})()"""
"""How many colours cover more than a speck of the ring."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClusterConnect, Path]]:
    from sluice.cluster.launch import launch

    with launch.local(tmp_path_factory.mktemp("broker"), bookies=3) as cluster:
        yield ClusterConnect(cluster.address, os.environ.get("RAY_AUTH_TOKEN_PATH", "")), cluster.data_dir


SINCE = "performance.now() - window.pressed"
"""Milliseconds in the page since a button was pressed."""


async def press(page: Tab, button: str, seen: str) -> float:
    """Press a button as a person does at the keyboard; seconds until something is seen."""
    await page.until(f"document.querySelector('{button}')")
    await page.value(f"document.querySelector('{button}').focus()")
    await page.press("Enter", "\r")
    return float(await page.until(f"{seen} && {SINCE}")) / 1000


async def look(address: str, folder: Path) -> dict[str, float]:
    """Do what a person at the browser does; return the seconds from each press until its effect is seen."""
    told: dict[str, float] = {}
    async with browser(folder / "profile") as page:
        await page.open(address)
        events = "document.querySelector('#events').innerText"
        done = "document.querySelector('#done').innerText"
        await page.value("document.addEventListener('click', () => { window.pressed = performance.now(); }, true)")
        await page.until("document.querySelector('#consumers').children.length === 3")
        await page.until(f"{COLOURS} >= 3")
        await page.until("!document.querySelector('#victims').inert")
        told["join in the ring"] = await press(page, '[aria-label="join consumer"]', f"{COLOURS} >= 4")
        await page.until(f"{events}.includes('consumer-4 joined')")
        told["kill in the list"] = await press(page, '[aria-label="kill consumer-1"]', f"{done}.includes('consumer-1')")
        await page.until(f"{events}.includes('consumer-1 left')")
        told["helper in the ring"] = await press(page, '[aria-label="hang consumer-2"]', f"{COLOURS} >= 5")
        await page.until(f"{events}.includes('consumer-5 joined')")
        whole = "[window.innerWidth, document.documentElement.scrollHeight]"
        await page.picture((Path(SHOTS) if SHOTS else folder) / "flood.png", size=await page.value(whole))
        await page.until(f"{done}.includes('hang-consumer consumer-2')")
        told["end"] = await press(page, "#end", "document.querySelector('#end').disabled")
        assert page.problems == []
    return told


def test_fault_pressed_in_the_browser_is_seen_in_the_ring(
    running: tuple[ClusterConnect, Path], spark: Any, tmp_path: Path
) -> None:
    """The load lasts until the person at the browser ends it."""
    connect, data_dir = running
    announced: SimpleQueue[str] = SimpleQueue()
    told: list[dict[str, float] | BaseException] = []

    def person() -> None:
        try:
            told.append(asyncio.run(look(announced.get(), tmp_path)))
        except BaseException as error:  # it is raised again below, in the test's own thread
            told.append(error)
            PublishJob(connect, "", "", HistoryClock.start(), tmp_path / "histories").enough.touch()

    looking = threading.Thread(target=person, daemon=True)
    looking.start()
    options = FloodOptions.from_values(
        minutes=15, rate=3_000, restarts=0, consumers=3, keys=2_000, receiver_queue_size=2_000
    )
    report = run_flood(options, connect, folder=tmp_path, spark=spark.sparkContext, page=Page(data_dir, announced.put))
    looking.join(60)
    assert told, "the browser is still looking"
    if isinstance(told[0], BaseException):
        raise told[0]
    seconds = {name: round(seconds, 2) for name, seconds in told[0].items()}
    print(f"seconds from a press: {seconds}; load average {os.getloadavg()[0]:.1f}")
    assert [(fault["kind"], fault["pressed"]) for fault in report.faults] == [
        ("join-consumer", True),
        ("kill-consumer", True),
        ("hang-consumer", True),
    ]
    assert report.judgement.findings.clean
    assert report.reasons == []
