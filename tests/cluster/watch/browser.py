"""A headless Chromium for tests of pages, spoken to over its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 120.0
"""So long a condition is waited for: a page that works shows it at once, on a machine that is not busy."""
LOOK_EVERY_MS = 30
_LISTENS = re.compile(rb"DevTools listening on (ws://127\.0\.0\.1:\d+/\S+)")


class Page:
    """One tab. problems: what the page's scripts failed with or wrote as an error."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._session = ""
        self.problems: list[str] = []
        self._listening = asyncio.create_task(self._listen())

    async def open(self, url: str, *, dark: bool = False) -> None:
        """Load a page."""
        target = await self.ask("Target.createTarget", url="about:blank")
        attached = await self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            await self.ask(f"{domain}.enable")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.ask("Emulation.setEmulatedMedia", features=scheme)
        await self.ask("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        answer = await self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression in the page is true; returns it. Raises AssertionError with what the page shows."""
        wait = f"""new Promise((done, failed) => {{
            const end = Date.now() + {PATIENCE_S * 1000};
            const look = () => {{
                let seen = false;
                try {{ seen = {script}; }} catch (error) {{ seen = false; }}
                if (seen) done(seen);
                else if (Date.now() > end) failed(new Error('never: ' + document.body.innerText));
                else setTimeout(look, {LOOK_EVERY_MS});
            }};
            look();
        }})"""
        return await self.value(wait)

    async def press(self, key: str, text: str = "") -> None:
        """Press a key where the focus is."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, **more)

    async def picture(self, path: Path, *, size: tuple[int, int] | None = None) -> None:
        """Write a screenshot of the whole page, or of its upper left (width, height)."""
        clip = {"clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}} if size else {}
        shot = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, **clip)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def ask(self, method: str, **arguments: Any) -> Any:
        """One command of the protocol."""
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        command = {"id": number, "method": method, "params": arguments}
        if self._session:
            command["sessionId"] = self._session
        await self._socket.send_json(command)
        return await asyncio.wait_for(future, PATIENCE_S + 5)

    async def _listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                future = self._asked.pop(said["id"])
                if "error" in said:
                    future.set_exception(AssertionError(said["error"]["message"]))
                else:
                    future.set_result(said["result"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(said["params"]["exceptionDetails"])[:500])
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.problems.append(said["params"]["entry"]["text"])


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    """A browser of its own with one page; ended at the end."""
    assert CHROMIUM is not None
    flags = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1500,1100",
    )
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *flags,
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (found := _LISTENS.search(await process.stderr.readline())) is None:
                pass
        async with aiohttp.ClientSession() as session:
            socket = await session.ws_connect(found[1].decode(), max_msg_size=0)
            yield Page(socket)
            await socket.close()
    finally:
        process.kill()
        await process.wait()
