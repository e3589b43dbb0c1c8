"""LS-1 to LS-4, LS-7: the last sent position and the ranges that were sent above it (PIP-282).

Neither is stored here: both follow from which messages of the window still wait for their first delivery. So the
state before a scenario ("sent before", or "acknowledged before", which the reader then never brings) and what is sent
in it are all there is to it. The topic has ledgers of 20 entries, everything up to 1:10 is acknowledged.
"""

from __future__ import annotations

import numpy as np

from sluice.actors.key_shared.state.policies import JoinPosition, RecentlyJoined
from sluice.actors.key_shared.state.window import FRESH, SENT, Window
from sluice.storage.format.position import position, show
from tests.actors.key_shared.driver import Driver, at

MARK_DELETE = "1:10"


def entries(first: str, last: str) -> list[str]:
    """All positions from one to another, in ledgers of 20 entries."""
    low, high = (tuple(int(part) for part in name.split(":")) for name in (first, last))
    return [
        f"{ledger}:{entry}"
        for ledger in range(low[0], high[0] + 1)
        for entry in range(20)
        if low <= (ledger, entry) <= high
    ]


def sent_before(before: list[str], send: str) -> tuple[str, list[str]]:
    """`last` and `individual` after `send` was sent, when `before` had been sent earlier."""
    rows = sorted({*entries("1:11", send), *before, send}, key=lambda name: int(at(name)[0]))
    return _ask(rows, {*before, send}, max(before[-1], send, key=lambda name: int(at(name)[0])))


def folded(before: list[str], send: str) -> tuple[str, list[str]]:
    """The same, which must not differ when `before` was acknowledged and is therefore not in the window at all."""
    answer = sent_before(before, send)
    assert _ask([name for name in entries("1:11", send) if name not in before] or [send], {send}, send) == answer
    return answer


def _ask(window_rows: list[str], sent: set[str], last_read: str) -> tuple[str, list[str]]:
    window, policy = Window(), RecentlyJoined(JoinPosition.LAST_SENT)
    policy.mark_delete = int(at(MARK_DELETE)[0])
    column, read = at(*window_rows), int(at(last_read)[0])
    window.add(column, np.zeros(len(column), np.uint32), np.ones(len(column), np.uint16), FRESH, 0, 0)
    window.flags[: len(column)] = [SENT if name in sent else 0 for name in window_rows]
    return show(policy.last_sent(window, read)), [f"({a},{b}]" for a, b in policy.individually_sent(window, read)]


def test_ls_t1_below_the_acknowledged_nothing_moves() -> None:
    assert folded(entries("1:0", "1:8"), "1:9") == ("1:10", [])


def test_ls_t2_at_the_acknowledged_nothing_moves() -> None:
    assert folded(entries("1:0", "1:9"), "1:10") == ("1:10", [])


def test_ls_t3_ranges_below_the_acknowledged_are_gone() -> None:
    assert folded([*entries("1:0", "1:2"), "1:5", *entries("1:7", "1:8")], "1:10") == ("1:10", [])


def test_ls_t4_the_next_one_is_the_last() -> None:
    assert folded(entries("1:0", "1:10"), "1:11") == ("1:11", [])


def test_ls_t5_a_gap_that_closes_takes_what_lies_behind_it_along() -> None:
    assert sent_before(entries("1:12", "1:15"), "1:11") == ("1:15", [])
    # If they were acknowledged, they are known by the next that was read behind them.
    assert _ask(["1:11", "1:16"], {"1:11"}, "1:16") == ("1:15", [])


def test_ls_t7_what_was_sent_already_changes_nothing() -> None:
    assert folded(entries("1:12", "1:15"), "1:15") == ("1:10", ["(1:11,1:15]"])


def test_ls_t8_the_next_behind_a_range_makes_it_longer() -> None:
    assert folded(entries("1:12", "1:15"), "1:16") == ("1:10", ["(1:11,1:16]"])


def test_ls_t9_behind_a_gap_a_second_range_begins() -> None:
    assert folded(entries("1:12", "1:15"), "1:17") == ("1:10", ["(1:11,1:15]", "(1:16,1:17]"])


def test_ls_t10_in_the_next_ledger_a_second_range_begins() -> None:
    """Between them 1:19 is missing. Where upstream writes (2:-1 for the place before 2:0, it is 1:19 here."""
    assert folded(entries("1:12", "1:18"), "2:0") == ("1:10", ["(1:11,1:18]", "(1:19,2:0]"])


def test_ls_3_the_position_crosses_the_end_of_a_ledger() -> None:
    assert _ask(entries("1:11", "2:1"), {*entries("1:11", "1:19")}, "2:1") == ("1:19", [])
    assert _ask(entries("1:11", "2:4"), {*entries("1:11", "2:2")}, "2:4") == ("2:2", [])


def test_ls_t14_and_ls_4_walk_through_of_the_proposal() -> None:
    def walk(*unsent: int) -> tuple[str, list[str]]:
        rows = [f"3:{entry}" for entry in range(1, 11)]
        return _ask(rows, {name for name in rows if int(name[2:]) not in unsent}, "3:10")

    assert walk(4, 6, 7) == ("3:3", ["(3:4,3:5]", "(3:7,3:10]"])
    assert walk(4, 6) == ("3:3", ["(3:4,3:5]", "(3:6,3:10]"])
    assert walk(4) == ("3:3", ["(3:4,3:10]"])
    assert walk() == ("3:10", [])


def test_ls_t17_equal_names_have_separate_entries_that_vanish() -> None:
    flow = Driver(policy="last_sent_position")
    flow.join("c1", called="same")
    flow.send("x")
    flow.join("c2", called="same")
    flow.join("c3", called="same")
    stats = flow.dispatch.stats(0)
    assert stats["consumersAfterMarkDeletePosition"] == {"consumer 'same' #2": "1:0", "consumer 'same' #3": "1:0"}
    assert stats["lastSentPosition"] == "1:0"
    assert flow.consumer_stats("c2")["lastSentPositionWhenJoining"] == "1:0"
    assert stats["individuallySentPositions"] == []
    flow.ack("1:0")
    flow.dispatch.mark_deleted(position(1, 0))
    assert flow.dispatch.stats(0)["consumersAfterMarkDeletePosition"] == {}
