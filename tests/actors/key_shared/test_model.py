"""The dispatcher and the reference model agree, message for message, over random schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.messages import NO_POSITIONS, SubscriptionSettings
from sluice.storage.format.hashing import masked_hash
from sluice.storage.format.position import position
from tests.actors.key_shared.model import Model

KEYS = [masked_hash(f"key-{number}".encode()) for number in range(9)]
NAMES = ("alpha", "beta", "gamma")

CONFIGS: list[dict[str, Any]] = [
    {},
    {"selector": "auto_split"},
    {"policy": "last_sent_position"},
    {"policy": "last_sent_position", "remember_unacked_keys": True},
    {"policy": "read_position"},
    {"policy": "read_position", "remember_unacked_keys": True},
    {"allow_out_of_order_delivery": True},
    {"delay_key_policy": "block_key"},
    {"delay_key_policy": "block_key", "policy": "last_sent_position"},
    {"nack_order": "key"},
    {"nack_order": "key", "selector": "auto_split"},
    {"nack_order": "key", "delay_key_policy": "block_key"},
]
LIMITS: list[dict[str, Any]] = [
    {},
    {"max_unacked_messages_per_consumer": 4, "max_unacked_messages_per_subscription": 9},
    {"look_ahead_per_consumer": 5, "look_ahead_per_subscription": 8, "max_redeliver_count": 2},
]


def ints(values: list[int]) -> np.ndarray:
    """Return a column of positions."""
    return np.array(values, np.int64)


class Schedule(RuleBasedStateMachine):
    """The events of a subscription, in any order."""

    @initialize(
        config=st.sampled_from(CONFIGS[:2] * 4 + CONFIGS + CONFIGS[-3:] * 2),
        limits=st.sampled_from(LIMITS),
        first=st.integers(0, 3),
    )
    def start(self, config: dict[str, Any], limits: dict[str, Any], first: int) -> None:
        self.settings = SubscriptionSettings(replica_points=3, **config, **limits)
        self.dispatch = self.make()
        self.model = Model(self.settings)
        self.now = 1000
        self.ledger, self.entry = 1, 0
        self.backlog: list[tuple[int, int]] = []
        self.delayed: list[tuple[int, int]] = []
        self.published: list[int] = []
        self.sent = 0
        for _ in range(first):
            self.join("alpha", [], 20)

    def make(self) -> KeySharedDispatcher:
        return KeySharedDispatcher(self.settings)

    # -- rules ------------------------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.integers(0, 8), min_size=1, max_size=12), delayed=st.integers(0, 7), roll=st.booleans())
    def publish(self, keys: list[int], delayed: int, roll: bool) -> None:
        for key in keys:
            at = position(self.ledger, self.entry)
            late = key == delayed and not (self.dispatch.holds_keys and self.entry % 2)
            if late:
                self.delayed.append((at, KEYS[key]))
            if not late or self.dispatch.holds_keys:
                self.backlog.append((at, KEYS[key]))
            self.published.append(at)
            self.entry += 1
        if roll:
            self.ledger, self.entry = self.ledger + 1, 0

    @rule(beyond=st.sampled_from([0, 0, 0, 3]))
    def read(self, beyond: int) -> None:
        room = self.dispatch.room()
        assert room == self.model.room()
        batch, self.backlog = self.backlog[: room + beyond], self.backlog[room + beyond :]
        late = [at for at, _ in batch if self.dispatch.holds_keys and at in dict(self.delayed)]
        self.dispatch.append(
            ints([at for at, _ in batch]),
            np.array([h for _, h in batch], np.uint32),
            delayed=np.array([at in late for at, _ in batch], np.bool_),
        )
        self.model.append(batch, late)

    @precondition(lambda self: self.delayed)
    @rule(pick=st.lists(st.integers(0, 1000), min_size=1, max_size=4, unique=True))
    def fall_due(self, pick: list[int]) -> None:
        chosen = sorted({i % len(self.delayed) for i in pick})
        # Under block_key the index brings only what was read; without, the order of reading does not matter.
        unread = dict(self.backlog) if self.dispatch.holds_keys else {}
        batch = [self.delayed[i] for i in chosen if self.delayed[i][0] not in unread]
        self.delayed = [message for message in self.delayed if message not in batch]
        batch.reverse()
        self.dispatch.due(ints([at for at, _ in batch]), np.array([h for _, h in batch], np.uint32))
        self.model.due(batch)

    @rule(
        name=st.sampled_from(NAMES), pick=st.lists(st.integers(0, 40), max_size=3), permits=st.sampled_from([0, 3, 20])
    )
    def join(self, name: str, pick: list[int], permits: int) -> None:
        if len(self.model.consumers) >= 5:
            return
        holding = sorted({self.published[i] for i in pick if i < len(self.published)})
        number = self.dispatch.join(name, now=self.now, holding=ints(holding) if holding else NO_POSITIONS)
        assert number == self.model.join(name, holding)
        self.grant_to(number, permits)

    @rule(pick=st.integers(0, 5), some=st.integers(1, 3))
    def bring(self, pick: int, some: int) -> None:
        number = self._consumer(pick)
        consumer = self.model.consumer(number)
        unread = sorted(consumer.claims) if consumer else []
        assert self.dispatch.claims_of(number).tolist() == unread
        known = dict(self.backlog)
        messages = [(at, known[at]) for at in unread if at in known][::some]
        self.dispatch.bring(number, ints([at for at, _ in messages]), np.array([h for _, h in messages], np.uint32))
        self.model.bring(number, messages)

    def grant_to(self, number: int, more: int) -> None:
        consumer = self.model.consumer(number)
        total = (consumer.granted if consumer else 0) + more
        self.dispatch.grant(number, total)
        self.model.grant(number, total)

    @rule(pick=st.integers(0, 5), more=st.integers(-2, 12))
    def grant(self, pick: int, more: int) -> None:
        self.grant_to(self._consumer(pick), more)

    def _consumer(self, pick: int) -> int:
        """Return the number of a present consumer, or one that never was."""
        numbers = [consumer.number for consumer in self.model.consumers]
        return numbers[pick % len(numbers)] if numbers and pick < 5 else 999

    @rule(pick=st.integers(0, 4))
    def leave(self, pick: int) -> None:
        number = self._consumer(pick)
        for _ in range(2):
            self.dispatch.leave(number, now=self.now)
        self.model.leave(number)

    @rule()
    def route(self) -> None:
        want = self.model.route(self.now)
        got = []
        for part in self.dispatch.route(self.now):
            assert part.dispatch == self.sent
            self.sent += len(part.positions)
            again = part.redeliveries if len(part.redeliveries) else np.zeros(len(part.positions), np.uint8)
            assert len(again) == len(part.positions) > 0
            got += [(part.consumer, int(at), int(n)) for at, n in zip(part.positions, again, strict=True)]
        # Per consumer the order is that of sending; between consumers there is none.
        for number in {consumer for consumer, _, _ in want + got}:
            assert [g for g in got if g[0] == number] == [w for w in want if w[0] == number]
        assert not self.dispatch.stalled()
        assert not self.dispatch.route(self.now)
        for message in self.model.in_state("replay", "unordered", "held"):
            assert self.dispatch.explain(position=message.position, now=self.now)["verdict"] != "deliverable"

    @rule(
        part=st.sampled_from(["own", "all", "any", "read"]),
        pick=st.integers(0, 5),
        every=st.integers(1, 3),
        soon=st.booleans(),
    )
    def acknowledge(self, part: str, pick: int, every: int, soon: bool = False) -> None:
        number = self._consumer(pick)
        held = self.model.in_state("pending")
        choice = {
            "own": [m.position for m in held if m.holder == number],
            "all": [m.position for m in held],
            "any": self.published,
            "read": [m.position for m in self.model.in_state("replay", "unordered", "waiting", "dead", "done")],
        }[part][::every]
        twice = choice[::-1] + choice[:2]
        for positions in (twice, choice):
            if soon:
                self.dispatch.acknowledge_soon(ints(positions), number)
                self.model.acknowledge(positions)
                continue
            done = self.dispatch.acknowledge(ints(positions), number)
            assert done.tolist() == self.model.acknowledge(positions)
        acked = set(choice)
        self.backlog = [message for message in self.backlog if message[0] not in acked]
        self.delayed = [message for message in self.delayed if message[0] not in acked]
        self._move_mark()

    @rule(pick=st.integers(0, 5), every=st.integers(1, 3))
    def redeliver_all(self, pick: int, every: int) -> None:
        number = self._consumer(pick)
        consumer = self.model.consumer(number)
        held = [m.position for m in self.model.in_state("pending") if m.holder == number]
        seen, unseen = held[::every], min(len(held) - len(held[::every]), consumer.sent if consumer else 0)
        got = self.dispatch.redeliver_all(number, ints(seen), unseen=unseen, now=self.now)
        assert got == self.model.redeliver_all(number, seen, unseen)

    @rule(pick=st.integers(0, 5), every=st.integers(1, 3), delay=st.sampled_from([0, 0, 50]), counted=st.booleans())
    def negative_acknowledge(self, pick: int, every: int, delay: int, counted: bool) -> None:
        number = self._consumer(pick)
        mine = self.model.consumer(number)
        claimed = mine.claims if mine else set()
        givable = sorted({m.position for m in self.model.in_state("pending")} | claimed)
        positions = givable[::every]
        got = self.dispatch.negative_acknowledge(number, ints(positions), now=self.now, delay=delay, counted=counted)
        assert got == self.model.negative_acknowledge(number, positions, self.now, delay, counted)

    @rule(pick=st.integers(0, 5), every=st.integers(1, 3), had=st.integers(1, 3))
    def give_back_what_was_asked(self, pick: int, every: int, had: int) -> None:
        number = self._consumer(pick)
        asked = self.model.revoked(number)
        told = self.dispatch.take_revoked(number).tolist()
        assert set(told) <= set(asked)
        positions = asked[::every]
        got = self.dispatch.negative_acknowledge(
            number, ints(positions), now=self.now, counted=False, overtook=ints(positions[::had])
        )
        for at in positions[::had]:
            self.model.messages[at].overtook = True
        assert got == self.model.negative_acknowledge(number, positions, self.now, 0, False)

    @rule(how=st.sampled_from(["positions", "up_to", "both", "clear"]), pick=st.integers(0, 60))
    def remove(self, how: str, pick: int) -> None:
        live = [m.position for m in self.model.messages.values()]
        up_to = live[pick % len(live)] if live and how in ("up_to", "both") else None
        positions = live[::3] if how in ("positions", "both") else None
        if how == "up_to" and up_to is None:
            return
        self.dispatch.remove(None if positions is None else ints(sorted(positions)), up_to)
        self.model.remove(positions, up_to)
        # What is removed is acknowledged in the cursor, and the delayed index no longer brings it.
        gone = {m.position for m in self.model.messages.values() if m.removed or m.state == "done"}
        self.backlog = [message for message in self.backlog if message[0] not in gone]
        self.delayed = [message for message in self.delayed if message[0] not in gone]

    @rule(milliseconds=st.sampled_from([1, 30, 100]))
    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds

    @rule()
    def bury_dead_letters(self) -> None:
        dead = [m.position for m in self.model.in_state("dead")]
        assert self.dispatch.has_dead_letters() == bool(dead)
        assert self.dispatch.dead_letters().tolist() == dead, "all that died, and no other"
        assert self.dispatch.acknowledge(ints(dead)).tolist() == self.model.acknowledge(dead) == dead
        self._move_mark()

    def _move_mark(self) -> None:
        """Mark everything below the first open position as deleted, as a cursor would."""
        undone = [at for at, _ in self.backlog + self.delayed]
        undone += [m.position for m in self.model.messages.values() if m.state != "done"]
        mark = min(undone, default=position(self.ledger, self.entry)) - 1
        self.dispatch.mark_deleted(mark)
        self.model.mark_deleted(mark)

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "dispatch"):
            return
        self.dispatch.check()
        for consumer in self.model.consumers:
            held = [m.position for m in self.model.in_state("pending") if m.holder == consumer.number]
            assert self.dispatch.pending(consumer.number).tolist() == held
        stats = self.dispatch.stats(self.now)
        assert stats["msgInReplay"] == len(self.model.in_state("replay", "unordered"))
        assert stats["msgDelayedHoldingKeys"] == len(self.model.in_state("held"))
        assert stats["msgRevoked"] == sum(m.revoked for m in self.model.in_state("pending"))
        live = [m.position for m in self.model.messages.values() if m.state != "done"]
        had = sorted(at for at in live if self.model.messages[at].overtook)
        assert self.dispatch.overtook(ints(sorted(live))).tolist() == had
        assert stats["msgDeadLetter"] == len(self.model.in_state("dead"))
        assert stats["blockedSubscriptionOnUnackedMsgs"] == self.model.all_blocked
        assert self.dispatch.room() == self.model.room()

    def teardown(self) -> None:
        """Let everything flow. All is delivered, and after the last acknowledgement nothing is left."""
        if not hasattr(self, "dispatch"):
            return
        if not self.model.consumers:
            self.join("alpha", [], 0)
        for _ in range(400):
            self.now += 100
            for consumer in self.model.consumers:
                self.grant_to(consumer.number, 50)
            self.read(0)
            self.fall_due([0, 1, 2]) if self.delayed else None
            self.route()
            self.acknowledge("all", 5, 1)
            self.bury_dead_letters()
            if not self.backlog and not self.delayed and self.dispatch.idle():
                break
        assert self.dispatch.idle()
        self._nothing_left()
        if self.settings.policy == "draining_hashes" and not self.settings.allow_out_of_order_delivery:
            highest: dict[int, int] = {}
            for value, at in self.model.first_deliveries:
                assert at > highest.get(value, -1)
                highest[value] = at

    def _nothing_left(self) -> None:
        self.dispatch.check()
        stats = self.dispatch.stats(self.now)
        for name in ("msgInReplay", "msgDelayedRedelivery", "msgDeadLetter", "drainingHashesCount"):
            assert stats[name] == 0
        # What a consumer said that it holds, and nobody acknowledged, it still holds, although it is done.
        claims = {consumer.number: len(consumer.claims) for consumer in self.model.consumers}
        assert {consumer["consumerNumber"]: consumer["unackedMessages"] for consumer in stats["consumers"]} == claims
        assert stats["unackedMessages"] == sum(claims.values())
        assert stats["sentinel"]["checkedHolder"] >= len(self.model.first_deliveries)


Schedule.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    report_multiple_bugs=False,
    database=None,
)
TestSchedule = Schedule.TestCase
