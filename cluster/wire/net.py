"""The Net port: requests go over connections between the processes themselves (cluster.wire).

Ray says once where a process of a name listens; a new incarnation has a new name. After that no request goes through
Ray: a call of a Ray actor costs ten times as much as one over a socket, most of it processor time. In a cluster of one
process, which has no Ray, the caller is given the address in another way.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from sluice.actors.ports import Address, Timer, Unknown
from sluice.actors.ports.wire import Blob, Packed, Reply, Request, is_value, pack
from sluice.actors.runtime.host import Answer, Message, OnAnswer, opened, outcome_of
from sluice.actors.runtime.waiting import SharedTimers
from sluice.cluster.base.real import SHARED_CONTEXT, RealClock, StructuredLog
from sluice.cluster.node.environment import CONTROLLER_HOST, NAMESPACE, is_controller_host, own_address
from sluice.cluster.wire.controller_search import ControllerSearch
from sluice.cluster.wire.endpoint import Endpoint, SocketFolder, this_machine, this_network
from sluice.cluster.wire.listener import Listener, RequestHandler
from sluice.cluster.wire.payloads import SHARE_FROM, SharedPayload
from sluice.cluster.wire.peers import Find, Peers, late
from sluice.cluster.wire.tls import TlsFiles, files_of, trust_of
from sluice.storage.errors import SluiceError, Unavailable
from sluice.storage.format.frame import Buffer

log = StructuredLog("net")
_ASKING = ThreadPoolExecutor(4, "find")
"""The threads that ask Ray. It does not answer while its head is away, and no other work may wait for that."""

R = TypeVar("R", bound=Reply)

SHARED_FROM_MS = 3_000
"""A time-out of this many ms or more may end a quarter of a second early."""
CUT_FROM = 32 * 1024
"""Bytes from which a run is cut for a far consumer. To cut a smaller one costs more than to send it whole."""
CONTROLLER_NAME = "controller"
CONTROLLER = f"{CONTROLLER_HOST}/{CONTROLLER_NAME}"
"""The address of the controller, wherever it is."""
FIND_AGAIN_S, FIND_ASK_MS = 1.0, 1_500
FIND_FOR_OTHERS_S = 10.0
"""Seconds for which a process asks Ray on behalf of another one, which has given up by then or asks again."""
NAMING = "naming"
"""The name at which the controller's process says where others listen. The process itself answers, no actor."""
MOST_ENDPOINTS = 4_096
NODE_ADDRESS = "node"
"""As a bind address: the one by which Ray knows this machine."""


class Listening(Reply):
    """The place where a process listens. Without an endpoint: why it is unknown, and whether the process has ended."""

    endpoint: Endpoint | None = None
    reason: str = ""
    gone: bool = False


class Whereabouts(Request[Listening]):
    """A question for the endpoint of the process with this name."""

    reply: ClassVar[type[Reply]] = Listening
    host: str


class LocalActors(Protocol):
    """The actors of this process, which are called without a connection."""

    name: str

    def has(self, address: Address) -> bool:
        """Whether the actor at an address runs here."""

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        """Answer a request. on_answer: called once, maybe before this returns."""


class DirectNet:
    """Calls peers by `host/actor`. Belongs to one event loop.

    finder and token: who says where a process listens, and what proves that one belongs to the cluster; Ray's if they
    are not given. tls: the files with which every machine is spoken to; without them those that a process names.
    controller: a process that knows who the controller is. Raises Invalid if one of these files cannot be used.
    """

    def __init__(
        self,
        local: LocalActors | None = None,
        finder: Find | None = None,
        token: bytes | None = None,
        tls: TlsFiles | None = None,
        controller: str = CONTROLLER_HOST,
    ) -> None:
        known = cluster_token() if token is None else token
        self._local = local
        self._finder = finder or find
        self.calls = self.lookups = 0
        """Requests that went to other processes, and how often Ray was asked where one is."""
        self._peers = Peers(self.find, lambda endpoint: endpoint.secret.encode() or known, trust_of(tls))
        self._controllers = ControllerSearch(controller, self.call, None if finder else candidates)
        self._endpoints: dict[str, Endpoint] = {}
        """Where each process was last said to listen, for when nobody can be asked."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Questions that could not be sent at once."""
        self._clock, self._timers = RealClock(), SharedTimers()

    def call(self, to: Address, request: Request[R], timeout: int) -> Coroutine[Any, Any, R | Unknown]:
        if to == CONTROLLER and not self._is_here(to):
            return self._controllers.call(
                lambda host, left: self._call(f"{host}/{CONTROLLER_NAME}", request, left), timeout
            )
        return self._call(to, request, timeout)

    def ask(
        self, to: Address, request: Request[R], timeout: int, on_answer: Callable[[R | Unknown | SluiceError], None]
    ) -> None:
        """See actors.ports.Net. A task is made only where a connection must be opened, or has no room."""
        local, (host, _, actor) = self._local, to.partition("/")
        if local is not None and host == local.name:
            question = _Question(request, on_answer)
            question.timer = self._deadline(timeout, partial(question.late, to, timeout))
            local.accept(actor, type(request).__name__, _within(request), question.answer)
            return
        connection = None if to == CONTROLLER else self._peers.open_to(host)
        if connection is None:
            task = asyncio.get_running_loop().create_task(
                self._ask_later(to, request, timeout, on_answer), context=SHARED_CONTEXT.context
            )
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
            return
        question = _Question(request, on_answer)
        try:
            number, future = connection.ask(_route(actor, request), pack(request))
        except SluiceError as error:
            question.finish(error)
            return
        self.calls += 1
        question.timer = self._deadline(timeout, partial(question.late, to, timeout))
        question.over = partial(connection.discard, number)
        future.add_done_callback(question.done, context=SHARED_CONTEXT.context)

    async def _ask_later(
        self, to: Address, request: Request[R], timeout: int, on_answer: Callable[[R | Unknown | SluiceError], None]
    ) -> None:
        outcome: R | Unknown | SluiceError
        try:
            outcome = await self.call(to, request, timeout)
        except SluiceError as error:
            outcome = error
        on_answer(outcome)

    def _is_here(self, to: Address) -> bool:
        return self._local is not None and self._local.has(to)

    def _call(self, to: Address, request: Request[R], timeout: int) -> Coroutine[Any, Any, R | Unknown]:
        """No coroutine around one of these: with ten thousand topics twice as many calls wait, mostly for news."""
        local, host = self._local, to.partition("/")[0]
        if local is not None and host == local.name:
            return self._call_here(local, to, request, timeout)
        return self._call_peer(host, to, request, timeout)

    async def _call_peer(self, host: str, to: Address, request: Request[R], timeout: int) -> R | Unknown:
        self.calls += 1
        route = _route(to.partition("/")[2], request)
        try:
            return opened(request, await self._peers.call(host, route, pack(request), timeout / 1000))
        except TimeoutError:
            return _no_answer(to, request, timeout)

    async def _call_here(self, local: LocalActors, to: Address, request: Request[R], timeout: int) -> R | Unknown:
        """Ask an actor of this process. It goes on with its work when the caller has given up."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        timer = self._deadline(timeout, partial(late, answered))
        local.accept(to.partition("/")[2], type(request).__name__, _within(request), partial(_settle, answered))
        try:
            answer = await answered
        except TimeoutError:
            return _no_answer(to, request, timeout)
        finally:
            timer.cancel()
        return opened(request, answer.copied() if isinstance(answer, Packed) else answer)

    def _deadline(self, milliseconds: int, call: Callable[[], object]) -> Timer:
        """Call this when no answer came in time, which is rare. Long waits share timers."""
        if milliseconds < SHARED_FROM_MS:
            return self._clock.timer(milliseconds, call)
        return self._timers.timer(self._clock, milliseconds, call)

    async def find(self, host: str) -> Endpoint | Unknown:
        """Return the endpoint of a process.

        If Ray does not answer in time, or cannot, this is the endpoint that it gave last, because a new process has a
        new name: where nobody listens there any more the process has ended, which Ray may notice a minute later.
        Without an earlier one the controller's process is asked.
        """
        return await self._found(host, self._find_otherwise)

    async def find_for_others(self, host: str) -> Endpoint | Unknown:
        """Return the same to another process, and ask no third one. Else processes would ask each other, and
        themselves, again and again for as long as Ray is silent.
        """
        return await self._found(host, _await_ray)

    async def _found(
        self, host: str, otherwise: Callable[[str, asyncio.Future[Endpoint | Unknown]], Awaitable[Endpoint | Unknown]]
    ) -> Endpoint | Unknown:
        """otherwise: finds out, beside Ray, what Ray does not say in time and was never said."""
        self.lookups += 1
        asking = asyncio.ensure_future(self._finder(host))
        try:
            found = await asyncio.wait_for(asyncio.shield(asking), FIND_AGAIN_S)
        except TimeoutError:
            if (known := self._endpoints.get(host)) is not None:
                return known
            found = await otherwise(host, asking)
        finally:
            asking.cancel()
        if isinstance(found, Unknown) and not found.gone:
            return self._endpoints.get(host, found)
        if isinstance(found, Endpoint):
            self._endpoints.pop(host, None)
            self._endpoints[host] = found
            if len(self._endpoints) > MOST_ENDPOINTS:
                del self._endpoints[next(iter(self._endpoints))]
        return found

    async def _find_otherwise(self, host: str, asking: asyncio.Future[Endpoint | Unknown]) -> Endpoint | Unknown:
        """Ask the controller's process, as long as Ray does not answer; unless that is this one."""
        while not asking.done() and not is_controller_host(host):
            keeper = self._controllers.host
            if self._local is None or keeper != self._local.name:
                told = await self._call(f"{keeper}/{NAMING}", Whereabouts(host=host), FIND_ASK_MS)
                if not isinstance(told, Unknown) and told.endpoint is not None:
                    return told.endpoint
            await asyncio.wait([asking], timeout=FIND_AGAIN_S)
        return await asking

    async def share(self, *parts: Buffer) -> Blob:
        """See actors.ports.Net. A payload that came from another process is passed on as it came."""
        size = sum(map(len, parts))
        shared: SharedPayload | None = None
        if size >= SHARE_FROM:
            shared = (SharedPayload.behind(parts[0]) if len(parts) == 1 else None) or SharedPayload.create(*parts)
        if len(parts) == 1:
            return Blob(parts[0], shared)
        return Blob(b"".join(parts)) if shared is None else Blob(handle=shared, size=size)

    async def fetch(self, blob: Blob) -> memoryview | None:
        if blob.data is None and isinstance(blob.handle, SharedPayload) and blob.handle.size == blob.size:
            try:
                blob.data = blob.handle.view()
            except OSError as error:
                log("payload_lost", bytes=blob.size, error=str(error))
        return blob.data

    def rows_from(self, to: Address) -> int:
        local, host = self._local, to.partition("/")[0]
        here = local is not None and host == local.name
        return CUT_FROM if not here and self._peers.is_far(host) else 0

    def part(self, host: str) -> None:
        """Forget how a process is reached: the next call asks where it is."""
        self._peers.part(host)

    def close(self) -> None:
        self._controllers.close()
        self._peers.close()


class _Question(Generic[R]):
    """One question that is asked without a task. over: called when nobody waits for the answer any more."""

    __slots__ = ("_on_answer", "_request", "_settled", "over", "timer")

    def __init__(self, request: Request[R], on_answer: Callable[[Any], None]) -> None:
        self._request, self._on_answer = request, on_answer
        self._settled = False
        self.timer: Timer | None = None
        self.over: Callable[[], None] | None = None

    def answer(self, answer: Answer) -> None:
        """The answer of an actor of this process."""
        if isinstance(answer, Reply):
            self.finish(answer)
        elif not self._settled:
            self.finish(outcome_of(self._request, answer.copied() if isinstance(answer, Packed) else answer))

    def done(self, future: asyncio.Future[Answer]) -> None:
        """The answer of another process."""
        if not self._settled and not future.cancelled():
            self.finish(outcome_of(self._request, future.result()))

    def late(self, to: Address, timeout: int) -> None:
        """The time for an answer is over."""
        self.finish(_no_answer(to, self._request, timeout))

    def finish(self, outcome: Reply | Unknown | SluiceError) -> None:
        """Tell the outcome, once. In a turn of its own: an error of the asker is not one of the actor that answers."""
        if not self._settled:
            self._settled = True
            if self.timer is not None:
                self.timer.cancel()
            if self.over is not None:
                self.over()
            asyncio.get_running_loop().call_soon(self._on_answer, outcome, context=SHARED_CONTEXT.context)


def _within(request: Request[Any]) -> Message:
    """A request as it goes to an actor of this process: through the codec, unless it can never change."""
    return request if is_value(type(request)) else pack(request).copied()


def _route(actor: str, request: Request[Any]) -> bytes:
    return f"{actor} {type(request).__name__}".encode()


def _settle(answered: asyncio.Future[Answer], answer: Answer) -> None:
    if not answered.done():
        answered.set_result(answer)


def _no_answer(to: Address, request: Request[Any], timeout: int) -> Unknown:
    log("no_answer", to=to, request=type(request).__name__, ms=timeout)
    return Unknown(f"no answer from {to} within {timeout} ms")


async def ask_once(to: Address, request: Request[R], timeout: int) -> R | Unknown:
    """One call of a caller that makes no other; see actors.ports.Net."""
    net = DirectNet()
    try:
        return await net.call(to, request, timeout)
    finally:
        net.close()


def ask_from_thread(to: Address, request: Request[R], timeout: int, who: str) -> R:
    """The same for a thread without an event loop. who: how it is called for people. Raises Unavailable without an
    answer, and what is refused.
    """
    answer = asyncio.run(ask_once(to, request, timeout))
    if isinstance(answer, Unknown):
        raise Unavailable(f"{who} does not answer: {answer.reason}")
    return answer


def cluster_token() -> bytes:
    """The token of the cluster that this process belongs to; empty if it has none."""
    import ray

    raylet: Any = ray._raylet
    try:
        headers = raylet.AuthenticationTokenLoader.instance().get_token_for_http_header()
    except ray.exceptions.AuthenticationError:
        return b""
    return "".join(str(value).removeprefix("Bearer ") for value in headers.values()).encode()


async def candidates() -> list[str]:
    """The processes that can be the controller, as Ray knows them; none if it does not say."""
    import ray
    from ray.exceptions import RayError

    try:
        named = await asyncio.get_running_loop().run_in_executor(_ASKING, ray.util.list_named_actors, True)
    except (RayError, ConnectionError, RuntimeError):
        return []
    return [row["name"] for row in named if row["namespace"] == NAMESPACE and is_controller_host(row["name"])]


async def find(host: str) -> Endpoint | Unknown:
    """Return the endpoint of the process with a name, as Ray knows it."""
    import ray
    from ray.exceptions import ActorUnavailableError, RayActorError, RayError

    try:
        handle: Any = await asyncio.get_running_loop().run_in_executor(_ASKING, ray.get_actor, host, NAMESPACE)
        return Endpoint(*await handle.endpoint.remote())
    except ValueError:
        return Unknown(f"no process {host}", gone=True)
    except ActorUnavailableError as error:
        return Unknown(f"{host} does not answer: {error}")
    except RayActorError as error:
        return Unknown(f"{host} has ended: {type(error).__name__}", gone=True)
    except RayError as error:
        return Unknown(f"{host}: {type(error).__name__}: {error}")
    except RuntimeError as error:  # the interpreter ends and takes no more work for threads; Ray has ended before it
        return Unknown(f"{host}: {error}")


async def _await_ray(host: str, asking: asyncio.Future[Endpoint | Unknown]) -> Endpoint | Unknown:
    try:
        return await asyncio.wait_for(asking, FIND_FOR_OTHERS_S)
    except TimeoutError:
        return Unknown(f"Ray does not say where {host} is")


def check_tls(settings: Mapping[str, Any]) -> None:
    """Raises Invalid in one line if the files cannot be used that settings name for TLS between machines."""
    trust_of(files_of(settings))


def session_folder() -> str:
    """Ray's folder on this node, which goes away with the cluster; empty if it cannot be known."""
    import ray

    node: Any = getattr(ray._private.worker, "_global_node", None)
    return "" if node is None else str(node.get_session_dir_path())


def open_endpoint(
    name: str,
    answers: RequestHandler,
    folder: str,
    bind_address: str,
    token: bytes | None = None,
    tls: TlsFiles | None = None,
) -> tuple[Endpoint, Listener]:
    """Listen for a process of this name, on a Unix-domain socket in this folder and at this address.

    bind_address: an address of this machine, or "node": the one by which Ray knows it. token: of the cluster, Ray's if
    it is not given. tls: files to speak TLS with to other machines. Raises OSError, Invalid.
    """
    known = cluster_token() if token is None else token
    secret = "" if known else secrets.token_hex(32)
    listener = Listener(name, known or secret.encode(), answers, trust=trust_of(tls))
    sockets = SocketFolder(folder)
    try:
        listener.listen(sockets.listen())
        address = own_address() if bind_address == NODE_ADDRESS else bind_address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        inet = socket.create_server((address, 0), family=family, backlog=128)
        listener.listen(inet)
    except BaseException:  # it is tried again whenever somebody looks for this process
        listener.close()
        sockets.remove()
        raise
    host, port = inet.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = own_address()
    return Endpoint(name, this_machine(), this_network(), sockets.path, host, port, secret, tls or ()), listener
