"""The timeline of a key, and where the time of messages went: both by making recorded decisions again.

A line of a timeline says what one call did to the messages of one key. After every dispatch the dispatcher's own gates
are asked why the rest of them waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared import (
    REASONS,
    SET_ASIDE,
    Assignments,
    KeySharedDispatcher,
    ReadGates,
    WaitingMessages,
)
from sluice.actors.messages import NO_POSITIONS
from sluice.actors.recorder.flight_file import RecordedCall, RecordedCalls, RecordedSubscription, since_last_state
from sluice.actors.recorder.replay import DecisionReplay
from sluice.storage.errors import NotFound
from sluice.storage.format.position import Positions, show

_SHOWN = 5
_ARRIVALS = {"append": "read from the log", "due": "due"}
_NO_WAIT = ("nothing_to_deliver", "deliverable", "delivered")
_DONE = {"acknowledge_soon": "acknowledged", "acknowledge": "acknowledged", "remove": "removed"}


class KeyEvent(NamedTuple):
    """An event in the story of a key. at: ms. partition and epoch: of its dispatcher."""

    at: int
    partition: int
    epoch: int
    text: str


class KeyTimeline:
    """The story of one key in a replay of one dispatcher. had_messages: whether any message of the key was there."""

    def __init__(self, replay: DecisionReplay, key_hash: int) -> None:
        self._replay, self._hash = replay, key_hash
        self._mine: Positions = NO_POSITIONS
        self._names: dict[int, str] = {}
        self._owner, self._why, self._since = "nobody", "", 0
        self.had_messages = False
        self.lines: list[KeyEvent] = []

    def follow(self, call: RecordedCall, answer: Any) -> None:
        """Note what a call did to the key."""
        if call.name == "remark":
            self._add(str(call.arguments[1]))
            return
        decisions = self._replay.decisions
        assert decisions is not None
        self._names |= {each.number: each.name for each in decisions.consumers()}
        name, arguments = call.name, call.arguments
        if self.lines and not self.lines[-1].at:  # the recording began before anything named a time
            self.lines[-1] = self.lines[-1]._replace(at=self._replay.at)
        if name in _ARRIVALS:
            came = arguments[0][arguments[1] == self._hash]
            self._say(came, _ARRIVALS[name])
            self._mine = np.union1d(self._mine, came)
        elif name in _DONE:
            done = self._of(arguments[0] if arguments and arguments[0] is not None else NO_POSITIONS)
            self._say(done, f"{_DONE[name]}{self._by(arguments[1] if len(arguments) > 1 else None)}")
            self._mine = np.setdiff1d(self._mine, done)
        elif name in ("negative_acknowledge", "redeliver_all"):
            self._say(self._of(arguments[1]), f"given back{self._by(arguments[0])}")
        elif name == "parking.park":
            self._say(self._of(arguments[0]), "parked")
        elif isinstance(answer, Assignments):
            self._sent(answer)
            self._look(decisions)
        elif name in ("begin", "snapshot"):
            self._mine = decisions.positions_of(self._hash)
            self.had_messages |= len(self._mine) > 0
            self._add("the recording begins" if name == "begin" else "a snapshot was taken")
            return
        self._follow_owner(decisions)

    def _sent(self, sent: Assignments) -> None:
        for each in sent:
            mine = self._of(each.positions)
            if not len(mine):
                continue
            waited = f" after {self._replay.at - self._since} ms of {self._why}" if self._why else ""
            again = each.redeliveries[np.isin(each.positions, mine)] if len(each.redeliveries) else None
            times = f", redelivery {int(again.max())}" if again is not None and again.any() else ""
            self._say(mine, f"delivered to {self._name(each.consumer)}{times}{waited}")
            self._why = ""

    def _look(self, decisions: KeySharedDispatcher) -> None:
        """Note why the remaining messages of the key wait now."""
        if not len(self._mine):
            return
        answer = decisions.explain(key_hash=self._hash, now=self._replay.at)
        reason = answer["reasons"][0] if answer["reasons"] else {}
        why = "" if answer["verdict"] in _NO_WAIT else str(answer["verdict"])
        if why and why != self._why:
            self._since = self._replay.at
            said = reason.get("text") or reason.get("because") or ""
            self._add(f"waits: {why}{': ' if said else ''}{said}")
        self._why = why

    def _follow_owner(self, decisions: KeySharedDispatcher) -> None:
        reduced = int(decisions.reduce(np.array([self._hash], np.uint32))[0])
        owner = str(decisions.owner(reduced)["owner"]) or "nobody"
        if owner != self._owner:
            self._owner = owner
            self._add(f"belongs to {owner}")

    def _of(self, positions: Positions) -> Positions:
        return np.intersect1d(self._mine, positions)

    def _by(self, number: Any) -> str:
        return f" by {self._name(number)}" if isinstance(number, int) else ""

    def _name(self, number: int) -> str:
        return f"{self._names.get(number, 'a consumer')}#{number}"

    def _say(self, positions: Positions, text: str) -> None:
        if len(positions):
            self.had_messages = True
            first = ", ".join(show(at) for at in positions[:_SHOWN].tolist())
            more = f" and {len(positions) - _SHOWN} more" if len(positions) > _SHOWN else ""
            self._add(f"{first}{more} {text}")

    def _add(self, text: str) -> None:
        of = self._replay.of
        self.lines.append(KeyEvent(self._replay.at, of.partition, of.epoch, text))


def timeline(chunks: Iterable[RecordedCalls], key_hash: int, start: int, end: int) -> list[KeyEvent]:
    """Return everything that happened to a key from `start` to `end` (ms), over changes of owner. Raises Corrupt.

    Partitions that had no message of the key are left out, unless none had any.
    """
    runs: dict[RecordedSubscription, tuple[DecisionReplay, KeyTimeline]] = {}
    for chunk in chunks:
        if chunk.of not in runs:
            made = DecisionReplay(chunk.of)
            runs[chunk.of] = made, KeyTimeline(made, key_hash)
        run, key = runs[chunk.of]
        run.chunk(chunk, key.follow, until=end)
    own = {of.partition for of, (_, key) in runs.items() if key.had_messages}
    told = [key.lines for of, (_, key) in runs.items() if not own or of.partition in own]
    lines = [line for each in told for line in each if start <= line.at <= end]
    return sorted(lines, key=lambda line: (line.at, line.epoch))


def in_office(
    chunks: Iterable[RecordedCalls],
    at: int,
    after: Callable[[DecisionReplay, RecordedCall, Any], None] | None = None,
) -> Iterator[DecisionReplay]:
    """Make decisions again until `at` (ms), each owner's from its last state before.

    Yields the last owner of each partition, in order: only those of one partition are made at a time. after: called
    after each call. Raises NotFound if there is none, Corrupt.
    """
    kept: dict[int, dict[RecordedSubscription, list[RecordedCalls]]] = {}
    for chunk in since_last_state(chunks, at):
        kept.setdefault(chunk.of.partition, {}).setdefault(chunk.of, []).append(chunk)
    found = False
    for _, owners in sorted(kept.items()):
        runs = [_made_again(of, mine, at, after) for of, mine in owners.items()]
        known = [run for run in runs if run.decisions is not None and run.at]
        if known:
            found = True
            yield max(known, key=lambda run: (run.of.epoch, run.at))
    if not found:
        raise NotFound("no recording reaches back so far; `sluice incident replay` of an export says what there is")


def _made_again(
    of: RecordedSubscription,
    chunks: list[RecordedCalls],
    at: int,
    after: Callable[[DecisionReplay, RecordedCall, Any], None] | None,
) -> DecisionReplay:
    run = DecisionReplay(of)
    for chunk in chunks:
        run.chunk(chunk, None if after is None else partial(after, run), until=at)
    return run


def explained(runs: Iterable[DecisionReplay], key_hash: int, at: int) -> dict[str, Any]:
    """Return what the gates said of a masked hash at `at` (ms); the partition counts that has messages of it."""

    def likely(run: DecisionReplay) -> tuple[bool, int, int]:
        return bool(run.decisions and len(run.decisions.positions_of(key_hash))), run.of.epoch, run.at

    run = max(runs, key=likely)
    assert run.decisions is not None
    answer = run.decisions.explain(key_hash=key_hash, now=at)
    return {"partition": run.of.partition, "epoch": run.of.epoch, "at": at, **answer}


def explain_at(chunks: Iterable[RecordedCalls], key_hash: int, at: int) -> dict[str, Any]:
    """Return what the gates of the dispatcher in office said of a key at `at` (ms). Raises NotFound, Corrupt."""
    return explained(in_office(chunks, at), key_hash, at)


class Waits:
    """The time of messages from their confirmation to their first delivery, by reason, in message-milliseconds.

    by_reason: NEW_OWNER before the first dispatch of an owner, gates of reading before a message is read, and gates of
    the dispatch from then on. The others begin when a message is read. by_consumer: the consumers that should get them.
    by_holder: the consumers whose messages hold a draining hash. by_hash: masked hashes. A message that is read counts
    with all its time before. Invariant: the values of by_reason add up to `whole`, which is the sum over messages of
    the time that each waited.
    """

    def __init__(self, replay: DecisionReplay, start: int, end: int, since: int = 0) -> None:
        """start, end: ms; time outside does not count. since: when the owner before was seen last, 0 for none."""
        self._replay, self._span, self._gates = replay, (start, end), ReadGates(since)
        self.by_reason: Counter[str] = Counter()
        self.by_consumer: Counter[str] = Counter()
        self.by_holder: Counter[str] = Counter()
        self.by_hash: Counter[int] = Counter()
        self.whole = 0
        self._at = 0
        self._waiting: WaitingMessages | None = None
        self._came: list[tuple[int, int]] = []
        """The messages that came since the last dispatch: how many, and when the topic confirmed them (ms)."""
        self._sent: set[int] = set()
        """Positions that were sent, of a subscription that parks keys."""

    def follow(self, call: RecordedCall, answer: Any) -> None:
        """Follow a call; after a dispatch look at the messages that wait."""
        now, decisions = self._replay.at, self._replay.decisions
        if call.name in ("begin", "snapshot"):
            if not self._at:
                self._gates.own_since(now)
                self._at = self._gates.since
            if call.name == "snapshot" and decisions is not None:
                self._waiting = None
                self._gates.next(decisions.reads_not_because())
        elif call.name == "append":
            self._came.append((len(call.arguments[0]), (call.named or {}).get("appended", 0)))
        elif isinstance(answer, Assignments) and decisions is not None:
            if not self._at:
                self._at = now
            self._read(now)
            if self._waiting is not None and len(self._waiting.positions):
                self._count(self._between(self._at, now), decisions)
            self._waiting, self._at = self._look(decisions, answer), now
            self._gates.next(decisions.reads_not_because())

    def _look(self, decisions: KeySharedDispatcher, sent: Assignments) -> WaitingMessages:
        """Return all messages that wait for their first delivery, with those of parked keys."""
        waiting = decisions.waiting()
        if not decisions.parking.on:
            return waiting
        for share in sent.shares:
            self._sent.update(share.positions.tolist())
        positions, hashes = decisions.parking.messages()
        never = np.array([at not in self._sent for at in positions.tolist()], bool)
        count = int(np.count_nonzero(never))
        parked = WaitingMessages(
            positions[never],
            hashes[never],
            np.zeros(count, np.int64),
            np.full(count, REASONS.index(SET_ASIDE), np.uint8),
            np.zeros(count, np.int64),
        )
        columns: list[Any] = [np.concatenate([one, other]) for one, other in zip(waiting[:], parked[:], strict=True)]
        return WaitingMessages(*columns)

    def _between(self, start: int, end: int) -> int:
        return max(min(end, self._span[1]) - max(start, self._span[0]), 0)

    def _read(self, now: int) -> None:
        """Count how long the messages that came were not read."""
        self._gates.read_at(now)
        came, self._came = self._came, []
        for count, appended in came:
            for gate, start, end in self._gates.parts(appended or now):
                self.by_reason[gate] += count * self._between(start, end)
                self.whole += count * self._between(start, end)

    def _count(self, milliseconds: int, decisions: KeySharedDispatcher) -> None:
        waiting = self._waiting
        assert waiting is not None
        self.whole += milliseconds * len(waiting.positions)
        for number, count in _counted(waiting.reasons):
            self.by_reason[REASONS[number]] += milliseconds * count
        names = {each.number: f"{each.name}#{each.number}" for each in decisions.consumers()}
        for number, count in _counted(waiting.owners):
            self.by_consumer[names.get(number, "nobody")] += milliseconds * count
        for number, count in _counted(waiting.holders[waiting.holders > 0]):
            self.by_holder[names.get(number, "nobody")] += milliseconds * count
        for hashed, count in _counted(waiting.hashes):
            self.by_hash[hashed] += milliseconds * count

    def add(self, other: Waits) -> None:
        """Add the waits at another dispatcher."""
        self.by_reason += other.by_reason
        self.by_consumer += other.by_consumer
        self.by_holder += other.by_holder
        self.by_hash += other.by_hash
        self.whole += other.whole


def _counted(values: npt.NDArray[Any]) -> list[tuple[int, int]]:
    which, counts = np.unique(values, return_counts=True)
    return list(zip(which.tolist(), counts.tolist(), strict=True))


def waits(chunks: Iterable[RecordedCalls], start: int, end: int) -> Waits:
    """Sum up the waits from `start` to `end` (ms) over all dispatchers. Raises Corrupt."""
    whole = Waits(DecisionReplay(RecordedSubscription("", 0, "", 0)), start, end)
    owners = sorted(chunks, key=lambda chunk: (chunk.of, chunk.first))
    before: DecisionReplay | None = None
    for of, mine in groupby(owners, key=lambda chunk: chunk.of):
        run = DecisionReplay(of)
        followed = before is not None and before.of[:3] == of[:3]
        sums = Waits(run, start, end, before.at if before is not None and followed else 0)
        for chunk in mine:
            run.chunk(chunk, sums.follow, until=end)
        whole.add(sums)
        before = run
    return whole
