"""The admin HTTP interface: Pulsar's paths and field names, on the loopback.

    GET    /healthz                                                     is the controller there (needs no token)
    GET    /metrics                                                     Prometheus text of every owner
    GET    /admin/v2/persistent/public/default                          topics; of several partitions: .../partitioned
    GET    /admin/v2/namespaces/public/default/topics                   topics, partitions by their names
    PUT    /admin/v2/persistent/public/default/{topic}                  create, with one partition
    GET    /admin/v2/persistent/public/default/{topic}/partitions       their number; 0 is a topic of one
    PUT    /admin/v2/persistent/public/default/{topic}/partitions       create; the body is the number of partitions
    DELETE /admin/v2/persistent/public/default/{topic}?force=true
    GET    .../{topic}/stats | partitioned-stats | internalStats | subscriptions
    GET    .../{topic}/subscription/{sub}/explain?key=K | pending | blocked-keys | hot-keys | delayed | parked
    POST   .../{topic}/subscription/{sub}/skip/{n} | skip_all | resetcursor/{ms} | expireMessages/{seconds}
    POST   .../{topic}/subscription/{sub}/delayed/cancel | delayed/reschedule; the body says which, as
           `cancel_delayed` of the client has it: {"message_id": [...]}, {"key": K, "due_to": ms, "deliver_at": ms}
    POST   .../{topic}/subscription/{sub}/parked/redrive | parked/discard; the body says which keys:
           {"key": K} or {"everything": true}, and for discard "only_failed": true
    DELETE .../{topic}/subscription/{sub}?force=true
    Schemas of topics, and PUT .../{topic}/subscription/{sub}: see cluster.pulsar.admin.

    GET    /watch                                                       the live page (needs no token: it holds nothing)
    GET    /watch/events?topic=T&subscription=S                         what the page shows, as server-sent events
    GET    /watch/subscriptions                                         what there is to look at

Everything but /healthz and the files of the page wants `Authorization: Bearer <token>`; the token is the content of the
data folder's `admin-token` (mode 0600), which is made when it is missing. JSON in and out, no CORS, small bodies only,
and a Host header that is not the loopback's is refused, so that a page in a browser cannot reach it by a made-up name.

A connection is closed when it is older than CONNECTION_SECONDS and no request is being answered on it, whether or not
one has come: clients that send half a request, or none, hold nothing for long.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from actors.actor import Actor
from actors.directory import Directory
from actors.messages import (
    CreateTopic,
    DescribeCluster,
    Explain,
    ListDelayed,
    ListSubscriptions,
    ListTopics,
    Ping,
    RemoveSubscription,
    RemoveTopic,
    Stats,
    TopicSettings,
    request_of,
    shown,
)
from actors.names import check_name
from actors.ports import Ports, Unknown
from actors.pulsar.topics import full_name, full_names
from actors.wire import Request
from cluster.delayed import DelayedChanges
from cluster.environment import LOOPBACK
from cluster.http_guard import Handler, guard
from cluster.metrics import Distribution, Metric, distributions, series
from cluster.pulsar.admin import PulsarAdmin
from cluster.tokens import ensure_token
from cluster.watch.http import PAGE_PATHS, WatchHttp
from storage.errors import Fenced, Invalid, NotFound, SluiceError, Unavailable

TOKEN_FILE = "admin-token"
PORT_FILE = "admin-port"
CALL_TIMEOUT = 15_000
CONNECTION_SECONDS = 30.0
MAX_BODY = 64 * 1024
MAX_NUMBER = 2**63 - 1
BASE = "/admin/v2/persistent/{tenant}/{namespace}"
OPEN_PATHS = ("/healthz", *PAGE_PATHS)
_SHOWN = 40


class AdminHttp(Actor):
    """Serves the interface from the controller's process. port 0 chooses one and writes it to `admin-port`.

    connection_seconds: how long a client may keep a connection, or take to send a body.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        controller: str,
        data_dir: Path,
        port: int,
        connection_seconds: float = CONNECTION_SECONDS,
    ) -> None:
        super().__init__(ports)
        self._controller = controller
        self._directory = Directory(ports, controller)
        self._data_dir = data_dir
        self._wanted_port = port
        self._connection_seconds = connection_seconds
        self._watch = WatchHttp(ports, self)
        self._pulsar = PulsarAdmin(
            ports, self._directory, body=self._body, subscriptions=self._subscriptions_of, ask=self._ask
        )
        self._runner: web.AppRunner | None = None
        self._answering: list[Any] = []
        self.port = 0

    async def start(self) -> None:
        """Listen on the loopback. Raises Unavailable if the port is in use, Invalid if the token file holds none."""
        token = ensure_token(self._data_dir / TOKEN_FILE)
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
        self.ports.spawn(self._close_old_connections(self._runner), "connections")

    async def _close_old_connections(self, runner: web.AppRunner) -> None:
        """aiohttp waits without limit for a first request, and for the rest of one."""
        known: list[Any] = []
        while (server := runner.server) is not None:
            await asyncio.sleep(self._connection_seconds)
            present = server.connections
            for connection in present:
                if connection in known and connection not in self._answering:
                    connection.force_close()
            known = present

    async def stop(self, reason: str) -> None:
        """Close the port."""
        await super().stop(reason)
        if self._runner is not None:
            await self._runner.cleanup()

    def application(self, token: str) -> web.Application:
        """The routes behind the guard."""
        app = web.Application(
            middlewares=[self._noted, guard(token, OPEN_PATHS, f"is in {TOKEN_FILE}")], client_max_size=MAX_BODY
        )
        topic = f"{BASE}/{{topic}}"
        subscription = f"{topic}/subscription/{{subscription}}"
        app.add_routes(
            [
                web.get("/healthz", self._health),
                *self._watch.routes(),
                *self._pulsar.routes(subscription),
                web.get("/metrics", self._metrics),
                web.get(BASE, self._topics),
                web.get(f"{BASE}/partitioned", self._partitioned),
                web.get("/admin/v2/namespaces/{tenant}/{namespace}/topics", self._full_names),
                web.put(topic, self._create_plain),
                web.get(f"{topic}/partitions", self._partitions),
                web.put(f"{topic}/partitions", self._create),
                web.delete(topic, self._delete),
                web.delete(f"{topic}/partitions", self._delete),
                web.get(f"{topic}/stats", self._stats),
                web.get(f"{topic}/partitioned-stats", self._stats),
                web.get(f"{topic}/internalStats", self._internal_stats),
                web.get(f"{topic}/subscriptions", self._subscriptions),
                web.delete(subscription, self._unsubscribe),
                web.get(f"{subscription}/explain", self._explain),
                web.get(
                    f"{subscription}/{{verb:pending|blocked-keys|hot-keys|assignments|delayed|parked}}", self._question
                ),
                web.post(f"{subscription}/delayed/{{what:cancel|reschedule}}", self._change_delayed),
                web.post(f"{subscription}/parked/{{what:redrive|discard}}", self._decide_parked),
                web.post(f"{subscription}/skip/{{number}}", self._verb("skip", "messages")),
                web.post(f"{subscription}/skip_all", self._verb("clear_backlog")),
                web.post(f"{subscription}/resetcursor/{{number}}", self._verb("seek", "time")),
                web.post(f"{subscription}/expireMessages/{{number}}", self._expire),
            ]
        )
        return app

    @web.middleware
    async def _noted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Remember the connections on which a request is being answered."""
        self._answering.append(request.protocol)
        try:
            return await handler(request)
        finally:
            self._answering.remove(request.protocol)

    # -- asking the actors ----------------------------------------------------------------------------------------

    async def _ask(self, address: str, request: Request[Any]) -> Any:
        reply = await self.ports.net.call(address, request, CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            await self._directory.suspect(address)
            raise Unavailable(f"{address} does not answer: {reply.reason}")
        return reply

    async def _subscriptions_of(self, topic: str) -> list[str]:
        return list((await self._ask(self._controller, ListSubscriptions(topic=topic))).names)

    async def _topic_names(self) -> list[str]:
        return list((await self._ask(self._controller, ListTopics())).topics)

    async def _owners(self, topic: str, subscription: str | None = None) -> list[str]:
        count = (await self._directory.settings(topic)).partitions
        if subscription is None:
            return [await self._directory.topic(topic, partition) for partition in range(count)]
        return [await self._directory.dispatcher(topic, partition, subscription) for partition in range(count)]

    async def _rows(self, topic: str, subscription: str | None, request: Request[Any]) -> list[Any]:
        return [shown(await self._ask(address, request)) for address in await self._owners(topic, subscription)]

    # -- what the live page asks (cluster.watch.feed.Owners) ------------------------------------------------------

    async def _some(self, topic: str, subscription: str | None, request: Request[Any]) -> list[dict[str, Any] | None]:
        """The answers of all owners, asked at once; None of those that do not answer now."""

        async def one(address: str) -> dict[str, Any] | None:
            try:
                return dict(shown(await self._ask(address, request)))
            except (Unavailable, Fenced):
                return None

        return list(await asyncio.gather(*(one(address) for address in await self._owners(topic, subscription))))

    async def dispatchers(self, topic: str, subscription: str) -> list[dict[str, Any] | None]:
        """See Owners."""
        return await self._some(topic, subscription, Stats())

    async def topics(self, topic: str) -> list[dict[str, Any] | None]:
        """See Owners."""
        return await self._some(topic, None, Stats())

    async def delayed(self, topic: str, subscription: str) -> list[dict[str, Any] | None]:
        """See Owners."""
        return await self._some(topic, subscription, ListDelayed())

    async def status(self) -> dict[str, Any] | None:
        """See Owners."""
        try:
            return dict(shown(await self._ask(self._controller, DescribeCluster())))
        except Unavailable:
            return None

    async def subscriptions(self) -> dict[str, list[str]]:
        """The subscriptions of every topic."""
        return {topic: await self._subscriptions_of(topic) for topic in await self._topic_names()}

    # -- routes ---------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        reply = await self.ports.net.call(self._controller, Ping(), CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            return web.Response(status=503, text="the controller does not answer\n")
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        lines: dict[str, list[str]] = {}
        for row in shown(await self._ask(self._controller, DescribeCluster()))["actors"]:
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
                known = lines.setdefault(metric.name, _head(metric, "gauge"))
                known.append(f"{metric.name}{_labels({**labels, **extra})} {value:g}")
            for seen in distributions(stats):
                known = lines.setdefault(seen.metric.name, _head(seen.metric, "histogram"))
                known += _histogram(seen, {**labels, **seen.labels})
        body = "\n".join(line for name in sorted(lines) for line in lines[name])
        return web.Response(text=body + "\n", content_type="text/plain")

    async def _topics(self, request: web.Request) -> web.Response:
        _namespace(request)
        return web.json_response([f"persistent://public/default/{topic}" for topic in await self._topic_names()])

    async def _partitioned(self, request: web.Request) -> web.Response:
        _namespace(request)
        known = (await self._ask(self._controller, ListTopics())).topics
        return web.json_response([full_name(name) for name, settings in known.items() if settings.partitions > 1])

    async def _full_names(self, request: web.Request) -> web.Response:
        _namespace(request)
        return web.json_response(full_names((await self._ask(self._controller, ListTopics())).topics))

    async def _partitions(self, request: web.Request) -> web.Response:
        count = (await self._directory.settings(_topic(request))).partitions
        return web.json_response({"partitions": count if count > 1 else 0})

    async def _create_plain(self, request: web.Request) -> web.Response:
        await self._ask(self._controller, CreateTopic(topic=_topic(request), settings=TopicSettings()))
        return web.Response(status=204)

    async def _body(self, request: web.Request) -> str:
        """The body as text, whatever charset the client names. Raises Invalid if it does not come."""
        try:
            async with asyncio.timeout(self._connection_seconds):
                return (await request.read()).decode("utf-8", "replace")
        except TimeoutError:
            raise Invalid(f"the body did not come within {self._connection_seconds:g} s") from None

    async def _create(self, request: web.Request) -> web.Response:
        partitions = _number(await self._body(request), "the body is the number of partitions, not {}")
        settings = TopicSettings(partitions=partitions)
        await self._ask(self._controller, CreateTopic(topic=_topic(request), settings=settings))
        return web.Response(status=204)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._ask(self._controller, RemoveTopic(topic=_topic(request), force=_force(request)))
        return web.Response(status=204)

    async def _unsubscribe(self, request: web.Request) -> web.Response:
        topic, subscription = _topic(request), _subscription(request)
        remove = RemoveSubscription(topic=topic, subscription=subscription, force=_force(request))
        await self._ask(self._controller, remove)
        return web.Response(status=204)

    async def _subscriptions(self, request: web.Request) -> web.Response:
        return web.json_response(await self._subscriptions_of(_topic(request)))

    async def _stats(self, request: web.Request) -> web.Response:
        """A topic's totals, and its subscriptions' totals with all their consumers."""
        topic = _topic(request)
        partitions = await self._rows(topic, None, Stats())
        answer = _totals(partitions)
        answer["partitions"] = {f"{topic}-partition-{row['partition']}": _totals([row]) for row in partitions}
        answer["subscriptions"] = {}
        for name in await self._subscriptions_of(topic):
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
            question = Explain(key=query["key"].encode("utf-8", "surrogateescape"))
        elif "hash" in query:
            question = Explain(hash=_number(query["hash"]))
        else:
            raise Invalid("explain wants ?key=K or ?hash=H")
        return web.json_response(await self._rows(_topic(request), _subscription(request), question))

    async def _question(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"].replace("-", "_")
        return web.json_response(await self._admin(request, verb, {}))

    async def _admin(self, request: web.Request, verb: str, arguments: dict[str, Any]) -> list[Any]:
        return await self._rows(_topic(request), _subscription(request), request_of(verb, arguments))

    def _verb(self, verb: str, argument: str | None = None) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            arguments = {} if argument is None else {argument: _number(request.match_info["number"])}
            return web.json_response(await self._admin(request, verb, arguments))

        return handle

    async def _change_delayed(self, request: web.Request) -> web.Response:
        topic, subscription = _topic(request), _subscription(request)
        chosen = await self._choice(request)
        changes = DelayedChanges(self.ports, self._directory, lambda: self._subscriptions_of(topic))
        verb = f"{request.match_info['what']}_delayed"
        return web.json_response(await changes.change(topic, subscription, verb, chosen))

    async def _decide_parked(self, request: web.Request) -> web.Response:
        return web.json_response(await self._admin(request, request.match_info["what"], await self._choice(request)))

    async def _choice(self, request: web.Request) -> dict[str, Any]:
        """The body as a JSON object. Raises Invalid."""
        try:
            chosen = json.loads(await self._body(request))
        except ValueError:
            chosen = None
        if not isinstance(chosen, dict):
            raise Invalid('the body is JSON that says which messages, for example {"key": "invoice-7"}')
        return chosen

    async def _expire(self, request: web.Request) -> web.Response:
        before = self.ports.clock.now() - _number(request.match_info["number"]) * 1000
        return web.json_response(await self._admin(request, "expire", {"before": before}))


def _namespace(request: web.Request) -> None:
    if (request.match_info["tenant"], request.match_info["namespace"]) != ("public", "default"):
        raise NotFound("there is one namespace, public/default")


def _topic(request: web.Request) -> str:
    _namespace(request)
    check_name("topic", request.match_info["topic"])
    return request.match_info["topic"]


def _subscription(request: web.Request) -> str:
    return check_name("subscription", request.match_info["subscription"])


def _force(request: web.Request) -> bool:
    return request.query.get("force", "").lower() == "true"


def _number(text: str, complaint: str = "{} is no number") -> int:
    """Digits as a number that fits into 64 bits. Raises Invalid with the beginning of the text."""
    digits = text.strip()
    if digits.isascii() and digits.isdecimal() and len(digits) < _SHOWN and int(digits) <= MAX_NUMBER:
        return int(digits)
    raise Invalid(complaint.format(repr(text) if len(text) < _SHOWN else f"{text[:_SHOWN]!r}..."))


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of the counters of several partitions."""
    names = [key for key, value in rows[0].items() if type(value) is int and key not in ("partition", "epoch")]
    return {name: sum(int(row.get(name, 0)) for row in rows) for name in names}


def _head(metric: Metric, kind: str) -> list[str]:
    return [f"# HELP {metric.name} {metric.description}", f"# TYPE {metric.name} {kind}"]


def _histogram(seen: Distribution, labels: dict[str, str]) -> list[str]:
    """The lines of one histogram: in Prometheus' text each step counts those below it as well."""
    name, below, lines = seen.metric.name, 0, []
    for bound, count in zip((*(f"{bound:g}" for bound in seen.bounds), "+Inf"), seen.counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {below}")
    return [*lines, f"{name}_sum{_labels(labels)} {seen.sum:g}", f"{name}_count{_labels(labels)} {below}"]


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(label)}"' for name, label in labels.items()) + "}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
