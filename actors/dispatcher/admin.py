"""What an operator may ask of, and do to, one subscription on one partition.

Names are Pulsar's (semantics section 11). Verbs that move the cursor end with a durable record, and none of them lets
a draining hash go early: messages that a connected consumer still holds stay its own until it is done (KS-45).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from actors.dispatcher import seek
from actors.dispatcher.membership import State
from actors.messages import Explain, FindTime, SubscriptionSettings
from actors.messages.arguments import OF_SUBSCRIPTION, read_arguments
from actors.messages.settings import check_subscription
from storage.errors import Invalid
from storage.hashing import masked_hash
from storage.position import show

if TYPE_CHECKING:
    from actors.dispatcher.dispatcher import Dispatcher

CALL_TIMEOUT = 5_000


class Administration:
    """The administrative half of a dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._d = dispatcher
        self._verbs: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "seek": self._seek,
            "skip": self._skip,
            "clear_backlog": self._clear_backlog,
            "expire": self._expire,
            "delete": self._delete,
            "pending": self._pending,
            "blocked_keys": self._blocked_keys,
            "what_if": self._what_if,
            "owner": self._owner,
            "assignments": self._assignments,
            "delayed": self._delayed,
            "pause": self._pause,
            "resume": self._resume,
            "settings": self._settings,
        }

    async def run(self, verb: str, arguments: str) -> str:
        """Carry a verb out; the answer is JSON. Raises Invalid for an unknown verb or argument."""
        handler = self._verbs.get(verb)
        if handler is None:
            raise Invalid(f"unknown verb {verb!r}; there are {', '.join(sorted(self._verbs))}")
        return _json(await handler(read_arguments(verb, arguments, OF_SUBSCRIPTION)))

    def stats(self) -> str:
        """Subscription and consumer statistics as JSON."""
        d = self._d
        now = d.ports.clock.now()
        core = d.core.stats(now)
        delayed = d.tracker.count()
        backlog = self._backlog()
        sentinel = core.get("sentinel", {})
        consumers = {row["consumerNumber"]: row for row in core.pop("consumers", [])}
        return _json(
            {
                "topic": d.topic,
                "partition": d.partition,
                "subscription": d.subscription,
                "epoch": d.epoch,
                "policy": d.settings.policy,
                "keySharedMode": "STICKY" if d.settings.selector == "sticky" else "AUTO_SPLIT",
                "allowOutOfOrderDelivery": d.settings.allow_out_of_order_delivery,
                "msgBacklog": backlog,
                "msgBacklogNoDelayed": max(backlog - delayed, 0),
                "msgDelayed": delayed,
                "delayedMessageIndexSizeInBytes": d.tracker.memory_bytes(),
                "bucketDelayedIndexStats": d.tracker.stats(),
                "markDeletePosition": show(d.cursor.mark_delete),
                "readPosition": show(d.reader.position),
                "nonContiguousDeletedMessagesRanges": d.cursor.holes,
                "pendingRead": d.reader.reading,
                "paused": d.paused,
                "awaitedConsumers": len(d.membership.all(State.AWAITED)),
                "runsHeld": len(d.runs),
                "watchdogStalls": d.watchdog_stalls,
                **core,
                "orderCheckedTotal": sentinel.get("checkedHolder", 0) + sentinel.get("checkedOrder", 0),
                "orderViolationsTotal": sentinel.get("violationsHolder", 0) + sentinel.get("violationsOrder", 0),
                "hashesMovedTotal": d.pump.hashes_moved(),
                "type": d.settings.type,
                "consumersCount": len(d.sessions),
                "consumers": [
                    {**consumers.get(s.number, {}), "session": s.number, "lastAckedTimestamp": s.last_acked}
                    for s in d.sessions.all()
                ],
            }
        )

    def _backlog(self, end: int | None = None) -> int:
        """Messages that are not done, up to a position, or as far as the end of the topic is known."""
        if end is None:
            end = self._d.reader.end if self._d.reader.end >= 0 else self._d.reader.position - 1
        if end <= self._d.cursor.mark_delete:
            return 0
        return self._d.cursor.unacknowledged_in(self._d.cursor.mark_delete + 1, end)

    def explain(self, request: Explain) -> str:
        """Run the dispatch predicate with reasons on, and add the gates that lie outside of the core."""
        d = self._d
        now = d.ports.clock.now()
        key_hash = None if request.key is None else masked_hash(request.key)
        answer = d.core.explain(key_hash=key_hash, hash=request.hash, position=request.position, now=now)
        reasons = [*self._outer_gates(), *answer.get("reasons", [])]
        if request.position is not None:
            reasons = self._gates_of(request.position, reasons)
        verdict = reasons[0]["gate"] if reasons else answer.get("verdict")
        return _json({**answer, "verdict": verdict, "reasons": reasons, "partition": d.partition, "key": request.key})

    def _outer_gates(self) -> list[dict[str, Any]]:
        """What holds the whole subscription back."""
        d = self._d
        gates = []
        if d.paused:
            gates.append(_gate("paused", "the subscription is paused", "an operator resumes it"))
        if d.reader.problem:
            text = f"the log cannot be read further: {d.reader.problem}"
            gates.append(_gate("not_read", text, "a copy of it comes back, or an operator gives the run up"))
        if not d.pump.settled() and (awaited := d.membership.all(State.AWAITED)):
            waits = max(max(member.until for member in awaited) - d.ports.clock.monotonic(), 0)
            text = f"{len(awaited)} consumers of an earlier owner have not come back"
            gates.append(_gate("taking_over", text, f"they do, or their leases end, in {waits} ms at most"))
        if d.pump.identifying:
            text = f"it is not known yet which keys {len(d.pump.identifying)} consumers hold that came back"
            reason = next(iter(d.pump.identifying.values()))
            gates.append(_gate("taking_over", text, f"the topic tells ({reason})"))
        if d.tracker.room() == 0:
            text = f"nothing more is read: {d.tracker.alarm() or 'delayed messages are on their way to the store'}"
            gates.append(_gate("delayed_index_behind", text, "the store takes some, or some are due"))
        return gates

    def _gates_of(self, position: int, reasons: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What holds one message back that is not in the core."""
        d = self._d
        at = np.array([position], np.int64)
        held = any(reason["gate"] == "delivered" for reason in reasons)  # it may have expired while it was held
        if not held and bool(d.cursor.is_acknowledged(at)[0]):
            return [_gate("nothing_to_deliver", "it is acknowledged", "nothing")]
        if bool(d.tracker.contains(at)[0]):
            return [_gate("delayed", "it is not due yet", "time"), *reasons]
        if position >= d.reader.position:
            text = f"the dispatcher has read up to {show(d.reader.position)} only"
            return [*reasons, _gate("not_read", text, "what waits before it is delivered")]
        return reasons

    # -- verbs ----------------------------------------------------------------------------------------------------

    async def _target(self, arguments: dict[str, Any]) -> int:
        """A position from `message_id` ("ledger:entry", earliest, latest) or `time` (ms)."""
        d = self._d
        if "time" in arguments:
            seek.check_time(int(arguments["time"]), d.ports.clock.now())
            return (await d.partition_client.ask(FindTime(time=int(arguments["time"])))).position
        return seek.place(str(arguments.get("message_id", "")), await d.read_ends())

    async def _seek(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Start over from a position: every session ends, the consumers come back by themselves."""
        target = await seek.seek(self._d, await self._target(arguments))
        return {"position": show(target)}

    async def _forward(self, target: int, *, everything: bool = False) -> dict[str, Any]:
        """Everything before `target` counts as done. What comes meanwhile is not in the number that is told."""
        d = self._d
        await d.reader.look()
        end = d.reader.end
        before = self._backlog(end)
        await seek.forward(d, target, everything=everything)
        return {"skipped": before - self._backlog(end), "position": show(target)}

    async def _skip(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The next `messages` messages that are not done count as done, whatever ledgers they lie in."""
        left = int(arguments.get("messages", 0))
        if left < 1:
            raise Invalid(f"skip wants a number of messages of 1 or more, not {left}")
        ends = await self._d.read_ends()
        self._d.cursor.chain(ends.ledgers)
        return await self._forward(seek.behind(self._d.cursor, ends, left))

    async def _clear_backlog(self, arguments: dict[str, Any]) -> dict[str, Any]:
        ends = await self._d.read_ends()
        return await self._forward(ends.next, everything=True)

    async def _expire(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._forward(await self._target({"time": int(arguments["before"])}))

    async def _delete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Forget the subscription on this partition: index first, then the record, then this actor."""
        d = self._d
        if len(d.sessions) and not arguments.get("force"):
            raise Invalid(f"{len(d.sessions)} consumers are connected; close them, or use force")
        for session in d.sessions.all():
            d.end_session(session, "deleted")
        await d.tracker.delete()
        await d.partition_client.ask(d.reporter.statement(gone=True))
        await d.forget()
        return {"deleted": True}

    async def _pending(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = arguments.get("consumer")
        rows = []
        for session in self._d.sessions.all():
            if wanted in (None, session.name):
                held = self._d.core.pending(session.number)
                most = int(arguments.get("most", 100))
                rows.append(
                    {
                        "consumerName": session.name,
                        "session": session.number,
                        "unackedMessages": len(held),
                        "messageIds": [show(at) for at in held[:most].tolist()],
                    }
                )
        return rows

    async def _blocked_keys(self, arguments: dict[str, Any]) -> Any:
        return self._d.core.blocked_keys(int(arguments.get("top", 20)), self._d.ports.clock.now())

    async def _what_if(self, arguments: dict[str, Any]) -> Any:
        return self._d.core.what_if(int(arguments.get("add", 0)), list(arguments.get("remove", [])))

    async def _owner(self, arguments: dict[str, Any]) -> Any:
        wanted = arguments.get("hash")
        if arguments.get("key") is not None:
            masked = np.array([masked_hash(str(arguments["key"]).encode())], np.uint32)
            wanted = int(self._d.core.reduce(masked)[0])
        if wanted is None:
            raise Invalid("owner wants a key or a hash")
        return {"hash": int(wanted), **self._d.core.owner(int(wanted), arguments.get("at"))}

    async def _assignments(self, arguments: dict[str, Any]) -> Any:
        return self._d.core.assignments()

    async def _delayed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        tracker = self._d.tracker
        return {
            "partition": self._d.partition,
            "count": tracker.count(),
            "histogram": tracker.histogram(),
            "next": [
                {"deliverAt": due, "messageId": show(at)}
                for due, at in tracker.next_messages(int(arguments.get("top", 10)))
            ],
        }

    async def _settings(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            settings = msgspec.convert(arguments, SubscriptionSettings)
        except msgspec.ValidationError as error:
            raise Invalid(f"settings: {error}") from None
        check_subscription(settings)
        return {"changed": await seek.configure(self._d, settings)}

    async def _pause(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._set_paused(True)

    async def _resume(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._set_paused(False)

    async def _set_paused(self, paused: bool) -> dict[str, Any]:
        self._d.paused = paused
        await self._d.store.barrier()
        self._d.wake()
        return {"paused": paused}


def _gate(name: str, text: str, unblocks: str) -> dict[str, Any]:
    """A reason in the form of the core's own."""
    return {"gate": name, "text": text, "unblocks": unblocks}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


def _json(value: object) -> str:
    return json.dumps(value, default=_plain)
