"""The measures of recovery, from histories made by hand: each number is one that can be seen in the rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.loadgen.base.history import DEATH, DELIVERIES, DETACH, EVENTS, SENT
from sluice.loadgen.judge.measures import Span
from sluice.loadgen.judge.recovery import STEP_US, RecoveryTimes, Takeover, _running_maximum, recover, tell, tell_faults
from sluice.storage.format.position import position

START = 1_700_000_000_000_000
SPAN = Span(START, 1_000_000, 60)
MS = 1_000


class Run:
    """Rows of one partition or several; times are milliseconds after the start."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.delivered: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def message(self, who: str, key: int, entry: int, at: float, **more: Any) -> None:
        """One message, confirmed at `confirmed` ms (0), delivered to `who` at `at` and acknowledged 1 ms later."""
        partition, ledger = more.get("partition", 0), more.get("ledger", 1)
        place = {"partition": partition, "position": position(ledger, entry), "key": b"k%d" % key, "key_seq": entry}
        confirmed = START + int(more.get("confirmed", 0) * MS)
        self.sent.append(
            place
            | {"producer": "p", "sequence": entry, "status": "ok", "sent_at": confirmed, "confirmed_at": confirmed}
            | {"deliver_at": 0, "hash": key}
        )
        received = START + int(at * MS)
        acked = START + int(more.get("acked", at + 1) * MS)
        self.delivered.append(
            place
            | {
                "consumer": who,
                "session": 1,
                "redelivery": 0,
                "epoch": more.get("epoch", 1),
                "dispatch": more.get("dispatch", entry),
            }
            | {"received_at": received, "acked_at": acked, "negative": False, "bytes": 1, "hash": key}
        )

    def event(self, who: str, event: str, at: float) -> None:
        """Add an event of a consumer. at: ms since the start."""
        row = {"consumer": who, "session": -1, "partition": -1, "event": event, "at": START + int(at * MS), "upto": 0}
        self.events.append(row)

    def recover(self, faults: list[dict[str, Any]] | None = None, *, keys: list[int] | None = None) -> RecoveryTimes:
        """Measure the whole, or the part with these keys."""
        sent, delivered = (
            [row for row in rows if keys is None or row["hash"] in keys] for rows in (self.sent, self.delivered)
        )
        return recover(
            pa.Table.from_pylist(sent, SENT),
            pa.Table.from_pylist(delivered, DELIVERIES),
            pa.Table.from_pylist(self.events, EVENTS),
            faults or [],
            SPAN,
        )


def killed() -> Run:
    """c1 has keys 1 and 2, c2 has key 3. At 100 ms c1 dies over entries 4 (key 1) and 5 (key 2)."""
    run = Run()
    run.message("c1", 1, 0, 10)
    run.message("c1", 2, 1, 10)
    run.message("c2", 3, 2, 10)
    run.message("c2", 3, 6, 90)  # so everything up to entry 6 had been read when c1 died
    run.event("c1", DEATH, 100)
    run.message("c2", 3, 7, 101, dispatch=19)  # not a key of the dead
    run.message("c2", 1, 4, 340, dispatch=20)
    run.message("c2", 2, 5, 390, dispatch=21)
    run.message("c2", 1, 8, 400, dispatch=22)
    return run


def test_redelivery_is_the_first_message_that_waited_at_the_dead() -> None:
    found = killed().recover()
    assert found.redelivery == {"c1": 240 * MS}
    assert found.redelivered_keys.get_total_count() == 2
    assert found.redelivered_keys.get_max_value() == pytest.approx(290 * MS, rel=0.001)


def test_messages_nobody_had_read_are_no_redeliveries() -> None:
    run = killed()
    run.delivered = [row for row in run.delivered if row["key_seq"] not in (4, 5)]
    assert run.recover().redelivery == {}


def test_a_key_moved_on_before_the_death_is_not_of_the_dead() -> None:
    run = killed()
    run.message("c2", 1, 3, 50)
    assert run.recover().redelivery == {"c1": 290 * MS}


def fault(kind: str, at: float, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "target": "x", "at_us": START + int(at * MS)} | more


def test_a_next_delivery_is_by_a_newer_owner() -> None:
    run = Run()
    run.message("c1", 1, 0, 10, epoch=3)
    run.message("c1", 1, 1, 105, epoch=3)  # sent by the old owner, received after its end
    run.message("c1", 2, 2, 900, epoch=5)
    run.message("c1", 1, 3, 700, epoch=5)
    run.message("c1", 9, 0, 300, epoch=9, partition=1)
    faults = [fault("freeze-dispatcher", 50, dispatchers=[0]), fault("kill-dispatcher", 100, dispatchers=[0, 2])]
    found = run.recover(faults)
    assert found.takeovers(faults) == [Takeover(1, "dispatchers", 0, 600 * MS)]
    frozen, killed = tell_faults(found, [{"at_s": 0.1, "incarnation": "c1", **each} for each in faults])
    assert frozen == {"at_s": 0.1, "incarnation": "c1", "kind": "freeze-dispatcher", "target": "x"}
    assert killed["next_delivery_ms"] == {"dispatchers": {"0": 600.0}}
    told = tell(found, faults, SPAN, START)["next_delivery_ms"]
    assert (told["dispatchers"]["max"], told["topics"]["count"]) == (600.0, 0)


def alone(*others: dict[str, Any]) -> tuple[float, float]:
    """How many takeovers and redeliveries count as undisturbed: of partition 0 at 100 to 700, and of c1 from 100."""
    run = killed()
    run.message("c2", 9, 0, 50, epoch=3, partition=0)
    run.message("c2", 9, 1, 700, epoch=5, partition=0)
    faults = [fault("kill-dispatcher", 100, dispatchers=[0]), *others]
    told = tell(run.recover(faults), faults, SPAN, START)
    return told["next_delivery_alone_ms"]["dispatchers"]["count"], told["redelivery_alone_ms"]["count"]


@pytest.mark.parametrize(
    ("other", "counts"),
    [
        (fault("kill-bookie", 300), 1),
        (fault("kill-topic", 300, topics=[1]), 1),
        (fault("kill-topic", 300, topics=[0]), 0),
        (fault("freeze-topic", 800, lasts_s=9, topics=[0]), 1),
        (fault("freeze-topic", 20, lasts_s=0.05, topics=[0]), 1),
        (fault("freeze-topic", 20, lasts_s=0.2, topics=[0]), 0),
        (fault("freeze-controller", 20, lasts_s=0.2), 0),
        (fault("kill-controller", 300), 0),
    ],
)
def test_a_takeover_is_alone_if_nothing_it_needs_is_broken(other: dict[str, Any], counts: int) -> None:
    assert alone(other) == (counts, 0)


def test_redelivery_is_alone_if_all_owners_work() -> None:
    run = killed()
    death = fault("kill-consumer", 100, incarnation="c1")
    for others, count in (
        ([], 1),
        ([fault("kill-controller", 200)], 1),
        ([fault("freeze-topic", 200, lasts_s=1, topics=[1])], 0),
        ([fault("freeze-topic", 400, lasts_s=1, topics=[1])], 1),
    ):
        faults = [death, *others]
        assert tell(run.recover(faults), faults, SPAN, START)["redelivery_alone_ms"]["count"] == count


def test_a_new_owners_next_delivery_comes_from_a_new_ledger() -> None:
    run = Run()
    run.message("c1", 1, 0, 10, ledger=4)
    run.message("c1", 1, 1, 150, ledger=4)
    run.message("c1", 1, 0, 1_300, ledger=6)
    faults = [fault("kill-topic", 100, dispatchers=[], topics=[0])]
    assert run.recover(faults).takeovers(faults) == [Takeover(0, "topics", 0, 1_200 * MS)]


def test_a_key_that_changes_hands_is_explained_by_its_pending() -> None:
    run = Run()
    run.message("c1", 1, 0, 10, acked=500)  # c1 works on it for a long while
    run.event("c1", DETACH, 510)
    run.message("c2", 1, 1, 520, confirmed=20)  # and c2 gets the next one 10 ms after c1 has left
    run.message("c2", 1, 2, 540, confirmed=30)
    run.message("c2", 2, 3, 600, confirmed=20)  # a key that never was anybody else's
    found = run.recover()
    assert found.unexplained.get_total_count() == 1
    (wait,) = found.worst
    assert (wait["unexplained_us"], wait["explained_us"]) == (10 * MS, 490 * MS)
    assert (wait["from"], wait["to"], wait["hash"]) == ("c1", "c2", 1)
    assert (
        "490 ms behind its own pending messages, 10 ms at the broker, 0 ms in the queue of c2"
        in tell(found, [], SPAN, START)["longest_holds"][0]
    )


def test_a_leavers_waiting_queue_is_explained_until_it_left() -> None:
    run = Run()
    run.message("c1", 1, 0, 10)
    run.event("c1", DETACH, 800)
    run.message("c2", 1, 1, 850, confirmed=20)
    (wait,) = run.recover().worst
    assert (wait["unexplained_us"], wait["explained_us"]) == (50 * MS, 780 * MS)


def test_time_in_the_receivers_own_queue_is_not_the_brokers() -> None:
    run = Run()
    run.message("c1", 1, 0, 10)
    run.message("c2", 1, 1, 5_000, confirmed=100)
    run.message("c3", 2, 2, 130, confirmed=110)  # sent after it, received long before it
    run.message("c3", 2, 0, 120, confirmed=110, partition=1)
    (wait,) = run.recover().worst
    assert (wait["unexplained_us"], wait["queued_us"]) == (30 * MS, 4_870 * MS)


def test_a_message_after_the_key_was_free_waits_since_confirmed() -> None:
    run = Run()
    run.message("c1", 1, 0, 10)
    run.message("c2", 1, 1, 5_000, confirmed=4_900)
    (wait,) = run.recover().worst
    assert (wait["unexplained_us"], wait["explained_us"]) == (100 * MS, 0)


def test_a_stall_is_a_partitions_longest_silence() -> None:
    run = Run()
    for at in (0, 300, 2_600, 2_700):
        run.message("c1", 1, at, at)
    for at in range(0, 9_000, 100):
        run.message("c1", 2, at, at, partition=1)
    faults = [fault("kill-topic", 250), fault("kill-bookie", 2_650)]
    told = tell(run.recover(), faults, SPAN, START)["longest_stall"]
    assert told == {"partition": 0, "at_s": 0.4, "ms": 2_200.0, "after": "kill-topic x"}
    assert STEP_US == 100_000


def test_pauses_belong_to_the_fault_before_them() -> None:
    """Each fault and partition counts one pause, also one of 0."""
    run = Run()
    for at in (0, 300, 2_600, 2_700, 3_900, 4_000):
        run.message("c1", 1, at, at)
    for at in range(0, 9_000, 100):
        run.message("c1", 2, at, at, partition=1)
    faults = [fault("kill-topic", 250), fault("kill-bookie", 2_650), fault("kill-topic", 3_950)]
    assert run.recover().pauses(faults, SPAN) == {
        "kill-topic": [2_200 * MS, 0, 0, 0],
        "kill-bookie": [1_100 * MS, 0],
    }
    assert tell(run.recover(), faults, SPAN, START)["pauses_ms"]["kill-bookie"]["max"] == 1_100


def test_time_in_which_nothing_was_there_to_deliver_is_no_stall() -> None:
    """An act that is over waits for the next; only from the next act's first message on does anybody wait."""
    run = Run()
    run.message("c1", 1, 0, 100)
    run.message("c1", 1, 1, 9_000, confirmed=8_350)
    told = tell(run.recover(), [], SPAN, START)["longest_stall"]
    assert (told["at_s"], told["ms"]) == (8.4, 600.0)


def test_parts_cut_by_key_add_up_to_the_whole() -> None:
    run = killed()
    run.message("c2", 1, 9, 3_000, epoch=2)
    run.message("c2", 3, 10, 2_900, epoch=2)
    faults = [fault("kill-dispatcher", 1_000, dispatchers=[0], topics=[0])]
    whole = run.recover(faults)
    parts = RecoveryTimes()
    for keys in ([1], [2], [3]):
        part = run.recover(faults, keys=keys)
        parts.merge(pickle.loads(pickle.dumps(part)))
    assert parts.takeovers(faults) == whole.takeovers(faults) == [Takeover(0, "dispatchers", 0, 1_900 * MS)]
    assert parts.deliveries == whole.deliveries
    assert parts.waiting == whole.waiting
    assert parts.unexplained.get_total_count() == whole.unexplained.get_total_count()
    assert [wait["unexplained_us"] for wait in parts.worst] == [wait["unexplained_us"] for wait in whole.worst]


def test_run_without_deliveries_or_faults_says_nothing() -> None:
    told = tell(Run().recover(), [], SPAN, START)
    assert told["redelivery_ms"]["count"] == told["unexplained_hold_ms"]["count"] == 0
    assert told["longest_stall"] == {"partition": -1, "at_s": 0.0, "ms": 0.0, "after": ""}


def test_running_maximum_starts_anew_in_each_group() -> None:
    values, groups = np.array([5, 3, 9, 1, 2, 0]), np.array([1, 1, 1, 4, 4, 7])
    assert _running_maximum(values, groups).tolist() == [5, 5, 9, 1, 2, 0]
