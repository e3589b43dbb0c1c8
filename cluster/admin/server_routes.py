"""The admin HTTP interface: Pulsar's paths and field names, on the loopback.

    GET    /healthz                                                     is the controller there (needs no token)
    GET    /metrics, /metrics/                                          Prometheus text of every owner
    Pulsar's paths: see cluster.admin. Beside them, of /admin/v2/persistent/public/default/{topic}:
    GET    .../{topic}/subscription/{sub}/explain?key=K | pending | blocked-keys | hot-keys | delayed | parked
    POST   .../{topic}/subscription/{sub}/delayed/cancel | delayed/reschedule; the body says which, as
           `cancel_delayed` of the client has it: {"message_id": [...]}, {"key": K, "due_to": ms, "deliver_at": ms}
    POST   .../{topic}/subscription/{sub}/parked/redrive | parked/discard; the body says which keys:
           {"key": K} or {"everything": true}, and for discard "only_failed": true
    POST   .../{topic}/erase; the body is {"key": K}: its messages are forgotten
    GET    .../{topic}/erase; how that stands, a row a partition

    GET    /watch                                                       the live page (needs no token: it holds nothing)
    GET    /watch/events?topic=T&subscription=S                         what the page shows, as server-sent events
    GET    /watch/past?topic=T&subscription=S&at=MS                     what it showed then; &key=K or &hash=H explains
    GET    /watch/subscriptions                                         what there is to look at
    GET    /watch/cluster                                               the picture of a cluster without any

Everything but /healthz and the files of the page wants `Authorization: Bearer <token>`; the token is the content of the
data folder's `admin-token` (mode 0600), which is made when it is missing. Where rights are enforced, the credentials of
Pulsar's clients open it as well, for what their roles may do (cluster.admin.rights). JSON in and out, no CORS,
small bodies only, no pages of other origins (cluster.http.guard), and no connection that is silent for long
(cluster.http.server).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from msgspec import structs

from sluice.actors.messages import DescribeCluster, Erase, Explain, ListDelayed, Ping, Stats, shown
from sluice.actors.policies.permission_cache import PermissionCache
from sluice.actors.ports import Ports, Unknown
from sluice.actors.runtime.host import Actor
from sluice.cluster.admin.broker import CALL_TIMEOUT, Broker, named, subscription_of, topic_of
from sluice.cluster.admin.paths import pulsar_routes
from sluice.cluster.admin.rights import check_rights, write_down
from sluice.cluster.admin.subscriptions import SUBSCRIPTION, Subscriptions
from sluice.cluster.admin.topics import TOPIC
from sluice.cluster.base.audit import AuditLog, AuditTail
from sluice.cluster.base.tokens import ensure_token
from sluice.cluster.client.delayed import DelayedChanges
from sluice.cluster.gateway.addresses import Addresses
from sluice.cluster.gateway.authentication import authorization_of, in_header
from sluice.cluster.gateway.renewal import RenewedAuthentication
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE, RoleGuard, guard
from sluice.cluster.http.responses import large
from sluice.cluster.http.server import CONNECTION_SECONDS, HttpServer, body_of, number_of, object_in
from sluice.cluster.watch.http import PAGE_PATHS, Recordings, WatchHttp
from sluice.storage.errors import Corrupt, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.format.hashing import key_bytes, masked_hash

OPEN_PATHS = ("/healthz", *PAGE_PATHS)


class AdminHttp(Actor):
    """Serves the interface from the controller's process. port 0 chooses one and writes it to `admin-port`.

    connection_seconds: how long a client may keep a connection, or take to send a body. settings: those that say which
    roles there are; without them the token alone opens it.
    """

    outlives = (SluiceError,)  # of one connection; the others go on

    def __init__(
        self,
        ports: Ports,
        *,
        controller: str,
        data_dir: Path,
        port: int,
        connection_seconds: float = CONNECTION_SECONDS,
        settings: Mapping[str, Any] | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        super().__init__(ports)
        self._controller = controller
        process = controller.partition("/")[0]
        authorization = authorization_of(settings or {})
        self._permissions = None if authorization is None else PermissionCache(ports, authorization)
        self._clients = RenewedAuthentication(settings if authorization is not None and settings else {})
        self._broker = Broker(ports, controller, here=f"{process}/pulsar", permissions=self._permissions)
        self._subscriptions = Subscriptions(self._broker)
        self._data_dir = data_dir
        self._wanted_port = port
        self._connection_seconds = connection_seconds
        audits = partial(AuditTail, data_dir) if self._permissions is not None else None
        self._watch = WatchHttp(ports, self, audits, recordings)
        self._server: HttpServer | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen on the loopback. Raises Unavailable if the port is in use, Invalid if the token file holds none."""
        token = ensure_token(self._data_dir / TOKEN_FILE)
        others = None
        if self._permissions is not None:
            written = partial(write_down, AuditLog(self._data_dir, "admin"))
            others = RoleGuard(self._roles, partial(check_rights, self._permissions), written)
        check = guard(token, OPEN_PATHS, f"is in {TOKEN_FILE}", others)
        self.ports.spawn(self._clients.run(), "renewal")
        self._server = HttpServer(self.ports, self._routes(), check, connection_seconds=self._connection_seconds)
        try:
            self.port = await self._server.listen(self._wanted_port)
        except Unavailable as error:
            raise Unavailable(f"the admin {error}") from error
        (self._data_dir / PORT_FILE).write_text(str(self.port))

    async def stop(self, reason: str) -> None:
        await super().stop(reason)
        if self._server is not None:
            await self._server.close()

    async def _roles(self, request: web.Request) -> Sequence[str]:
        """Return the roles of a caller whose credentials are not this interface's token. Raises Invalid, Overloaded."""
        if self._clients.authenticate is None:
            raise Invalid("nobody else is known here")
        return (await self._clients.authenticate(*in_header(request.headers.get("Authorization", "")))).roles

    def _routes(self) -> list[web.RouteDef]:
        verbs = "{verb:pending|blocked-keys|hot-keys|assignments|delayed|parked}"
        return [
            web.get("/healthz", self._health),
            *self._watch.routes(),
            web.get(f"{SUBSCRIPTION}/explain", large(self._explain)),
            web.get(f"{SUBSCRIPTION}/{verbs}", large(self._question)),
            web.post(f"{SUBSCRIPTION}/delayed/{{what:cancel|reschedule}}", self._change_delayed),
            web.post(f"{SUBSCRIPTION}/parked/{{what:redrive|discard}}", self._decide_parked),
            web.post(f"{TOPIC}/erase", self._erase),
            web.get(f"{TOPIC}/erase", large(self._erase_status)),
            *pulsar_routes(self._broker, Addresses()),
        ]

    # -- what the live page asks (cluster.watch.feed.Owners) ------------------------------------------------------

    async def dispatchers(self, topic: str, subscription: str) -> list[dict[str, Any] | None]:
        return await self._broker.some(topic, subscription, Stats())

    async def topics(self, topic: str) -> list[dict[str, Any] | None]:
        return await self._broker.some(topic, None, Stats())

    async def delayed(self, topic: str, subscription: str) -> list[dict[str, Any] | None]:
        return await self._broker.some(topic, subscription, ListDelayed())

    async def status(self) -> dict[str, Any] | None:
        try:
            return dict(shown(await self._broker.ask_controller(DescribeCluster(), patience=0)))
        except Unavailable:
            return None

    async def subscriptions(self) -> dict[str, list[str]]:
        """The subscriptions of every topic; none of one that goes just now, or whose record is damaged."""
        found: dict[str, list[str]] = {}
        for topic in await self._broker.topics():
            found[topic] = []
            with contextlib.suppress(NotFound, Corrupt):
                found[topic] = await self._broker.subscriptions(topic)
        return found

    # -- routes ---------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        reply = await self.ports.net.call(self._controller, Ping(), CALL_TIMEOUT)
        if isinstance(reply, Unknown):
            return web.Response(status=503, text="the controller does not answer\n")
        return web.Response(text="ok\n")

    async def _explain(self, request: web.Request) -> web.Response:
        """Ask every partition about a key, because clients choose partitions in their own ways; `home` marks the
        partition that Sluice's own hash chooses.
        """
        query, which = request.query, named(request)
        if "key" in query:
            key = key_bytes(query["key"])
            home = masked_hash(key) % (await self._broker.settings(which)).partitions
            answers = await self._broker.replies(which, subscription_of(request), Explain(key=key))
            return web.json_response([{**shown(reply), "home": at == home} for at, reply in answers.items()])
        if "hash" not in query:
            raise Invalid("explain needs ?key=K or ?hash=H")
        question = Explain(hash=number_of(query["hash"]))
        return web.json_response(await self._broker.rows(which, subscription_of(request), question))

    async def _question(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"].replace("-", "_")
        return web.json_response(await self._subscriptions.admin(request, verb, {}))

    async def _change_delayed(self, request: web.Request) -> web.Response:
        topic, subscription = topic_of(request), subscription_of(request)
        chosen = await self._choice(request)
        changes = DelayedChanges(self._broker.directory, lambda: self._broker.subscriptions(topic))
        verb = f"{request.match_info['what']}_delayed"
        return web.json_response(await changes.change(topic, subscription, verb, chosen))

    async def _decide_parked(self, request: web.Request) -> web.Response:
        return web.json_response(
            await self._subscriptions.admin(request, request.match_info["what"], await self._choice(request))
        )

    async def _erase(self, request: web.Request) -> web.Response:
        match object_in(await body_of(request), "the body says which key"):
            case {"key": str(text), **rest} if text and not rest:
                key = key_bytes(text)
            case _:
                raise Invalid('the body is {"key": K}, whose messages are to be forgotten')
        return await self._erasing(request, Erase(key=key))

    async def _erase_status(self, request: web.Request) -> web.Response:
        return await self._erasing(request, Erase())

    async def _erasing(self, request: web.Request, asked: Erase) -> web.Response:
        replies = await self._broker.replies(named(request), None, asked)
        return web.json_response([{"partition": at, **structs.asdict(reply)} for at, reply in replies.items()])

    async def _choice(self, request: web.Request) -> dict[str, Any]:
        """The body as a JSON object. Raises Invalid."""
        complaint = 'the body is JSON that says which messages, for example {"key": "invoice-7"}'
        return object_in(await body_of(request), complaint)
