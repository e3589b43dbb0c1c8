"""The admin port for those who come with a role of their own: who may look, and who may do what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sluice.actors.policies.audited import Audited
from sluice.actors.policies.permissions import Permissions
from sluice.actors.policies.policy_records import of_topic
from sluice.cluster.admin.server_routes import AdminHttp
from sluice.cluster.base.audit import AuditLog, audited_lines
from sluice.cluster.gateway.tokens import make_key, make_token
from sluice.cluster.http import guard
from sluice.cluster.http.connections import HeadAlone
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE
from tests.cluster.admin.test_server_routes import Actors
from tests.cluster.helpers import admin_ports

AT = "/admin/v2/persistent/public/default/orders"
EVENTS = "/watch/events?topic=orders&subscription=billing"


async def _of_nobody(*_: str) -> list[dict[str, Any] | None]:
    return []


async def _unknown() -> dict[str, Any] | None:
    return None


class Door:
    """An admin port where rights are enforced."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, folder / "token.key"
        make_key(self.key)
        self.ports = admin_ports(Actors())
        settings = {
            "pulsar_token_key_file": str(self.key),
            "authorization_enabled": True,
            "super_user_roles": "root",
            "viewer_roles": "watcher",
        }
        self.server = AdminHttp(self.ports, controller="c/c", data_dir=folder, port=0, settings=settings)
        for name in ("dispatchers", "topics", "delayed"):
            setattr(self.server, name, _of_nobody)  # what the live page asks is another test's
        self.server.status = _unknown  # type: ignore[method-assign]

    async def ask(self, method: str, path: str, token: str, body: Any = None) -> int:
        """The status of an answer, whose body is left where it is."""
        base = f"http://127.0.0.1:{(self.folder / PORT_FILE).read_text()}"
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(base, headers=headers) as browser,
            browser.request(method, path, json=body) as answer,
        ):
            return answer.status

    async def as_role(self, role: str, method: str, path: str, body: Any = None) -> int:
        """The same with a token of a role."""
        return await self.ask(method, path, make_token(self.key, {"sub": role}), body)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    made = Door(tmp_path)
    await made.server.start()
    yield made
    await made.server.stop("the test is over")


async def test_a_viewer_looks_and_changes_nothing(door: Door) -> None:
    for path in ("/metrics", "/watch/subscriptions", EVENTS, f"{AT}/stats", f"{AT}/subscription/billing/pending"):
        assert await door.as_role("watcher", "GET", path) == 200, path
    for method, path in (
        ("DELETE", AT),
        ("POST", f"{AT}/subscription/billing/parked/redrive"),
        ("POST", f"{AT}/subscription/billing/delayed/cancel"),
        ("POST", f"{AT}/subscription/billing/skip_all"),
        ("GET", f"{AT}/examinemessage"),
        ("PUT", "/admin/v2/tenants/mine"),
    ):
        assert await door.as_role("watcher", method, path) == 403, path
    assert await door.as_role("root", "POST", f"{AT}/subscription/billing/skip_all") == 204


async def test_a_role_sees_what_it_may_consume(door: Door) -> None:
    await Permissions(door.ports.meta).grant(of_topic("orders"), "reader", ["consume"])
    assert await door.as_role("reader", "GET", EVENTS) == 200
    for path in ("/metrics", "/watch/subscriptions", "/watch/events?topic=others&subscription=billing"):
        assert await door.as_role("reader", "GET", path) == 403
    assert await door.as_role("nobody", "GET", EVENTS) == 403


async def test_the_token_of_the_port_opens_everything_as_before(door: Door) -> None:
    token = (door.folder / TOKEN_FILE).read_text()
    assert await door.ask("POST", f"{AT}/subscription/billing/skip_all", token) == 204
    assert await door.ask("GET", "/metrics", token[:-1]) == 401
    assert await door.ask("GET", "/metrics", "") == 401
    assert await door.ask("GET", "/healthz", "") == 200
    told = [(line["role"], line["what"], line["outcome"]) for line in audited_lines(door.folder)]
    assert told[0] == ("the token of this interface", "POST subscription/skip_all", "done")
    assert token not in str(told)


async def test_the_audit_knows_who_erased_and_who_was_refused(door: Door) -> None:
    """Which key it was stands nowhere: it is to be forgotten."""
    await Permissions(door.ports.meta).grant(of_topic("orders"), "reader", ["consume", "produce"])
    for role, status in (("reader", 403), ("watcher", 403), ("root", 200)):
        assert await door.as_role(role, "POST", f"{AT}/erase", {"key": "customer-7"}) == status, role
    assert await door.as_role("reader", "GET", f"{AT}/erase") == 200
    told = {(line["role"], line["what"], line["topic"], line["outcome"]) for line in audited_lines(door.folder)}
    what = ("POST topic/erase", "orders")
    assert told == {("root", *what, "done"), ("reader", *what, "refused"), ("watcher", *what, "refused")}
    assert "customer-7" not in "".join(path.read_text() for path in (door.folder / "audit").iterdir())


async def test_a_stream_for_a_role_ends_and_is_asked_for_again(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STREAM_S", 0.0)
    base = f"http://127.0.0.1:{(door.folder / PORT_FILE).read_text()}"
    for token, ends in (
        (make_token(door.key, {"sub": "watcher"}), True),
        ((door.folder / TOKEN_FILE).read_text(), False),
    ):
        async with (
            aiohttp.ClientSession(base, headers={"Authorization": f"Bearer {token}"}) as browser,
            browser.get(EVENTS) as answer,
        ):
            if ends:
                assert await answer.content.read()
            else:
                for _ in range(3):
                    assert await answer.content.readuntil(b"\n\n")
    await asyncio.sleep(0)


async def test_change_for_a_lost_caller_is_written_to_the_audit(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that hangs up at once must leave a trace."""
    begun, lost, goes_on, written = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    erase, gone, write = AdminHttp._erasing, HeadAlone.connection_lost, AuditLog.__call__

    async def slow(self: AdminHttp, *asked: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await erase(self, *asked)

    def connection_lost(self: HeadAlone, error: Exception | None) -> None:
        gone(self, error)
        lost.set()

    def noted(self: AuditLog, audited: Audited) -> None:
        write(self, audited)
        written.set()

    monkeypatch.setattr(AdminHttp, "_erasing", slow)
    monkeypatch.setattr(HeadAlone, "connection_lost", connection_lost)
    monkeypatch.setattr(AuditLog, "__call__", noted)
    asking = asyncio.ensure_future(door.as_role("root", "POST", f"{AT}/erase", {"key": "customer-7"}))
    await begun.wait()
    asking.cancel()
    await lost.wait()
    goes_on.set()
    async with asyncio.timeout(60):
        await written.wait()
    told = [(line["role"], line["what"], line["outcome"]) for line in audited_lines(door.folder)]
    assert told == [("root", "POST topic/erase", "done")]


async def test_a_proxy_has_no_say_in_who_asks(door: Door) -> None:
    """Otherwise every caller that comes through the proxy would have the proxy's rights."""
    base = f"http://127.0.0.1:{(door.folder / PORT_FILE).read_text()}"
    headers = {"Authorization": f"Bearer {make_token(door.key, {'sub': 'root'})}", "X-Original-Principal": "till"}
    async with aiohttp.ClientSession(base, headers=headers) as browser, browser.get(f"{AT}/stats") as answer:
        assert answer.status == 403
        assert "proxy" in (await answer.json())["reason"]
