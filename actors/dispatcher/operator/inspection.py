"""Operators' questions that change nothing, except for statistics: why a message waits, and where messages lie.

An explanation runs the core's own gates with reasons (`actors.key_shared.observe.explain`) and adds those that lie
outside of the core.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.leases import Leases
from sluice.actors.dispatcher.delivery.reader import LOOK_TIMEOUT, BacklogReader
from sluice.actors.dispatcher.operator.parked_keys import ParkedKeys
from sluice.actors.messages import Explain, FindBacklog, FindOwner, ListBlockedKeys, ListDelayed, ListPending, Text
from sluice.storage.dates import iso_time
from sluice.storage.errors import Invalid, SluiceError, Unavailable
from sluice.storage.format.frame import index_columns
from sluice.storage.format.hashing import key_bytes, masked_hash
from sluice.storage.format.position import run_positions, show

_LOST = "messages that the delayed index has lost are read from the log again"


class Inspection:
    """The answers as plain values; `document` makes JSON of them."""

    def __init__(self, context: SubscriptionContext, reader: BacklogReader, leases: Leases, parked: ParkedKeys) -> None:
        self._ports, self._identity, self._state = context.ports, context.identity, context.state
        self._core, self._cursor, self._sessions = context.core, context.cursor, context.sessions
        self._tracker, self._changes, self._store = context.tracker, context.changed_delays.now, context.store
        self._reader, self._leases, self._parked, self._log = reader, leases, parked, context.log

    # -- what lies where ----------------------------------------------------------------------------------------------

    async def backlog(self, request: FindBacklog) -> int:
        """See messages.BacklogFound. Raises Unavailable while the end of the topic is not known."""
        if not await self._reader.refresh_end():  # it tells the cursor which ledgers there are
            raise Unavailable(
                f"how far partition {self._identity.partition} of {self._identity.topic!r} reaches is not known yet"
            )
        at = self._cursor.next_unacknowledged(request.start)
        return at if at <= self._reader.reach else -1

    def pending(self, request: ListPending) -> list[dict[str, Any]]:
        """See messages.ListPending; a row a consumer."""
        rows = []
        for session in self._sessions.all():
            if request.consumer in (None, session.name):
                held = np.union1d(self._core.pending(session.number), self._core.claims_of(session.number))
                rows.append(
                    {
                        "consumerName": session.name,
                        "session": session.number,
                        "unackedMessages": len(held),
                        "messageIds": [show(at) for at in held[: request.most].tolist()],
                    }
                )
        return rows

    def owner(self, request: FindOwner) -> dict[str, Any]:
        """See messages.FindOwner. Raises Invalid if neither a key nor a hash is given."""
        wanted = request.hash
        if request.key is not None:
            wanted = int(self._core.reduce(np.array([masked_hash(key_bytes(request.key))], np.uint32))[0])
        if wanted is None:
            raise Invalid("owner needs a key or a hash")
        return {"hash": wanted, **self._core.owner(wanted, request.at)}

    def delayed(self, request: ListDelayed) -> dict[str, Any]:
        following = self._tracker.next_messages(request.top)
        return {
            "partition": self._identity.partition,
            "count": self._tracker.count(),
            "histogram": self._tracker.histogram(),
            "next": [{"deliverAt": due, "messageId": show(at)} for due, at in following],
        }

    # -- why something is not delivered -------------------------------------------------------------------------------

    async def explain(self, request: Explain) -> dict[str, Any]:
        """Run the dispatch predicate with reasons on, and add the outer gates."""
        await self._reader.know_end()
        due = 0 if request.position is None else await self._due(request.position)
        # No await from here on.
        key_hash = None if request.key is None else masked_hash(request.key)
        now = self._ports.clock.now()
        answer = self._core.explain(key_hash=key_hash, hash=request.hash, position=request.position, now=now)
        nothing_read = answer["verdict"] == "nothing_to_deliver" and request.position is None
        if nothing_read:
            answer |= self._unless_unread(answer["reasons"])
        self._add_leases(answer["reasons"])
        reasons = self._with_outer_gates(answer["reasons"], read=answer.get("state", "not here") != "not here")
        if request.position is not None:
            reasons = self._gates_of(request.position, reasons, due)
        elif nothing_read and (delayed := self._tracker.count()):
            text = f"{delayed} messages of the subscription are delayed, and some of them may be of this key"
            command = f"sluice subscriptions cancel-delayed {self._identity.topic} {self._identity.subscription}"
            reasons.append(_gate("delayed", text, f"time; `{command} --key KEY --dry-run` counts those of a key"))
        if parked := self._parked.gate(request.key, request.position):
            reasons = [parked, *(reason for reason in reasons if reason["gate"] != "nothing_to_deliver")]
        verdict = reasons[0]["gate"] if reasons else answer.get("verdict")
        findings = {"verdict": verdict, "reasons": reasons, "partition": self._identity.partition, "key": request.key}
        return {**answer, **findings}

    def _unless_unread(self, reasons: list[dict[str, Any]]) -> dict[str, Any]:
        """Return verdict and reasons for a key or hash without read messages: unread ones may be of it."""
        first = max(self._reader.position, self._cursor.mark_delete + 1, 0)
        unread = self._cursor.unacknowledged_in(first, self._reader.end) if first <= self._reader.end else 0
        if unread or self._reader.reads_again():
            what = f"{unread} messages of the partition were not read yet" if unread else _LOST
            text = f"{what}, and some of them may be of it"
            held_back = [reason for reason in reasons[1:] if reason["gate"] != "not_read"]
            reasons = [*held_back, _gate("not_read", text, "the next reads")]
        elif self._reader.end_known:
            reasons = [reason for reason in reasons if reason["gate"] != "not_read"]
        return {"verdict": reasons[0]["gate"], "reasons": reasons}

    def blocked_keys(self, request: ListBlockedKeys) -> list[dict[str, Any]]:
        """See messages.ListBlockedKeys; each with the outer gates as well."""
        rows = self._core.blocked_keys(request.top, self._ports.clock.now())
        return [{**row, "reasons": self._with_outer_gates(row["reasons"], read=True)} for row in rows]

    def _with_outer_gates(self, reasons: list[dict[str, Any]], *, read: bool) -> list[dict[str, Any]]:
        """Return the reasons outside of the core, then the core's own. read: leave the reasons of reading out."""
        read = read and all(reason["gate"] != "not_read" for reason in reasons)  # it may wait for those before it
        outer = [*self._gates_of_sending(), *([] if read else self._gates_of_reading())]
        if reasons[0]["gate"] == "delivered":  # what holds the others back does not concern it any more
            return [*reasons, *outer]
        return [*outer, *(reason for reason in reasons if not outer or reason["gate"] != "deliverable")]

    def _add_leases(self, reasons: list[dict[str, Any]]) -> None:
        """Add to each reason when its holders were heard, and when their leases end.

        A process that is frozen is not heard, and keeps its keys until then. An application that hangs in a living
        process keeps them longer: heartbeats renew its lease.
        """
        now, lease_ms = self._ports.clock.monotonic(), self._state.membership.lease_ms
        for reason in reasons:
            self._add_leases(reason.get("because", []))
            ends: dict[str, str] = {}
            for held in reason.get("held", []):
                holder = self._state.membership.holder(held["session"])
                if holder is not None:
                    held["heard_ms_ago"] = ago = now - holder.until + lease_ms
                    held["lease_ends_in_ms"] = left = max(holder.until - now, 0)
                    ends[held["consumer"]] = f"in {left} ms (its process was heard {ago} ms ago)"
            if ends:
                each = ", ".join(f"that of {consumer} {when}" for consumer, when in ends.items())
                reason["unblocks"] += f". A consumer leaves at the latest when its lease ends unrenewed: {each}"

    def _gates_of_sending(self) -> list[dict[str, Any]]:
        """Return the gates that hold the whole subscription back."""
        gates = []
        if self._state.paused:
            gates.append(_gate("paused", "the subscription is paused", "an operator resumes it"))
        if self._store.holds_back:
            text = "it is not durable yet that messages before it need not be sent"
            gates.append(_gate("not_durable", text, "the metadata store answers"))
        if awaited := self._leases.awaited():
            waits = max(max(member.until for member in awaited) - self._ports.clock.monotonic(), 0)
            text = f"{len(awaited)} consumers of an earlier owner have not come back"
            gates.append(_gate("taking_over", text, f"they do, or their leases end, in {waits} ms at most"))
        if unknown := self._leases.unidentified:
            text = f"it is not known yet which keys {len(unknown)} consumers hold that came back"
            gates.append(_gate("taking_over", text, f"the topic tells ({next(iter(unknown.values()))})"))
        return gates

    def _gates_of_reading(self) -> list[dict[str, Any]]:
        """Return the gates that hold back unread messages."""
        gates = []
        if self._reader.problem:
            text = f"the log cannot be read further: {self._reader.problem}"
            gates.append(_gate("not_read", text, "a copy of it comes back, or an operator gives the run up"))
        if self._tracker.room() == 0:
            text = f"nothing more is read: {self._tracker.alarm() or 'delayed messages are on their way to the store'}"
            gates.append(_gate("delayed_index_behind", text, "the store takes some, or some are due"))
        return gates

    async def _due(self, position: int) -> int:
        """Return when a message in the delayed index is due, in ms; 0 if it is not there, or the log does not say."""
        at = np.array([position], np.int64)
        if not bool(self._tracker.contains(at)[0]):
            return 0
        due = np.zeros(1, np.int64)
        with contextlib.suppress(SluiceError):  # the index tells of each only that it is there
            for run in (await self._log.read(position, 1, patience=LOOK_TIMEOUT)).runs:
                times, _ = index_columns(await self._log.columns(run), run.count, run.delayed)
                here = run_positions(run.ledger, run.first_entry, run.count) == position
                due = due if times is None or not here.any() else times[here]
        return int(self._changes.due(at, due)[0])

    def _gates_of(self, position: int, reasons: list[dict[str, Any]], due: int) -> list[dict[str, Any]]:
        """Return the gates that hold back one message that is not in the core. due: see `_due`."""
        at = np.array([position], np.int64)
        held = any(reason["gate"] == "delivered" for reason in reasons)  # it may have expired while it was held
        if held:
            return reasons
        if bool(self._cursor.is_acknowledged(at)[0]):
            cancelled = bool(self._changes.cancelled.contains(at)[0])
            return [_gate("nothing_to_deliver", "it was cancelled" if cancelled else "it is acknowledged", "nothing")]
        if bool(self._tracker.contains(at)[0]):
            if 0 < due <= self._ports.clock.now():
                return self._with_outer_gates(self._core.due_reasons(), read=True)
            text = f"it is not due before {iso_time(due)}" if due else "it is delayed; the log does not say until when"
            if bool(self._changes.is_moved(at)[0]):
                text = f"it was rescheduled, and is not due before {iso_time(due)}"
            return [_gate("delayed", text, "time"), *reasons]
        if self._reader.end_known and position > self._reader.end:
            end = f"ends at {show(self._reader.end)}" if self._reader.end >= 0 else "is empty"
            return [_gate("nothing_to_deliver", f"there is no such message: the partition {end}", "a publish")]
        if position >= self._reader.position:
            text = f"the dispatcher has read up to {show(self._reader.position)} only"
            reads = "the owner of the topic answers the read that is under way"
            return [
                *reasons,
                _gate("not_read", text, reads if self._reader.reading else "what waits before it is delivered"),
            ]
        unknown = [reason for reason in reasons if reason["gate"] == "nothing_to_deliver"]
        if unknown and self._reader.reads_again(position):
            text = f"{_LOST}, and it may be one of them"
            gate = _gate("not_read", text, "that read, which needs a consumer with permits")
            return [*(reason for reason in reasons if reason not in unknown), gate]
        return reasons


def _gate(name: str, text: str, unblocks: str) -> dict[str, Any]:
    """Return a reason in the form of the core's own."""
    return {"gate": name, "text": text, "unblocks": unblocks}


def document(value: object) -> Text:
    """Return the value as JSON; bytes as UTF-8 with replacement, numpy values as plain ones."""
    return Text(json=json.dumps(value, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")
