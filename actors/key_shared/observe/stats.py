"""Statistics of the decisions, with Pulsar's names, from the arrays; nothing is counted for them alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared.state import parking
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.hash_assignments import kept_stats
from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.policies import RecentlyJoined, policy_stats
from sluice.actors.key_shared.state.selectors import Range, ranges_by_slot
from sluice.actors.key_shared.state.window import DEAD, HELD, PENDING, REPLAY, UNORDERED, WAITING, HashIndex
from sluice.storage.format.position import show

_JOIN_NAMES = {"read_position": "readPosition", "last_sent_position": "lastSentPosition"}
_HASHES_SHOWN = 1000
_NO_HASHES = np.zeros(0, np.intp)


def stats(core: DispatchState, now: int) -> dict[str, Any]:
    """Return the subscription with its consumers.

    Its drainingHashesClearedTotal never falls: it also counts what was cleared of consumers that have left. Pulsar's is
    the sum over those that are connected.
    """
    window, members, tables = core.window, core.members, core.tables
    draining, pending, ranges = _draining(core), tables.pending, ranges_by_slot(tables.owner)
    consumers = []
    for member in members:
        mine = draining.get(member.slot, _NO_HASHES)
        consumers.append(_consumer(core, member, mine, pending[mine], ranges.get(member.slot, [])))
    ordered = core.settings.type == "key_shared"
    return {
        "type": core.settings.type.title(),
        "keySharedMode": ("STICKY" if core.settings.selector == "sticky" else "AUTO_SPLIT") if ordered else None,
        "keySharedPolicy": core.settings.policy if ordered else None,
        "allowOutOfOrderDelivery": core.settings.allow_out_of_order_delivery,
        "nackOrder": core.settings.nack_order,
        "deadLetterPolicy": core.settings.dead_letter_policy,
        "msgInReplay": window.count[REPLAY] + window.count[UNORDERED],
        "msgDelayedRedelivery": window.count[WAITING],
        "msgRevoked": tables.revoked_messages,
        "msgRevokedTotal": tables.revoked_total,
        "redeliveriesNotDurable": core.carried.not_durable,
        "msgDelayedHoldingKeys": window.count[HELD],
        "msgDeadLetter": window.count[DEAD],
        "unackedMessages": window.count[PENDING] + sum(len(member.claims) for member in members.claiming()),
        "msgOutCounter": members.sent_total,
        "msgAckCounter": members.acked_total,
        "msgRedeliverCounter": members.given_back_total,
        "blockedSubscriptionOnUnackedMsgs": members.all_blocked,
        "lookAheadLimit": core.look_ahead_limit(),
        "drainingHashesCount": tables.draining,
        "drainingHashesUnackedMessages": int(pending[tables.drains].sum()),
        **parking.Parking(core).stats(),
        **core.drains.stats(),
        **kept_stats(core),
        "heldBackByPolicyTotal": core.counters.held_back,
        "waits": core.counters.waits.stats(),
        "assignmentEpoch": core.history.number,
        "consumers": consumers,
        "sentinel": core.sentinel.stats(),
        "memory": {"windowBytes": window.nbytes, "hashTableBytes": tables.nbytes},
        **policy_stats(core.policy, window, core.window.last_read, core.members.describe),
    }


def _draining(core: DispatchState) -> dict[int, HashIndex]:
    """Return the draining hashes by the slot of their holder.

    A subscription may have a thousand consumers, so the tables are looked at once, and not for each of them.
    """
    if not core.tables.draining:
        return {}
    hashes = np.flatnonzero(core.tables.drains)
    holders = core.tables.holder[hashes]
    order = np.argsort(holders, kind="stable")
    slots, firsts = np.unique(holders[order], return_index=True)
    return dict(zip(slots.tolist(), np.split(hashes[order], firsts[1:]), strict=True))


def _consumer(
    core: DispatchState,
    member: AttachedConsumer,
    draining: HashIndex,
    pending: npt.NDArray[np.int32],
    ranges: list[Range],
) -> dict[str, Any]:
    """draining: the hashes that drain at it, ascending. pending: what it has of each. ranges: those that it owns."""
    members, tables = core.members, core.tables
    slot = member.slot
    joined = core.policy.recent.get(slot) if isinstance(core.policy, RecentlyJoined) else None
    return {
        "consumerName": member.name,
        "consumerNumber": member.number,
        "priorityLevel": member.priority,
        "connectedSince": member.joined,
        "availablePermits": members.permits(slot),
        "unackedMessages": int(members.unacked[slot]) + len(member.claims),
        "blockedConsumerOnUnackedMsgs": bool(members.blocked[slot]),
        "msgOutCounter": members.sent_ever(slot),
        "msgAckCounter": member.messages_acked,
        "msgRedeliverCounter": int(members.given_back[slot]),
        "lastConsumedTimestamp": int(members.last_sent[slot]),
        "drainingHashesCount": len(draining),
        "drainingHashesClearedTotal": member.drained_total,
        "drainingHashesUnackedMessages": int(pending.sum()),
        "drainingHashes": [
            {"hash": int(at), "unackMsgs": int(count), "blockedAttempts": int(tables.attempts[at])}
            for at, count in zip(draining[:_HASHES_SHOWN], pending[:_HASHES_SHOWN], strict=True)
        ],
        **({} if joined is None else {f"{_JOIN_NAMES[core.settings.policy]}WhenJoining": show(joined)}),
        "keyHashRangeArrays": [list(pair) for pair in ranges],
    }
