"""The Net port over Ray: one remote method, `Host.call`, carries every request.

A message is (actor, request name, head, attachments, handles). Ray pickles the tuple, but its parts are bytes, numpy
byte columns and object references only; attachments travel out of band through shared memory. No Ray exception
leaves this module: a call has an answer, an explicit refusal (a SluiceError), or is Unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from actors.ports import Address, Unknown
from actors.wire import Blob, Reply, Request, pack, unpack, unpack_error
from cluster.environment import NAMESPACE
from cluster.real import StructuredLog
from storage.frame import Buffer

log = StructuredLog("net")

R = TypeVar("R", bound=Reply)

SHARE_FROM = 64 * 1024
"""Payloads of at least this many bytes go to Ray's object store when shared; smaller ones travel inline."""

FETCH_TIMEOUT_S = 5.0
"""After so long a shared payload is taken for lost: where memory is full or a node hangs, Ray may wait for ever."""

Envelope = tuple[str, str, bytes, list[Any], list[Any]]


class LocalActors(Protocol):
    """The actors of this very process, reached without Ray."""

    name: str

    async def deliver(self, actor: str, request: Request[Any]) -> Reply | Unknown:
        """Hand a request to an actor of this process."""


class RayNet:
    """Calls peers by `host/actor`; peers in the same process are called directly."""

    def __init__(self, local: LocalActors | None = None) -> None:
        self._local = local
        self._hosts: dict[str, Any] = {}

    async def call(self, to: Address, request: Request[R], timeout: int) -> R | Unknown:
        """See actors.ports.Net."""
        host, _, actor = to.partition("/")
        try:
            if self._local is not None and host == self._local.name:
                reply = await asyncio.wait_for(self._local.deliver(actor, request), timeout / 1000)
                return cast("R | Unknown", reply)
            return await self._remote(host, actor, request, timeout)
        except TimeoutError:
            log("no_answer", to=to, request=type(request).__name__, ms=timeout)
            return Unknown(f"no answer from {to} within {timeout} ms")

    async def _remote(self, host: str, actor: str, request: Request[R], timeout: int) -> R | Unknown:
        handle = await self._handle(host)
        if handle is None:
            return Unknown(f"no process {host}", gone=True)
        packed = pack(request)
        envelope: Envelope = (actor, type(request).__name__, packed.head, packed.attachments, packed.handles)
        try:
            answer = await asyncio.wait_for(handle.call.remote(envelope), timeout / 1000)
        except ActorUnavailableError as error:
            return Unknown(f"{host} does not answer: {error}")
        except RayActorError as error:
            self._hosts.pop(host, None)
            return Unknown(f"{host} has ended: {type(error).__name__}", gone=True)
        except RayError as error:
            return Unknown(f"{host}: {type(error).__name__}: {error}")
        return _open_answer(request, answer)

    async def _handle(self, host: str) -> Any:
        if host not in self._hosts:
            try:
                self._hosts[host] = await asyncio.to_thread(ray.get_actor, host, NAMESPACE)
            except (ValueError, RayError):
                return None
        return self._hosts[host]

    async def share(self, payload: Buffer) -> Blob:
        """See actors.ports.Net."""
        if len(payload) < SHARE_FROM:
            return Blob(payload)
        return Blob(payload, ray.put(np.frombuffer(payload, np.uint8)))

    async def fetch(self, blob: Blob) -> memoryview | None:
        """See actors.ports.Net."""
        if blob.data is None:
            reference = cast("Awaitable[Any]", blob.handle)
            try:
                shared = await asyncio.wait_for(reference, FETCH_TIMEOUT_S)
            except (RayError, TimeoutError) as error:
                log("payload_lost", bytes=blob.size, error=type(error).__name__)
                return None
            blob.data = memoryview(shared).cast("B").toreadonly()
        return blob.data


def _open_answer(request: Request[R], answer: Any) -> R | Unknown:
    status, head, attachments, handles = answer
    if status == "ok":
        return cast(R, unpack(request.reply, head, attachments, handles))
    if status == "unknown":
        return Unknown(head, gone=attachments)
    raise unpack_error(status, head)
