"""The admin HTTP interface: Pulsar's paths and field names, on the loopback.

    GET    /healthz                                                     is the controller there (needs no token)
    GET    /metrics                                                     Prometheus text of every owner
    GET    /admin/v2/persistent/public/default                          topics
    PUT    /admin/v2/persistent/public/default/{topic}/partitions       create; the body is the number of partitions
    DELETE /admin/v2/persistent/public/default/{topic}?force=true
    GET    .../{topic}/stats | partitioned-stats | internalStats | subscriptions
    GET    .../{topic}/subscription/{sub}/explain?key=K | pending | blocked-keys | assignments | delayed
    POST   .../{topic}/subscription/{sub}/skip/{n} | skip_all | resetcursor/{ms} | expireMessages/{seconds}
    DELETE .../{topic}/subscription/{sub}?force=true

Everything but /healthz wants `Authorization: Bearer <token>`; the token is the content of the data folder's
`admin-token` (mode 0600), which is made when it is missing. JSON in and out, no CORS, small bodies only, and a Host
header that is not the loopback's is refused, so that a page in a browser cannot reach it by a made-up name.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from actors.actor import Actor
from actors.directory import Directory
from actors.messages import Admin, CreateTopic, Explain, Manage, Ping, Stats, TopicSettings
from actors.ports import Ports, Unknown
from actors.wire import Request
from cluster.environment import LOOPBACK
from cluster.metrics import series
from cluster.names import check_name
from storage.errors import Conflict, Fenced, Invalid, NotFound, Overloaded, SluiceError, Unavailable

TOKEN_FILE = "admin-token"
PORT_FILE = "admin-port"
CALL_TIMEOUT = 15_000
MAX_BODY = 64 * 1024
BASE = "/admin/v2/persistent/{tenant}/{namespace}"
STATUS: tuple[tuple[type[SluiceError], int], ...] = (
    (NotFound, 404),
    (Conflict, 409),
    (Invalid, 412),
    (Overloaded, 429),
    (Fenced, 503),
    (Unavailable, 503),
)
"""HTTP status of each error, as Pulsar's clients expect them."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_token(data_dir: Path) -> Path:
    """The token file of a data folder, made with mode 0600 if it is missing."""
    path = data_dir / TOKEN_FILE
    if not path.exists():
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(24))
    return path


class AdminHttp(Actor):
    """Serves the interface from the controller's process. port 0 chooses one and writes it to `admin-port`."""

    def __init__(self, ports: Ports, *, controller: str, data_dir: Path, port: int) -> None:
        super().__init__(ports)
        self._controller = controller
        self._directory = Directory(ports, controller)
        self._data_dir = data_dir
        self._wanted_port = port
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen on the loopback. Raises Unavailable if the port is in use."""
        token = make_token(self._data_dir).read_text().strip()
        self._runner = web.AppRunner(self.application(token), access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, LOOPBACK, self._wanted_port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise Unavailable(f"the admin port {self._wanted_port} is in use: {error.strerror}") from error
        self.port = int(self._runner.addresses[0][1])
        (self._data_dir / PORT_FILE).write_text(str(self.port))

    async def stop(self, reason: str) -> None:
        """Close the port."""
        await super().stop(reason)
        if self._runner is not None:
            await self._runner.cleanup()

    def application(self, token: str) -> web.Application:
        """The routes behind the guard."""
        app = web.Application(middlewares=[_guard(token)], client_max_size=MAX_BODY)
        topic = f"{BASE}/{{topic}}"
        subscription = f"{topic}/subscription/{{subscription}}"
        app.add_routes(
            [
                web.get("/healthz", self._health),
                web.get("/metrics", self._metrics),
                web.get(BASE, self._topics),
                web.put(f"{topic}/partitions", self._create),
                web.delete(topic, self._delete),
                web.delete(f"{topic}/partitions", self._delete),
                web.get(f"{topic}/stats", self._stats),
                web.get(f"{topic}/partitioned-stats", self._stats),
                web.get(f"{topic}/internalStats", self._internal_stats),
                web.get(f"{topic}/subscriptions", self._subscriptions),
                web.delete(subscription, self._unsubscribe),
                web.get(f"{subscription}/explain", self._explain),
                web.get(f"{subscription}/{{verb:pending|blocked-keys|assignments|delayed}}", self._question),
                web.post(f"{subscription}/skip/{{number}}", self._verb("skip", "messages")),
                web.post(f"{subscription}/skip_all", self._verb("clear_backlog")),
                web.post(f"{subscription}/resetcursor/{{number}}", self._verb("seek", "time")),
                web.post(f"{subscription}/expireMessages/{{number}}", self._expire),
            ]
        )
        return app

    # -- asking the actors ----------------------------------------------------------------------------------------

    async def _ask(self, address: str, request: Request[Any]) -> Any:
        reply = await self.ports.net.call(address, request, CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            await self._directory.suspect(address)
            raise Unavailable(f"{address} does not answer: {reply.reason}")
        return reply

    async def _manage(self, verb: str, **arguments: object) -> Any:
        reply = await self._ask(self._controller, Manage(verb=verb, arguments=json.dumps(arguments)))
        return json.loads(reply.json)

    async def _owners(self, topic: str, subscription: str | None = None) -> list[str]:
        count = (await self._directory.settings(topic)).partitions
        if subscription is None:
            return [await self._directory.topic(topic, partition) for partition in range(count)]
        return [await self._directory.dispatcher(topic, partition, subscription) for partition in range(count)]

    async def _rows(self, topic: str, subscription: str | None, request: Request[Any]) -> list[Any]:
        return [
            json.loads((await self._ask(address, request)).json) for address in await self._owners(topic, subscription)
        ]

    # -- routes ---------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        reply = await self.ports.net.call(self._controller, Ping(), CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            return web.Response(status=503, text="the controller does not answer\n")
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        lines: dict[str, list[str]] = {}
        for row in (await self._manage("status"))["actors"]:
            if row["kind"] not in ("dispatcher", "topic") or not row["address"]:
                continue
            try:
                reply = await self.ports.net.call(row["address"], Stats(), CALL_TIMEOUT)
            except SluiceError:
                continue  # an owner that is still finding its feet has nothing to tell; the others have
            if isinstance(reply, Unknown):
                continue
            stats = json.loads(reply.json)
            labels = {name: str(stats[name]) for name in ("topic", "partition") if name in stats}
            if row["kind"] == "dispatcher":
                labels["subscription"] = str(stats["subscription"])
            for metric, extra, value in series(row["kind"], stats):
                known = lines.setdefault(
                    metric.name, [f"# HELP {metric.name} {metric.description}", f"# TYPE {metric.name} gauge"]
                )
                text = ",".join(f'{name}="{_escaped(label)}"' for name, label in {**labels, **extra}.items())
                known.append(f"{metric.name}{{{text}}} {value:g}")
        body = "\n".join(line for name in sorted(lines) for line in lines[name])
        return web.Response(text=body + "\n", content_type="text/plain")

    async def _topics(self, request: web.Request) -> web.Response:
        _namespace(request)
        rows = await self._manage("topics")
        return web.json_response([f"persistent://public/default/{row['topic']}" for row in rows])

    async def _create(self, request: web.Request) -> web.Response:
        try:
            partitions = int(await request.text())
        except ValueError:
            raise Invalid("the body is the number of partitions") from None
        settings = TopicSettings(partitions=partitions)
        await self._ask(self._controller, CreateTopic(topic=_topic(request), settings=settings))
        return web.Response(status=204)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._manage("delete_topic", topic=_topic(request), force=_force(request))
        return web.Response(status=204)

    async def _unsubscribe(self, request: web.Request) -> web.Response:
        await self._manage(
            "delete_subscription",
            topic=_topic(request),
            subscription=request.match_info["subscription"],
            force=_force(request),
        )
        return web.Response(status=204)

    async def _subscriptions(self, request: web.Request) -> web.Response:
        return web.json_response(await self._manage("subscriptions", topic=_topic(request)))

    async def _stats(self, request: web.Request) -> web.Response:
        """A topic's totals, and its subscriptions' totals with all their consumers."""
        topic = _topic(request)
        partitions = await self._rows(topic, None, Stats())
        answer = _totals(partitions)
        answer["partitions"] = {f"{topic}-partition-{row['partition']}": _totals([row]) for row in partitions}
        answer["subscriptions"] = {}
        for name in await self._manage("subscriptions", topic=topic):
            rows = await self._rows(topic, name, Stats())
            consumers = [consumer for row in rows for consumer in row["consumers"]]
            first = {key: value for key, value in rows[0].items() if isinstance(value, str | bool)}
            answer["subscriptions"][name] = {**first, **_totals(rows), "consumers": consumers}
        return web.json_response(answer)

    async def _internal_stats(self, request: web.Request) -> web.Response:
        return web.json_response(await self._rows(_topic(request), None, Stats()))

    async def _explain(self, request: web.Request) -> web.Response:
        query = request.query
        if "key" in query:
            question = Explain(key=query["key"].encode())
        elif query.get("hash", "").isdecimal():
            question = Explain(hash=int(query["hash"]))
        else:
            raise Invalid("explain wants ?key=K or ?hash=H")
        return web.json_response(await self._rows(_topic(request), request.match_info["subscription"], question))

    async def _question(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"].replace("-", "_")
        return web.json_response(await self._admin(request, verb, {}))

    async def _admin(self, request: web.Request, verb: str, arguments: dict[str, Any]) -> list[Any]:
        question = Admin(verb=verb, arguments=json.dumps(arguments))
        return await self._rows(_topic(request), request.match_info["subscription"], question)

    def _verb(self, verb: str, argument: str | None = None) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            arguments = {} if argument is None else {argument: _number(request)}
            return web.json_response(await self._admin(request, verb, arguments))

        return handle

    async def _expire(self, request: web.Request) -> web.Response:
        before = self.ports.clock.now() - _number(request) * 1000
        return web.json_response(await self._admin(request, "expire", {"before": before}))


def _guard(token: str) -> Any:
    """Host header, token, and errors as one JSON line."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.host.rpartition(":")[0] not in (LOOPBACK, "localhost"):
            return web.json_response({"reason": "ask for 127.0.0.1"}, status=421)
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.path != "/healthz" and not hmac.compare_digest(given.encode(), token.encode()):
            return web.json_response({"reason": f"a bearer token is needed; it is in {TOKEN_FILE}"}, status=401)
        try:
            return await handler(request)
        except SluiceError as error:
            status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
            return web.json_response({"reason": str(error)}, status=status)

    return guard


def _namespace(request: web.Request) -> None:
    if (request.match_info["tenant"], request.match_info["namespace"]) != ("public", "default"):
        raise NotFound("there is one namespace, public/default")


def _topic(request: web.Request) -> str:
    _namespace(request)
    check_name("topic", request.match_info["topic"])
    return request.match_info["topic"]


def _force(request: web.Request) -> bool:
    return request.query.get("force", "").lower() == "true"


def _number(request: web.Request) -> int:
    text = request.match_info["number"]
    if not text.isdecimal():
        raise Invalid(f"{text!r} is no number")
    return int(text)


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of the counters of several partitions."""
    names = [key for key, value in rows[0].items() if type(value) is int and key not in ("partition", "epoch")]
    return {name: sum(int(row.get(name, 0)) for row in rows) for name in names}


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
