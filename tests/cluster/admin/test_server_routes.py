"""The admin HTTP interface with made-up actors behind it: paths, guard, errors, totals."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from sluice.actors.messages import (
    BookieList,
    CancelDelayed,
    ClearBacklog,
    ClientsHere,
    CreateTopic,
    DescribeCluster,
    Discard,
    Done,
    Erase,
    EraseStatus,
    Explain,
    ListBookies,
    ListParked,
    ListSubscriptions,
    ListTopics,
    Located,
    LocateTopic,
    Ping,
    Redrive,
    RemoveSubscription,
    RemoveTopic,
    RescheduleDelayed,
    Seek,
    Skip,
    Skipped,
    Sought,
    SubscriptionList,
    Text,
    TopicList,
    TopicSettings,
)
from sluice.actors.messages.administration import VERBS
from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Request
from sluice.cluster.admin.broker import Broker
from sluice.cluster.admin.server_routes import AdminHttp
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE
from sluice.storage.errors import Conflict, NotFound, Unavailable
from sluice.storage.format.hashing import masked_hash
from tests.cluster.helpers import admin_ports

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Actors:
    """Answers for a controller with one topic of two partitions and one subscription."""

    def __init__(self) -> None:
        self.asked: list[Request[Any]] = []
        self.away = False
        self.hangs, self.others, self._other = "", list[str](), asyncio.Event()
        """Who answers no statistics before one of the others was asked for them."""

    async def call(self, to: str, request: Request[Any], timeout: int) -> Any:
        """One canned answer a request."""
        self.asked.append(request)
        if self.away:
            return Unknown("away", gone=True)
        if isinstance(request, Ping | CreateTopic):
            if isinstance(request, CreateTopic) and request.settings.partitions == 9:
                raise Conflict("topic late exists with other settings")
            return Done()
        if isinstance(request, ListTopics):
            return TopicList(topics={"orders": TopicSettings(partitions=2)})
        if isinstance(request, ListSubscriptions):
            return SubscriptionList(names=["billing"])
        if isinstance(request, DescribeCluster):
            return Text(
                json=json.dumps({"actors": [{"kind": "dispatcher", "address": at} for at in (self.hangs, "host/d-0")]})
            )
        if isinstance(request, RemoveTopic | RemoveSubscription):
            return Done()
        if isinstance(request, ClientsHere):
            return Unknown("no gateway", gone=True)
        if isinstance(request, ListBookies):
            return BookieList(ids=["b-0", "b-1"], addresses=["host/b-0", "host/b-1"])
        if isinstance(request, LocateTopic):
            if request.topic != "orders":
                raise NotFound(f"there is no topic {request.topic!r}")
            return Located(addresses=["host/t-0", "host/t-1"], settings='{"partitions": 2}')
        if type(request).__name__ == "LocateSubscription":
            return Located(addresses=["host/d-0", "host/d-1"])
        if isinstance(request, Seek):
            return Sought(position="1:0")
        if isinstance(request, Skip | ClearBacklog):
            return Skipped(skipped=5, position="1:5")
        if isinstance(request, Erase):
            return EraseStatus(keys=int(request.key is not None))
        if isinstance(request, (Explain, *VERBS.values())):
            return Text(json=json.dumps({"gates": []}))
        if to == self.hangs:
            await asyncio.wait_for(self._other.wait(), 60)
        elif to in self.others:
            self._other.set()
        partition = int(to[-1])
        row = {"topic": "orders", "partition": partition, "epoch": 7, "msgInCounter": 10 + partition}
        if "/d-" in to:
            row = {
                "topic": "orders", "partition": partition, "subscription": 'bill"ing', "type": "key_shared",
                "msgBacklog": 5, "epoch": 7, "consumers": [{"consumerName": f"c{partition}"}],
            }  # fmt: skip
        return Text(json=json.dumps(row))


@pytest.fixture
def actors() -> Actors:
    """The made-up peers."""
    return Actors()


def _server(folder: Path, actors: Actors, **more: Any) -> AdminHttp:
    return AdminHttp(admin_ports(actors), controller="controller/controller", data_dir=folder, port=0, **more)


@pytest.fixture
async def session(tmp_path: Path, actors: Actors) -> AsyncIterator[aiohttp.ClientSession]:
    """A browser with the right token."""
    server = _server(tmp_path, actors)
    await server.start()
    token = (tmp_path / TOKEN_FILE).read_text()
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600
    port = (tmp_path / PORT_FILE).read_text()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as browser:
        yield browser
    await server.stop("the test is over")


BASE = "/admin/v2/persistent/public/default"


async def test_health_needs_no_token_and_everything_else_does(session: aiohttp.ClientSession) -> None:
    """A wrong token is refused, whatever the path."""
    wrong = {"Authorization": "Bearer wrong"}
    assert (await session.get("/healthz", headers=wrong)).status == 200
    for path in (BASE, "/metrics", f"{BASE}/orders/stats"):
        answer = await session.get(path, headers=wrong)
        assert answer.status == 401
        assert "bearer token" in (await answer.json())["reason"]


@pytest.mark.parametrize("given", ["Bearer \u00fc", "Bearer \udcff", "\u20ac", "Bearer", ""])
async def test_a_token_of_any_letters_is_only_wrong(session: aiohttp.ClientSession, given: str) -> None:
    """A token that is not ASCII is a wrong token, and no error."""
    reader, writer = await asyncio.open_connection("127.0.0.1", session._base_url.port)  # type: ignore[union-attr]
    head = f"GET {BASE} HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: {given}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode("utf-8", "surrogateescape"))
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 401 "), answer


async def test_an_unknown_charset_is_nobodys_error(session: aiohttp.ClientSession) -> None:
    """The body is digits, whatever the client calls them."""
    headers = {"Content-Type": "text/plain; charset=klingon"}
    assert (await session.put(f"{BASE}/new/partitions", data=b"3", headers=headers)).status == 204


HALF = (
    b"",
    b"GET / HT",
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:1\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
    f"PUT {BASE}/orders/partitions HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer TOKEN\r\n"
    "Content-Length: 9\r\n\r\n3".encode(),
)


@pytest.mark.parametrize("sent", HALF, ids=["nothing", "half a line", "half a head", "one request", "half a body"])
async def test_a_client_that_says_no_more_is_let_go(tmp_path: Path, actors: Actors, sent: bytes) -> None:
    """The server closes the connection of a silent client, so it takes no place for ever."""
    server = _server(tmp_path, actors, connection_seconds=0.05)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent.replace(b"TOKEN", (tmp_path / TOKEN_FILE).read_bytes()))
    await asyncio.wait_for(reader.read(), 60)
    writer.close()
    await server.stop("the test is over")


async def test_a_made_up_host_name_is_refused(session: aiohttp.ClientSession) -> None:
    """A page that points its own name at the loopback gets nothing."""
    assert (await session.get("/healthz", headers={"Host": "evil.example:80"})).status == 421


async def test_a_link_elsewhere_opens_the_page_and_asks_nothing(session: aiohttp.ClientSession) -> None:
    """The files of the page hold nothing; a picture of another page reaches not even these."""
    for mode, path, status in (("navigate", "/watch", 200), ("no-cors", "/watch", 403), ("navigate", "/metrics", 403)):
        browser = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
        assert (await session.get(path, headers=browser)).status == status, path


async def test_each_gateway_is_asked_once_for_all_partitions(session: aiohttp.ClientSession, actors: Actors) -> None:
    """A question for each partition made the cost the square of their number."""
    assert (await session.get(f"{BASE}/orders/partitioned-stats")).status == 200
    asked = [one for one in actors.asked if isinstance(one, ClientsHere)]
    assert [one.partition for one in asked] == [None]
    assert sum(isinstance(one, DescribeCluster) for one in actors.asked) == 1


async def test_topics_and_their_totals(session: aiohttp.ClientSession) -> None:
    """Counters are summed over the partitions; epochs are not."""
    names = [f"persistent://public/default/orders-partition-{number}" for number in range(2)]
    assert await (await session.get(BASE)).json() == names
    stats = await (await session.get(f"{BASE}/orders/stats")).json()
    assert stats["msgInCounter"] == 21
    assert stats["partitions"][names[1]]["msgInCounter"] == 11
    billing = stats["subscriptions"]["billing"]
    assert (billing["msgBacklog"], billing["type"]) == (10, "Key_Shared")
    assert [consumer["consumerName"] for consumer in billing["consumers"]] == ["c0", "c1"]
    assert "epoch" not in stats


async def test_paths_of_pulsars_own_tool(session: aiohttp.ClientSession, actors: Actors) -> None:
    """Topics as it lists and makes them; one of a single partition is a plain topic to it."""
    assert await (await session.get(f"{BASE}/partitioned")).json() == ["persistent://public/default/orders"]
    names = await (await session.get("/admin/v2/namespaces/public/default/topics")).json()
    assert names == [f"persistent://public/default/orders-partition-{number}" for number in range(2)]
    assert (await (await session.get(f"{BASE}/orders/partitions")).json())["partitions"] == 2
    assert (await session.put(f"{BASE}/plain")).status == 204
    assert actors.asked[-1] == CreateTopic(topic="plain", settings=TopicSettings())
    assert (await session.get("/admin/v2/namespaces/other/one/topics")).status == 404


async def test_verbs_reach_every_partition(session: aiohttp.ClientSession, actors: Actors) -> None:
    """Pulsar's paths become our verbs."""
    for path, request in (
        ("skip/5", Skip(messages=5)),
        ("skip_all", ClearBacklog()),
        ("resetcursor/1700", Seek(time=1700)),
    ):
        actors.asked.clear()
        answer = await session.post(f"{BASE}/orders/subscription/billing/{path}")
        assert (answer.status, await answer.read()) == (204, b"")
        assert [sent for sent in actors.asked if isinstance(sent, type(request))] == [request] * 2
    explained = await (await session.get(f"{BASE}/orders/subscription/billing/explain?key=k")).json()
    home = masked_hash(b"k") % 2
    assert explained == [{"gates": [], "home": at == home} for at in range(2)], "clients of Pulsar may choose another"
    path = f"{BASE}/orders/subscription/billing/delayed"
    cancelled = await session.post(f"{path}/cancel", json={"message_id": ["1:2:1"]})
    assert (cancelled.status, await cancelled.json()) == (200, [{"subscription": "billing", "gates": []}])
    assert actors.asked[-1] == CancelDelayed(message_ids=["1:2"])
    assert (await session.post(f"{path}/reschedule", json={"due_to": 9, "deliver_at": 5})).status == 200
    assert actors.asked[-2:] == [RescheduleDelayed(due_to=9, deliver_at=5)] * 2
    for wrong in ("no json", "[]", "{}", '{"due_to": "soon"}', '{"keys": 1}', '{"message_id": 5}'):
        assert (await session.post(f"{path}/cancel", data=wrong)).status == 412
    assert (await session.put(f"{BASE}/new/partitions", data="3")).status == 204


async def test_parked_keys_are_shown_and_decided_of(session: aiohttp.ClientSession, actors: Actors) -> None:
    path = f"{BASE}/orders/subscription/billing/parked"
    assert (await session.get(path)).status == 200
    assert actors.asked[-2:] == [ListParked()] * 2
    answer = await session.post(f"{path}/redrive", json={"key": "k"})
    assert (answer.status, await answer.json()) == (200, [{"gates": []}] * 2)
    assert actors.asked[-2:] == [Redrive(key="k")] * 2
    assert (await session.post(f"{path}/discard", json={"everything": True, "only_failed": True})).status == 200
    assert actors.asked[-2:] == [Discard(everything=True, only_failed=True)] * 2
    for wrong in ("no json", "[]", '{"key": 5}'):
        assert (await session.post(f"{path}/redrive", data=wrong)).status == 412


async def test_a_key_is_erased_in_every_partition(session: aiohttp.ClientSession, actors: Actors) -> None:
    path = f"{BASE}/orders/erase"
    answer = await session.post(path, json={"key": "k\u00e9"})
    assert (answer.status, [(row["partition"], row["keys"]) for row in await answer.json()]) == (200, [(0, 1), (1, 1)])
    assert actors.asked[-2:] == [Erase(key="k\u00e9".encode())] * 2
    assert [row["keys"] for row in await (await session.get(path)).json()] == [0, 0]
    asked = len(actors.asked)
    for wrong in ("no json", "[]", "{}", '{"key": ""}', '{"key": 5}', '{"key": "k", "partition": 0}'):
        assert (await session.post(path, data=wrong)).status == 412, wrong
    assert len(actors.asked) == asked


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", f"{BASE}/orders/partitions", "many", 412),
        ("PUT", f"{BASE}/orders/partitions", "2", 409),
        ("PUT", f"{BASE}/late/partitions", "9", 409),
        ("GET", "/admin/v2/persistent/other/place/orders/stats", None, 404),
        ("GET", f"{BASE}/orders/subscription/billing/explain", None, 412),
        ("POST", f"{BASE}/orders/subscription/billing/skip/x", None, 412),
        ("GET", f"{BASE}/%2e%2e%2fetc/stats", None, 412),
        ("GET", "/nowhere", None, 404),
        ("PUT", f"{BASE}/orders/partitions", "9" * 5000, 412),
        ("PUT", f"{BASE}/orders/partitions", b"\xff\xfe", 412),
        ("PUT", f"{BASE}/orders/partitions", "-1", 412),
        ("POST", f"{BASE}/orders/subscription/billing/skip/" + "9" * 5000, None, 412),
        ("POST", f"{BASE}/orders/subscription/billing/skip/{2**63}", None, 412),
        ("POST", f"{BASE}/orders/subscription/billing/resetcursor/" + "9" * 5000, None, 412),
        ("POST", f"{BASE}/orders/subscription/billing/expireMessages/\u0665", None, 412),
        ("GET", f"{BASE}/orders/subscription/billing/explain?hash=" + "9" * 5000, None, 412),
        ("GET", f"{BASE}/orders/subscription/billing/explain?hash=x", None, 412),
        ("GET", f"{BASE}/orders/subscription/%20/explain?key=k", None, 412),
        ("DELETE", f"{BASE}/orders/subscription/{'s' * 129}", None, 412),
        ("DELETE", f"{BASE}/orders/subscription/{'%00' * 50}", None, 412),
    ],
)
async def test_wrong_calls_get_a_status_and_a_reason(
    session: aiohttp.ClientSession, method: str, path: str, body: str | bytes | None, status: int
) -> None:
    """Errors are JSON with one line."""
    from yarl import URL

    answer = await session.request(method, URL(quote(path, safe="/%?="), encoded=True), data=body)
    assert answer.status == status
    if path != "/nowhere":
        assert (await answer.json())["reason"]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
async def test_metrics_are_prometheus_text(session: aiohttp.ClientSession, path: str) -> None:
    """Labels are escaped; each series has its help and type."""
    text = await (await session.get(path)).text()
    assert "# TYPE pulsar_subscription_back_log gauge" in text
    assert 'pulsar_subscription_back_log{topic="orders",partition="0",subscription="bill\\"ing"} 5\n' in text


async def test_metrics_wait_for_nobody_in_turn(session: aiohttp.ClientSession, actors: Actors) -> None:
    """An owner that hangs keeps the answer of another one from nobody."""
    actors.hangs, actors.others = "host/d-1", ["host/d-0"]
    text = await (await session.get("/metrics")).text()
    assert 'partition="0",subscription=' in text
    assert 'partition="1",subscription=' in text


async def test_a_silent_controller_is_unhealthy(
    session: aiohttp.ClientSession, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, once the controller was asked for as long as patience lasts, which is half a minute elsewhere."""
    monkeypatch.setattr(Broker.ask_controller, "__kwdefaults__", {"patience": 300})
    actors.away = True
    assert (await session.get("/healthz")).status == 503
    assert (await session.get(BASE)).status == 503


async def test_a_port_in_use_is_one_clear_line(session: aiohttp.ClientSession, tmp_path: Path, actors: Actors) -> None:
    """The second server on a port says which."""
    port = int((tmp_path / PORT_FILE).read_text())
    ports = admin_ports(actors, "host/b")
    second = AdminHttp(ports, controller="c/c", data_dir=tmp_path, port=port)
    with pytest.raises(Unavailable, match=f"port {port} is in use"):
        await second.start()
    assert not [request for request in actors.asked if isinstance(request, ListBookies)]
