"""Why is this message, key or hash not being delivered, and what would change that?

Every answer comes from the gates that the dispatch itself uses (`dispatch_pass.closed`) asked about one row, and from
the same figures for permits and limits. There is no second copy of a rule here, so an explanation cannot disagree with
what the broker does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.actors.key_shared.state.dispatch_pass import candidates_of, closed, closed_rows, redelivered
from sluice.actors.key_shared.state.dispatch_state import DispatchState
from sluice.actors.key_shared.state.policies import Candidates, Gate, RecentlyJoined
from sluice.actors.key_shared.state.window import (
    DEAD,
    FRESH,
    HELD,
    NO_SLOT,
    PENDING,
    REMOVED,
    REPLAY,
    REVOKED,
    STATES,
    UNORDERED,
    WAITING,
    Rows,
)
from sluice.storage.dates import iso_time
from sluice.storage.errors import Invalid, InvariantViolation
from sluice.storage.format.hashing import HASH_RANGE, MASK
from sluice.storage.format.position import show

Reason = dict[str, Any]
_SHOWN = 20
_ENDS = "its acknowledgement, or the consumer giving it back or leaving"
_RECEIVES = "receiving what it was sent, which at a gateway a dispatch rate may hold up"
_WAITING = (FRESH, REPLAY, UNORDERED)


def explain(
    core: DispatchState, *, key_hash: int | None, hash: int | None, position: int | None, now: int
) -> dict[str, Any]:
    """Return the answer as a JSON object: hash, owner, state, verdict, and `reasons`, the most important first."""
    if sum(what is not None for what in (key_hash, hash, position)) != 1:
        raise Invalid("explain needs exactly one of a key, a hash and a position")
    if not 0 <= (position or 0) < 1 << 63:
        raise Invalid(f"{position} is not a position")
    if not 0 <= (key_hash or 0) <= MASK:
        raise Invalid(f"a masked hash is 0 to {MASK}, not {key_hash}")
    window = core.window
    row: int | None = None
    if position is not None:
        found = window.find(np.array([position], np.int64))
        if len(found) == 0:
            return _elsewhere(core, position)
        row = int(found[0])
        value = int(window.hash[row])
    elif key_hash is not None:
        value = int(core.reduce(np.array([key_hash], np.uint32))[0])
    else:
        value = hash if hash is not None else 0
    if not 0 <= value < HASH_RANGE:
        raise Invalid(f"a hash is 0 to {HASH_RANGE - 1}, not {value}")
    rows = window.rows_live()
    rows = rows[window.hash[rows] == value]
    answer: dict[str, Any] = {"hash": value, "owner": _owner(core, value), **_counts(core, rows)}
    if row is None:
        row = _first_waiting(core, rows)
    if row is not None:
        answer["position"] = show(int(window.position[row]))
        answer["state"] = STATES[int(window.state[row])]
        reasons = row_reasons(core, row, now)
    else:
        reasons = _nothing_waits(core, rows, now)
    if key_hash is not None:
        reasons += _same_hash(core, rows, key_hash)
    answer["reasons"] = reasons
    answer["verdict"] = reasons[0]["gate"]
    return answer


def row_reasons(core: DispatchState, row: int, now: int) -> list[Reason]:
    """Return why one row of the window is not (again) going out."""
    window = core.window
    state = int(window.state[row])
    if state == PENDING:
        held = _holders(core, np.array([row]), now)
        text = f"it is with {held[0]['consumer']}, unacknowledged"
        if window.flags[row] & REMOVED:
            text += "; it expired, or was skipped or cleared, meanwhile, and holds its key until then"
        return [_reason("delivered", text, _ENDS, held=held)]
    if state == WAITING:
        until = int(window.since[row])
        text = f"it was negatively acknowledged and waits until {iso_time(until)}"
        return [_reason("delayed_until", text, "time", until=until)]
    if state == HELD:
        return [_reason("delayed", "it is delayed and not due, and holds back its key", "time; see the delayed index")]
    if state == DEAD:
        parks = "its key being read, and then an operator's decision" + ("; no more keys fit" * core.parked.full)
        unblocks = parks if core.parked.on else "writing it to the dead letter topic and acknowledging it"
        return [_reason("dead_letter", f"it was redelivered {int(window.redelivery[row])} times", unblocks)]
    if core.nack_ordered and core.window.unreached(np.array([row])).any():
        text = "a consumer held it from an earlier owner and gave it back, and what lies before it was not read yet"
        return [_reason("not_read", text, "the next reads"), *read_reasons(core)]
    reasons = [_gate_reason(core, gate, row, now) for gate in _gates(core, row)]
    reasons += _permit_reasons(core, row)
    return reasons or [_reason("deliverable", "nothing holds it back", "the next dispatch sends it")]


def _gates(core: DispatchState, row: int) -> list[Gate]:
    """The gates that hold this row back, in order of precedence: the dispatch's own predicate, asked for one row.

    A row that waits in the order is also held by earlier rows of its hash, as the cut by position does it in a pass.
    """
    window = core.window
    fresh = window.state[row] == FRESH
    one = slice(row, row + 1)
    owners = core.tables.owner[window.hash[one]]
    rows = Candidates(window.position[one], window.hash[one], owners, bool(fresh))
    gates = [gate for gate, mask in closed(core, rows) if mask.any()]
    if core.shared:
        gates = [] if len(core.members) else [Gate.NO_OWNER]
    if _earlier(core, row) is not None and Gate.EARLIER_WAITS not in gates:
        gates.append(Gate.EARLIER_WAITS)
    return sorted(gates)


def _earlier(core: DispatchState, row: int) -> int | None:
    """Return the first row of the same hash that waits for redelivery and goes before this one.

    What was read forward waits behind all of them, what waits itself behind those with a lower position.
    """
    window = core.window
    if not core.policy.ordered or window.state[row] == UNORDERED:
        return None
    waiting = window.rows_in(REPLAY)
    waiting = waiting[window.hash[waiting] == window.hash[row]]
    if window.state[row] == REPLAY:
        waiting = waiting[waiting < row]
    return int(waiting[0]) if len(waiting) else None


def _gate_reason(core: DispatchState, gate: Gate, row: int, now: int) -> Reason:
    window = core.window
    value = int(window.hash[row])
    owner = _owner(core, value)
    if gate == Gate.REDELIVERY:
        return _redelivery(core, value, now)
    if gate == Gate.KEY_DELAYED:
        first = show(int(core.tables.held_from[value]))
        if again := _delayed_redelivery(core, value):
            return again
        text = f"{first} of the same hash is delayed and holds back what follows it (delay_key_policy=block_key)"
        return _reason("key_delayed", text, f"{first} falling due and being delivered", earlier=first)
    if gate == Gate.EARLIER_WAITS:
        earlier = _earlier(core, row)
        if earlier is None:
            raise InvariantViolation(f"{show(int(window.position[row]))} waits behind a message that is not there")
        return _reason(
            "earlier_waits",
            f"{show(int(window.position[earlier]))} of the same hash waits before it",
            "delivery of the earlier message",
            earlier=show(int(window.position[earlier])),
            because=row_reasons(core, earlier, now),
        )
    if gate == Gate.DRAINING:
        pending = window.rows_in(PENDING)
        held = _holders(core, pending[window.hash[pending] == value], now)
        return _reason(
            "draining",
            f"the hash belongs to {owner} now, but {held[0]['consumer']} holds {len(held)} unacknowledged of it",
            f"acknowledgement of these messages, or {held[0]['consumer']} leaving",
            held=held[:_SHOWN],
        )
    if gate == Gate.RECENTLY_JOINED and isinstance(core.policy, RecentlyJoined):
        return _recently_joined(core, core.policy, row, now)
    return _reason("no_owner", "no connected consumer owns the hash", "a consumer that takes it joining")


def _recently_joined(core: DispatchState, policy: RecentlyJoined, row: int, now: int) -> Reason:
    """Explain which recent joining holds the row back. For a redelivery, the newcomer need not be its owner."""
    window, slot = core.window, int(core.tables.owner[int(core.window.hash[row])])
    pending = window.rows_in(PENDING)
    mine = (window.hash[pending] == window.hash[row]) & (window.consumer[pending] != slot)
    if policy.keeps_brought and mine.any():
        held = _holders(core, pending[mine], now)
        text = (
            f"{held[0]['consumer']} holds {len(held)} unacknowledged of the hash, some since an earlier owner perhaps"
        )
        unblocks = f"acknowledgement of these messages, or {held[0]['consumer']} leaving"
        return _reason("recently_joined", text, unblocks, held=held[:_SHOWN])
    whose, position = policy.limit(slot, fresh=bool(window.state[row] == FRESH))
    limit = show(position)
    text = f"{owner_name(core, whose)} joined when {limit} was the last position, and not all up to it is acknowledged"
    if whose != slot:
        text += f"; what goes out again, to {owner_name(core, slot)}, waits for that as well"
    unblocks = f"acknowledgement of everything up to {limit}"
    if not policy.remember_unacked_keys:
        return _reason("recently_joined", text, unblocks, joined_at=limit)
    held = _holders(core, pending[mine], now)
    text += f"; {held[0]['consumer']} holds {len(held)} unacknowledged of the hash"
    unblocks = f"acknowledgement of these, or of everything up to {limit}"
    return _reason("recently_joined", text, unblocks, joined_at=limit, held=held[:_SHOWN])


def _redelivery(core: DispatchState, value: int, now: int) -> Reason:
    """Explain that the key waits because later messages of it were asked back, behind one that was given back."""
    window = core.window
    rows = window.rows_in(PENDING)
    rows = rows[(window.hash[rows] == value) & ((window.flags[rows] & REVOKED) != 0)]
    held = _holders(core, rows, now)
    return _reason(
        "waits_for_redelivery",
        f"waits for a redelivery: an earlier message of the hash was given back, and {len(held)} later ones were asked "
        f"back from {held[0]['consumer']} (nack_order=key)",
        "the consumer giving these back (its library does so at once, a client of Pulsar's when its application "
        "acknowledges or gives them back), or leaving",
        held=held[:_SHOWN],
    )


def _delayed_redelivery(core: DispatchState, value: int) -> Reason | None:
    """Explain that the first message that holds back its key was given back with a delay; None if it was not."""
    window = core.window
    row = int(window.find(core.tables.held_from[value : value + 1])[0])
    if window.state[row] != WAITING:
        return None
    first, until = show(int(window.position[row])), int(window.since[row])
    text = (
        f"waits for a redelivery: {first} of the same hash was given back and goes out before it, at {iso_time(until)}"
    )
    return _reason("waits_for_redelivery", text, f"time, and then delivery of {first}", earlier=first, until=until)


def _permit_reasons(core: DispatchState, row: int) -> list[Reason]:
    """Return reasons from permits and limits of the owner, and the row's place among the rows that wait for it."""
    window, members = core.window, core.members
    slot = int(core.tables.owner[int(window.hash[row])])
    allowance = members.allowance()
    if core.shared:
        return [] if allowance.any() or not len(members) else _nobody_may(core)
    if slot == NO_SLOT:
        return []
    if slot in core.kept:
        return [_kept(core, slot)]
    if allowance[slot] > 0:
        ahead = _ahead(core, row)
        if ahead < allowance[slot]:
            return []
        return [
            _reason(
                "no_permits",
                f"{ahead} messages are before it and {owner_name(core, slot)} has {int(allowance[slot])} permits",
                "the consumer asking for more",
                permits=int(allowance[slot]),
            )
        ]
    if members.permits(slot) == 0 and not members.blocked[slot]:
        return [
            _reason(
                "no_permits",
                f"{owner_name(core, slot)} has no permits",
                f"the consumer {_RECEIVES}",
                permits=0,
            )
        ]
    return [_unacked(core, slot)]


def _unacked(core: DispatchState, slot: int) -> Reason:
    members = core.members
    return _reason(
        "unacked_limit",
        f"{owner_name(core, slot)} has {int(members.unacked[slot])} unacknowledged messages, the limit is "
        f"{members.max_unacked_each}",
        f"acknowledgements, down to {members.max_unacked_each // 2}",
        unacked=int(members.unacked[slot]),
    )


def _nobody_may(core: DispatchState) -> list[Reason]:
    """Explain that no consumer may get anything: some hold as many as they may, the others are out of permits."""
    blocked = [member.slot for member in core.members if core.members.blocked[member.slot]]
    reasons = [_unacked(core, slot) for slot in blocked[:_SHOWN]]
    if len(blocked) < len(core.members):
        text = "the other consumers have no permits" if blocked else "no consumer has permits"
        reasons.append(_reason("no_permits", text, f"a consumer {_RECEIVES}"))
    return reasons


def _kept(core: DispatchState, slot: int) -> Reason:
    member, until = core.members.at(slot), core.kept.by_slot[slot].until
    when = f"until {iso_time(until)}" if until else "until its lease and then grace_ms are over"
    text = f"the hash is kept for its owner {member.name!r}, which left, {when}"
    names = f"{member.name!r}" + (f" or {member.to!r}" if member.to else "")
    return _reason("kept_for_owner", text, f"{names} coming back, or that time", until=until or None)


def _ahead(core: DispatchState, row: int) -> int:
    """Open rows that a pass would send to the same owner before this one."""
    fresh = core.window.state[row] == FRESH
    rows = core.window.rows_in(FRESH) if fresh else redelivered(core)
    allowance = core.members.allowance()
    candidates = candidates_of(core, rows, allowance, fresh=bool(fresh))
    blocked = closed_rows(closed(core, candidates))
    chosen = rows if blocked is None else rows[~blocked]
    slot = core.tables.owner[int(core.window.hash[row])]
    return int((core.tables.owner[core.window.hash[chosen[chosen < row]]] == slot).sum())


def _elsewhere(core: DispatchState, position: int) -> dict[str, Any]:
    """Explain the state of a position that is not in the window."""
    holder = next((member for member in core.members.claiming() if position in member.claims), None)
    if holder is not None:
        held = [{"message_id": show(position), "consumer": owner_name(core, holder.slot), "session": holder.number}]
        text = f"it is with {held[0]['consumer']} since an earlier owner of the subscription, unacknowledged"
        reasons = [_reason("delivered", text, _ENDS, held=held)]
    elif position <= core.window.last_read:
        text = "it is acknowledged, removed, or delayed and not yet due"
        reasons = [_reason("nothing_to_deliver", text, "nothing here; ask the cursor and the delayed index")]
    else:
        reasons = read_reasons(core)
    return {"position": show(position), "state": "not here", "reasons": reasons, "verdict": reasons[0]["gate"]}


def read_reasons(core: DispatchState) -> list[Reason]:
    """Return why nothing more is read forward now; `not_read` if nothing prevents it."""
    members = core.members
    if not len(members):
        return [_reason("no_owner", "no consumer is connected", "a consumer joining")]
    reasons = []
    if members.all_blocked:
        held = int(members.unacked.sum())
        reasons.append(
            _reason(
                "unacked_limit",
                f"{held} messages of the subscription are unacknowledged, the limit is {members.max_unacked_all}",
                "acknowledgements, below half of the limit",
            )
        )
    if not members.allowance().any():
        reasons += _nobody_may(core)
    reasons += _look_ahead(core, core.waiting)
    return reasons or [_reason("not_read", "it was not read yet, and nothing prevents reading", "the next read")]


def due_reasons(core: DispatchState) -> list[Reason]:
    """Return why a due message is not taken out of the delayed index now; `deliverable` if nothing prevents it."""
    if not len(core.members):
        return [_reason("no_owner", "no consumer is connected", "a consumer joining")]
    reasons = [] if core.members.allowance().any() else _nobody_may(core)
    reasons += _look_ahead(core, core.due_waiting)
    return reasons or [_reason("deliverable", "it is due, and nothing holds it back", "the next look at what is due")]


def _look_ahead(core: DispatchState, waiting: int) -> list[Reason]:
    limit = core.look_ahead_limit()
    if waiting < limit:
        return []
    return [
        _reason(
            "look_ahead_limit",
            f"{waiting} messages wait to be sent, the limit is {limit}",
            "delivery of those that wait; blocked_keys names what they wait for",
        )
    ]


def _first_waiting(core: DispatchState, rows: Rows) -> int | None:
    """Return the row of a hash that would go out first."""
    state = core.window.state[rows]
    waiting = rows[np.isin(state, _WAITING)]
    return int(waiting[0]) if len(waiting) else None


def _nothing_waits(core: DispatchState, rows: Rows, now: int) -> list[Reason]:
    """Explain that no row of the hash asks to be sent."""
    if len(rows) == 0:
        return [
            _reason(
                "nothing_to_deliver", "no message of it was read that is neither acknowledged nor delayed", "a publish"
            ),
            *read_reasons(core),
        ]
    return [reason for row in rows[:1] for reason in row_reasons(core, int(row), now)]


def _same_hash(core: DispatchState, rows: Rows, key_hash: int) -> list[Reason]:
    """Explain that another key shares the hash, and the key waits for its messages."""
    others = rows[core.window.masked_hash[rows] != key_hash]
    held = others[core.window.state[others] == PENDING]
    if len(held) == 0:
        return []
    return [
        _reason(
            "same_hash",
            f"{len(held)} unacknowledged messages with the same hash belong to another key",
            "acknowledgement of these",
            messages=[show(int(at)) for at in core.window.position[held[:_SHOWN]]],
        )
    ]


def _counts(core: DispatchState, rows: Rows) -> dict[str, int]:
    state = core.window.state[rows]
    return {
        "pending": int((state == PENDING).sum()),
        "waiting": int(np.isin(state, _WAITING).sum()),
        "delayed": int((state == WAITING).sum()),
    }


def _holders(core: DispatchState, rows: Rows, now: int) -> list[dict[str, Any]]:
    """Return pending messages, the oldest position first: where they are and since when."""
    window = core.window
    return [
        {
            "message_id": show(int(window.position[row])),
            "consumer": owner_name(core, int(window.consumer[row])),
            "session": core.members.at(int(window.consumer[row])).number,
            **({"removed": True} if window.flags[row] & REMOVED else {}),
            "age_ms": max(now - int(window.since[row]), 0),
        }
        for row in rows
    ]


def owner_name(core: DispatchState, slot: int) -> str:
    """Return the name in answers of the consumer in a taken slot."""
    member = core.members.at(slot)
    return f"{member.name}#{member.number}"


def _owner(core: DispatchState, hash: int) -> str | None:
    slot = int(core.tables.owner[hash])
    return None if slot == NO_SLOT else owner_name(core, slot)


def _reason(gate: str, text: str, unblocks: str, **more: object) -> Reason:
    return {"gate": gate, "text": text, "unblocks": unblocks, **more}


def blocked_keys(core: DispatchState, top: int, now: int) -> list[dict[str, Any]]:
    """Return hashes with waiting messages, the longest waiting first, with the reasons of their first message."""
    window = core.window
    rows = window.rows_in(*_WAITING)
    hashes, first, counts = np.unique(window.hash[rows], return_index=True, return_counts=True)
    oldest = np.full(HASH_RANGE, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(oldest, window.hash[rows], window.since[rows])
    order = np.lexsort((hashes, oldest[hashes]))[: max(top, 0)]
    return [
        {
            "hash": int(hashes[at]),
            "owner": _owner(core, int(hashes[at])),
            "messages": int(counts[at]),
            "age_ms": max(now - int(oldest[hashes[at]]), 0),
            "first": show(int(window.position[rows[first[at]]])),
            "reasons": row_reasons(core, int(rows[first[at]]), now),
        }
        for at in order
    ]
