"""Decisions that keep a record of each call that changes them: a tap at their one entry.

The decisions depend on nothing but their calls, so the calls in order are enough to make them again. A call costs the
entry of a tuple in a list; packing and writing are the work of the background (`flight_recorder`). Arrays are kept as
they are, because neither callers nor decisions change the ones that they hand over.

Keys of parked messages are replaced by 64 bits of their hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sluice.actors.key_shared import (
    Assignments,
    AttachedConsumer,
    HashRangeAssignments,
    History,
    KeySharedDispatcher,
    ParkedKey,
    Parking,
)
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.recorder.flight_file import (
    CALLS,
    NUMBERS,
    RecordedCalls,
    RecordedSubscription,
    outcome,
)

MOST_BYTES = 32 * 1024 * 1024
"""While the recordings of a process hold so many bytes for the background, they take no more: a gap."""
EARLY_BYTES = 2 * 1024 * 1024
"""With so many bytes the background writes before its time."""
CALM, PATIENCE = 10_000, 200
"""A snapshot waits until fewer messages are not done, for so many passes at most."""
_CALL_BYTES = 100
_LONGEST_REMARK = 2_000
_ROUTE = NUMBERS["route"]


class RecordingRoom:
    """The memory of all recordings of a process. held: bytes of calls that are not written; filled: whose they are.

    wake: called when there is a call to write, unless `awake`; with True: when there are many. The one who is woken
    sets `awake`.
    """

    def __init__(self, wake: Callable[[bool], None] = lambda hurry: None) -> None:
        self.wake = wake
        self.held = 0
        self.filled: list[Recording] = []
        self.awake = False


class Recording:
    """The calls of one dispatcher that are not written yet. dropped: calls that had no room, since the last snapshot.
    age: how many files were begun since then.

    Calls are the values of RecordedCall in plain tuples, which the garbage collector stops tracking.
    """

    def __init__(self, of: RecordedSubscription, room: RecordingRoom | None = None) -> None:
        self.of, self._room = of, room or RecordingRoom()
        self._calls: list[tuple[Any, ...]] = []
        self._bytes, self._first = 0, 0
        self.dropped, self.age = 0, 0
        self._patience = 0
        self.wants_snapshot = False

    def note(self, call: tuple[Any, ...], size: int = _CALL_BYTES) -> None:
        """Keep a call of about `size` bytes beside those of its arrays, if there is room."""
        room = self._room
        if self.dropped or room.held > MOST_BYTES:
            self.dropped += 1
            self.wants_snapshot = True
            return
        if not self._calls:
            room.filled.append(self)
        for value in call[1]:
            if type(value) is np.ndarray:
                size += value.nbytes
        self._bytes += size
        room.held += size
        self._calls.append(call)
        if not room.awake or room.held > EARLY_BYTES:
            room.wake(room.held > EARLY_BYTES)

    def remark(self, at: int, text: str) -> None:
        """Keep a sentence about the dispatcher: a finding, an alarm, its end. at: ms."""
        self.note((NUMBERS["remark"], (at, text[:_LONGEST_REMARK]), None, None, ""))

    def stop(self) -> None:
        """Keep nothing any more."""
        self._calls, self._room = [], RecordingRoom()
        self._room.held = MOST_BYTES + 1

    def ask_for_snapshot(self) -> None:
        """Let the next dispatch pass that finds few messages leave a snapshot."""
        if not self.wants_snapshot:
            self.wants_snapshot, self._patience = True, PATIENCE

    def snapshot(self, decisions: KeySharedDispatcher, unfinished: int) -> None:
        """Keep the whole state, and say before it how many calls are missing. unfinished: messages in it."""
        self._patience -= 1
        if self._room.held > MOST_BYTES or (unfinished > CALM and self._patience > 0):
            return
        self.wants_snapshot, self.age = False, 0
        missing, self.dropped = self.dropped, 0
        if missing:
            self.note((NUMBERS["gap"], (missing,), None, None, ""))
        state = decisions.snapshot()
        self.note((NUMBERS["snapshot"], (state,), None, None, ""), len(state))

    def taken(self, at: int) -> RecordedCalls | None:
        """Return all calls since this was asked last, as of `at` (ms of the wall clock); None if there are none."""
        if not self._calls:
            return None
        chunk = RecordedCalls(self.of, self._first, at, self._calls)
        self._first += len(self._calls)
        self._room.held -= self._bytes
        self._calls, self._bytes = [], 0
        return chunk


class RecordedDecisions(KeySharedDispatcher):
    """The decisions of a subscription whose calls are recorded."""

    def __init__(
        self,
        settings: SubscriptionSettings,
        recording: Recording,
        *,
        partition: int = 0,
        first_consumer: int = 1,
        history: History | None = None,
        now: int = 0,
    ) -> None:
        """recording: takes the calls. now: ms. The other arguments are those of the decisions."""
        history = history or History()
        super().__init__(settings, partition=partition, first_consumer=first_consumer, history=history)
        self.recording = recording
        self._violations = 0
        began = (msgspec.msgpack.encode(settings), partition, first_consumer, history.number, now)
        recording.note((NUMBERS["begin"], began, None, None, ""))

    def route(self, now: int) -> Assignments:
        """Record a dispatch; after it a snapshot is taken, if the recording wants one."""
        recording = self.recording
        try:
            sent = super().route(now)
        except BaseException as error:
            recording.note((_ROUTE, (now,), None, None, f"{type(error).__name__}: {error}"))
            raise
        size = sum([share.positions.nbytes for share in sent.shares], _CALL_BYTES)
        recording.note((_ROUTE, (now,), None, sent.shares or None, ""), size)
        sentinel = self._core.sentinel
        if sentinel.violations_order + sentinel.violations_holder > self._violations:
            self._violations = sentinel.violations_order + sentinel.violations_holder
            recording.remark(now, f"the order sentinel found: {sentinel.stories[-1]}")
        if recording.wants_snapshot:
            recording.snapshot(self, self._core.window.live)
        return sent

    @property
    def ring(self) -> HashRangeAssignments:
        """The ring of the decisions, with its calls recorded."""
        ring = _RecordedRing(self._core)
        ring.recording = self.recording
        return ring

    @property
    def parking(self) -> Parking:
        """The parked keys of the decisions, with the calls recorded."""
        parking = _RecordedParking(self._core)
        parking.recording = self.recording
        return parking


class _RecordedRing(HashRangeAssignments):
    recording: Recording


class _RecordedParking(Parking):
    recording: Recording


def _tapped(number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        recording: Recording = self.recording
        try:
            answer = original(self, *arguments, **named)
        except BaseException as error:
            recording.note((number, arguments, named or None, None, f"{type(error).__name__}: {error}"))
            raise
        if isinstance(answer, int):
            kept: Any = int(answer)  # what `outcome` makes of it: most calls answer so, or nothing
        else:
            kept = None if answer is None else outcome(answer)
        recording.note((number, arguments, named or None, kept, ""))
        return answer

    return call


def _kept(value: Any) -> Any:
    """Return an argument as it is kept: a key as its hash, a place as its slot, a parked key as its number."""
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=8).digest()
    if isinstance(value, AttachedConsumer):
        return value.slot
    if isinstance(value, ParkedKey):
        return value.number
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return [_kept(key) for key in value.to_pylist()]
    return [_kept(each) for each in value] if isinstance(value, list | tuple) else value


def _tapped_values(number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    tapped = _tapped(number, lambda self, *arguments, **named: original(self, *self._given[0], **self._given[1]))

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        given = tuple(_listed(value) for value in arguments), {name: _listed(value) for name, value in named.items()}
        self._given = given
        return tapped(self, *map(_kept, given[0]), **{name: _kept(value) for name, value in given[1].items()})

    return call


def _listed(value: Any) -> Any:
    """An iterator as a list, which can be read twice."""
    return list(value) if isinstance(value, Iterator) else value


def _calls(prefix: str) -> Iterator[tuple[int, str]]:
    for number, name in enumerate(CALLS):
        if name.startswith(prefix) and "." not in name[len(prefix) :]:
            yield number, name[len(prefix) :]


for _number, _name in _calls(""):
    if _name not in ("begin", "snapshot", "gap", "route", "remark"):
        setattr(RecordedDecisions, _name, _tapped(_number, getattr(KeySharedDispatcher, _name)))
for _number, _name in _calls("ring."):
    setattr(_RecordedRing, _name, _tapped_values(_number, getattr(HashRangeAssignments, _name)))
for _number, _name in _calls("parking."):
    setattr(_RecordedParking, _name, _tapped_values(_number, getattr(Parking, _name)))
