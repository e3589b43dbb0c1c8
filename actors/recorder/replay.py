"""Makes recorded decisions again, and compares each with the recorded one.

A replay begins with the first call of a dispatcher or with a snapshot. Calls of a gap are unknown, so after it the
replay goes on at the next snapshot. Time is that of the calls: each names `now`, or happened when the last one did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from sluice.actors.key_shared import Assignments, History, JoinAs, KeySharedDispatcher
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.recorder.flight_file import (
    RecordedCall,
    RecordedCalls,
    RecordedSubscription,
    outcome,
)
from sluice.storage.errors import Corrupt, InvariantViolation
from sluice.storage.format.position import show
from sluice.storage.format.redeliveries import Redeliveries

_NOW_AT = {
    "begin": 4,
    "remark": 0,
    "route": 0,
    "ring.give_place": 1,
    "ring.give_up": 1,
    "ring.restore": 1,
    "remember": 1,
    "parking.park": 3,
}
"""The calls that take `now` by position."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that came out differently. at: ms; number: of the call; recorded and replayed: in words."""

    of: RecordedSubscription
    number: int
    at: int
    call: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"call {self.number} ({self.call}): recorded {self.recorded}; replayed {self.replayed}"


@dataclass(slots=True)
class Replayed:
    """The findings of a replay. calls, decisions (messages sent), gaps: numbers. missing: calls without a state before
    them. violations: broken promises that were recorded and came again, in words. first, last: ms, 0 if unknown.
    remarks: times (ms) and texts of what the recorder was told.
    """

    calls: int = 0
    decisions: int = 0
    gaps: int = 0
    missing: int = 0
    first: int = 0
    last: int = 0
    difference: Difference | None = None
    violations: list[str] = field(default_factory=list)
    remarks: list[tuple[int, str]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every decision came out as it was recorded, and no promise was broken."""
        return self.difference is None and not self.violations


class DecisionReplay:
    """The decisions of one dispatcher, made again call by call. decisions: as they stand; None before the first state.

    at: ms of the last call that named a time.
    """

    def __init__(self, of: RecordedSubscription, *, through: bool = False) -> None:
        """through: go on behind a difference."""
        self.of, self._through = of, through
        self.decisions: KeySharedDispatcher | None = None
        self.at = 0
        self._next: int | None = None
        self._over = False
        self.found = Replayed()

    def chunk(
        self, chunk: RecordedCalls, after: Callable[[RecordedCall, Any], None] | None = None, until: int | None = None
    ) -> bool:
        """Make the calls of a chunk; False: stop, because of a difference, or a call is later than `until` (ms).

        after: called with each call and its answer. Raises Corrupt.
        """
        if self._over:
            return False
        if self._next is not None and chunk.first != self._next:
            self.found.gaps += 1
            self.decisions = None
        for number, call in enumerate(chunk, chunk.first):
            now = _now(call)
            if until is not None and now is not None and now > until:
                self._over = True
                return False
            if now is not None:
                self.at = self.found.last = now
                self.found.first = self.found.first or now
            if not self._make(number, call, after):
                self._over = True
                return False
        self._next = chunk.first + len(chunk.calls)
        return True

    def check(self) -> None:
        """Count everything again, and note what does not agree."""
        if self.decisions is not None and not self.found.violations:
            try:
                self.decisions.check()
            except InvariantViolation as error:
                self.found.violations.append(f"InvariantViolation: {error}")

    def _make(self, number: int, call: RecordedCall, after: Callable[[RecordedCall, Any], None] | None) -> bool:
        found = self.found
        try:
            if call.name == "gap":
                found.gaps += 1
                self.decisions = None
                return True
            if call.name in ("begin", "snapshot", "remark"):
                if call.name == "remark":
                    found.remarks.append((self.at, str(call.arguments[1])))
                else:
                    self.decisions = _begun(call)
                if after is not None:
                    after(call, None)
                return True
            if self.decisions is None:
                found.missing += 1
                return True
            answer, error = None, ""
            made = _bound(self.decisions, call)
        except (TypeError, ValueError, IndexError, AttributeError, KeyError, msgspec.MsgspecError) as wrong:
            raise Corrupt(f"call {number} ({call.name}) cannot be made: {wrong}") from None
        try:
            answer = made()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        found.calls += 1
        recorded, replayed = _recorded(number, call), _said(call, _outcome(answer), error)
        if recorded != replayed and found.difference is None:
            found.difference = Difference(self.of, number, self.at, call.name, recorded, replayed)
            if not self._through:
                return False
        if error.startswith("InvariantViolation"):
            found.violations.append(error)
        if isinstance(answer, Assignments):
            found.decisions += sum(len(share.positions) for share in answer.shares)
        if after is not None:
            after(call, answer)
        return True


def replay(chunks: Iterable[RecordedCalls], *, through: bool = False) -> dict[RecordedSubscription, Replayed]:
    """Make all decisions again, of each dispatcher until the first difference, and check the invariants.

    through: go on behind a difference, to see whether the calls break a promise. Raises Corrupt.
    """
    runs: dict[RecordedSubscription, DecisionReplay] = {}
    for chunk in chunks:
        run = runs.setdefault(chunk.of, DecisionReplay(chunk.of, through=through))
        if through or run.found.difference is None:
            run.chunk(chunk)
            run.check()
    return {of: run.found for of, run in runs.items()}


def _now(call: RecordedCall) -> int | None:
    named = (call.named or {}).get("now")
    if named is None and (place := _NOW_AT.get(call.name)) is not None and place < len(call.arguments):
        named = call.arguments[place]
    return named if isinstance(named, int) else None


def _begun(call: RecordedCall) -> KeySharedDispatcher:
    if call.name == "snapshot":
        return KeySharedDispatcher.restored(call.arguments[0])
    settings, partition, first_consumer, number, _ = call.arguments
    return KeySharedDispatcher(
        msgspec.msgpack.decode(settings, type=SubscriptionSettings),
        partition=partition,
        first_consumer=first_consumer,
        history=History(number),
    )


def _bound(decisions: KeySharedDispatcher, call: RecordedCall) -> Callable[[], Any]:
    """Return the method with its arguments in their own types."""
    part, _, name = call.name.rpartition(".")
    target: Any = getattr(decisions, part) if part else decisions
    arguments, named = list(call.arguments), dict(call.named or {})
    if name == "join" and "entry" in named:
        named["entry"] = JoinAs(*named["entry"])
    elif name == "remember":
        arguments[0] = Redeliveries(*arguments[0])
    elif name in ("park", "examined"):
        arguments[1] = pa.array(arguments[1], pa.binary())
    elif name == "offer":
        arguments[0] = decisions.ring.place(arguments[0])
    elif name in ("decide", "resume"):
        held = {each.number: each for each in decisions.parking.held()}
        arguments[0] = [held[number] for number in arguments[0] if number in held]
    method = getattr(target, name)
    return lambda: method(*arguments, **named)


def _outcome(answer: Any) -> Any:
    return outcome((answer.shares or None) if isinstance(answer, Assignments) else answer)


def _recorded(number: int, call: RecordedCall) -> str:
    """Return the recorded outcome in words. Raises Corrupt."""
    try:
        kept = call.outcome if isinstance(call.outcome, tuple) else outcome(call.outcome)
        return _said(call, kept, call.error)
    except (TypeError, ValueError, AttributeError, OverflowError) as wrong:
        raise Corrupt(f"the outcome of call {number} ({call.name}) cannot be read: {wrong}") from None


def _said(call: RecordedCall, value: Any, error: str) -> str:
    """Return an outcome in words that are equal for equal outcomes."""
    if error:
        return error
    if call.name != "route":
        return str(value)
    sent = []
    for consumers, ends, positions, again, dispatch in value or ():
        start = 0
        for consumer, end in zip(consumers, ends, strict=True):
            shown = " ".join(map(show, positions[start:end])) if isinstance(positions, tuple) else f"{end - start} more"
            sent.append(f"#{consumer} [{shown}]")
            start = end
        sent += [f"checksum {positions}"] if isinstance(positions, int) else []
        sent += [f"again {again}"] if again else []
        sent.append(f"from {dispatch}")
    return ", ".join(sent) or "nothing"
