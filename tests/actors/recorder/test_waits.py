"""The waits of messages, split by reason: a spike of each kind is named first, and the parts add up to the whole."""

from __future__ import annotations

from collections import deque

import numpy as np
import pyarrow as pa

from sluice.actors.recorder.flight_file import assemble, pack, unpack
from sluice.actors.recorder.timeline import Waits, waits
from sluice.storage.format.hashing import masked_hash
from sluice.storage.format.position import run_positions
from tests.actors.recorder.test_replay import RecordedDriver

END = 1 << 50
READ_MOST = 20


class Spike(RecordedDriver):
    """Decisions behind a log that is read as far as they have room; `whole` is counted by message."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.log: deque[tuple[int, str]] = deque()
        self.waiting: dict[int, int] = {}
        self.whole = 0

    def confirm(self, *keys: str) -> None:
        """Put messages into the log."""
        self.log.extend((self.now, key) for key in keys)

    def step(self, milliseconds: int = 10) -> None:
        """Read what there is room for, and route, a while later."""
        self.now += milliseconds
        for _ in range(READ_MOST):
            if not self.log or self.dispatch.room() <= 0:
                break
            appended, key = self.log.popleft()
            at = run_positions(self.ledger, self.entry, 1)
            self.entry += 1
            self.keys[int(at[0])] = key
            self.waiting[int(at[0])] = appended
            self.dispatch.append(at, np.array([masked_hash(key.encode())], np.uint32), appended=appended)
        for part in self.dispatch.route(self.now):
            for position in part.positions.tolist():
                self.whole += self.now - self.waiting.pop(position, self.now)

    def found(self) -> Waits:
        """Replay the waits, whose parts are the whole."""
        sums = waits(unpack(self.file(), "x"), 0, END)
        whole = self.whole + sum(self.now - appended for appended in self.waiting.values())
        assert sum(sums.by_reason.values()) == sums.whole == whole > 0
        return sums

    def file(self) -> bytes:
        chunk = self.recording.taken(self.now)
        assert chunk is not None
        return assemble([pack(chunk)])


def test_counted_waits_are_those_of_the_replay() -> None:
    spike = Spike(look_ahead_per_consumer=2, look_ahead_per_subscription=4)
    spike.join("hangs", 30)
    spike.confirm(*many(20))
    spike.step()
    spike.join("other", 30)
    spike.confirm(*many(20) * 2)
    for _ in range(20):
        spike.step()
    for _ in range(100):
        spike.step()
        for name, number in spike.numbers.items():
            spike.dispatch.acknowledge(spike.dispatch.pending(number), number)
            spike.grant(name, 1)
    assert not spike.log
    assert not spike.waiting
    counted = {reason: of["sum"] for reason, of in spike.dispatch.stats(spike.now)["waits"].items() if of["sum"]}
    assert counted == {reason: sum_ms for reason, sum_ms in spike.found().by_reason.items() if sum_ms}
    assert {"draining", "no_permits", "look_ahead_limit"} <= set(counted)


def first(sums: Waits) -> str:
    return sums.by_reason.most_common(1)[0][0]


def many(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


def test_hash_that_drains_is_named_with_its_holder() -> None:
    spike = Spike()
    spike.join("hangs")
    spike.confirm(*many(20))
    spike.step()
    spike.join("other")
    spike.confirm(*many(20))
    for _ in range(50):
        spike.step()
    sums = spike.found()
    assert first(sums) == "draining"
    assert sums.by_holder.most_common(1)[0][0].startswith("hangs#")


def test_consumer_without_permits_is_named() -> None:
    spike = Spike()
    spike.join("slow", 1)
    spike.confirm(*many(20))
    for _ in range(20):
        spike.step()
        spike.grant("slow", 1)
    assert first(spike.found()) == "no_permits"


def test_full_look_ahead_is_named_for_what_it_keeps_out() -> None:
    spike = Spike(look_ahead_per_consumer=2, look_ahead_per_subscription=4)
    spike.join("hangs")
    spike.confirm(*many(20))
    spike.step()
    spike.join("other")
    spike.confirm(*many(20) * 20)
    for _ in range(50):
        spike.step()
    spike.dispatch.acknowledge(spike.dispatch.pending(spike.numbers["hangs"]), spike.numbers["hangs"])
    for _ in range(30):
        spike.step()
    assert first(spike.found()) == "look_ahead_limit"


def test_place_that_is_kept_for_its_consumer_is_grace() -> None:
    spike = Spike(grace_ms=30_000)
    spike.join("stays")
    number = spike.join("leaves")
    spike.confirm(*many(20))
    spike.step()
    spike.dispatch.acknowledge(spike.dispatch.pending(number), number)
    spike.dispatch.leave_all({number: True}, now=spike.now)
    spike.numbers.pop("leaves")
    spike.confirm(*many(20))
    for _ in range(50):
        spike.step()
    assert first(spike.found()) == "grace"


def test_key_behind_a_message_that_comes_again_waits_for_that() -> None:
    spike = Spike(nack_order="key")
    spike.join("only")
    spike.confirm("k")
    spike.step()
    spike.nack("only", "1:0", delay=1_000)
    spike.confirm(*["k"] * 10)
    for _ in range(50):
        spike.step()
    assert first(spike.found()) == "redelivery"


def test_parked_key_is_named_for_what_was_never_sent() -> None:
    spike = Spike(nack_order="key", dead_letter_policy="park", max_redeliver_count=1)
    spike.join("only")
    spike.confirm("k")
    spike.step()
    for _ in range(2):
        spike.nack("only", "1:0")
        spike.step()
    failed = spike.dispatch.parking.failed(1)
    spike.dispatch.parking.park(failed, pa.array([b"k"], pa.binary()), np.array([10]), spike.now)
    spike.confirm(*["k"] * 10)
    for _ in range(50):
        spike.step()
        unknown = spike.dispatch.parking.unknown(100)
        if len(unknown):
            keys = pa.repeat(pa.scalar(b"k", pa.binary()), len(unknown))
            spike.dispatch.parking.examined(unknown, keys, np.full(len(unknown), 10))
    assert first(spike.found()) == "parked_or_dead"


def test_messages_without_a_consumer_wait_for_one() -> None:
    spike = Spike()
    spike.confirm(*many(5))
    spike.step()
    spike.step(1_000)
    spike.join("late")
    spike.step()
    assert first(spike.found()) == "no_owner"
    assert len(spike.dispatch.pending(spike.numbers["late"])) == 5


def test_consumer_that_hangs_is_named_before_the_others() -> None:
    spike = Spike()
    spike.join("hangs", 10)
    spike.join("works", 10)
    spike.confirm(*many(200))
    for _ in range(100):
        spike.step()
        number = spike.numbers["works"]
        spike.dispatch.acknowledge(spike.dispatch.pending(number), number)
        spike.grant("works", 20)
    sums = spike.found()
    assert first(sums) == "no_permits"
    assert sums.by_consumer.most_common(1)[0][0].startswith("hangs#")


def test_hot_key_is_named_before_the_others() -> None:
    spike = Spike()
    for name in ("one", "two"):
        spike.join(name, 5)
    spike.confirm(*["hot"] * 40, *many(10))
    for _ in range(60):
        spike.step()
        for name, number in spike.numbers.items():
            spike.dispatch.acknowledge(spike.dispatch.pending(number), number)
            spike.grant(name, 1)
    sums = spike.found()
    assert first(sums) == "no_permits"
    assert sums.by_hash.most_common(1)[0][0] == masked_hash(b"hot")
    assert sums.by_consumer.most_common(1)[0][0].startswith(f"{spike.owner_of('hot')}#")
