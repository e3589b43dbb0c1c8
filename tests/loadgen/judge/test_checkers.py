"""The judge against hand-made histories: every kind of violation is found, exactly, and nothing else is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.loadgen.base.history import ACKS, DEATH, EVENTS, EXPIRED, OWNER_CHANGE, RECEIVES, SENDS
from sluice.loadgen.base.kinds import CLOCK_JUMP
from sluice.loadgen.judge.checkers import VIOLATIONS, Findings, judge, nothing_checked
from sluice.loadgen.judge.wrong_clocks import ON_ITS_WAY_US, permitted, wrong_clocks
from sluice.storage.format.position import position
from tests.loadgen.histories import Story, clean_story


def only(findings: Findings, **expected: int) -> None:
    """Exactly these violations, and an example sentence for each kind."""
    assert findings.violations == dict.fromkeys(VIOLATIONS, 0) | expected
    assert sorted(findings.examples) == sorted(expected)


def test_clean_history_passes_and_counts_what_it_checked() -> None:
    findings = clean_story().judge()
    only(findings)
    assert findings.clean
    assert findings.checked == {
        "messages": 6,
        "keys": 2,
        "keys_in_flight_together": 2,
        "hashes_moved": 2,
        "delayed": 0,
        "ordered": 6,
    }
    assert findings.messages == {
        "published": 6,
        "confirmed": 6,
        "unknown": 0,
        "delivered": 6,
        "redelivered": 0,
        "acked": 6,
    }
    assert nothing_checked(findings, moves_expected=True) == []


def test_empty_history_is_worth_nothing() -> None:
    findings = Story().judge()
    only(findings)
    assert nothing_checked(findings) == ["no message was delivered, so nothing was checked"]


def test_each_reason_for_worthlessness_is_named() -> None:
    findings = Findings()
    findings.checked |= {"messages": 3}
    assert "no message had a key" in nothing_checked(findings)[0]
    findings.checked |= {"keys": 3}
    assert "no key had two messages in flight" in nothing_checked(findings)[0]
    findings.checked |= {"keys_in_flight_together": 1}
    assert nothing_checked(findings) == []
    reasons = nothing_checked(findings, moves_expected=True, delays_expected=True)
    assert len(reasons) == 2


def test_lost_when_nobody_received_a_confirmed_send() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6)
    only(story.judge(), lost=1)


def test_lost_when_it_was_received_by_a_dead_consumer_only() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6)
    story.receive("c4", b"a", 3, 6, at=30_000)
    story.event("c4", DEATH, 31_000)
    only(story.judge(), lost=1)


@pytest.mark.parametrize("delivered", [False, True])
def test_unknown_send_may_appear_or_not(delivered: bool) -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6, status="info", position=-1, confirmed_at=0)
    if delivered:
        story.receive("c2", b"a", 3, 6, at=30_000)
        story.ack("c2", 6, at=31_000)
    findings = story.judge()
    only(findings)
    assert findings.messages["unknown"] == 1


def test_retried_send_counts_once_and_ok_wins() -> None:
    story = clean_story()
    story.send(b"a", 0, entry=0, status="info", position=-1)
    story.send(b"a", 0, entry=0, producer="p", sequence=0)
    findings = story.judge()
    only(findings)
    assert findings.messages["published"] == 6


def test_stored_twice_is_seen_from_receipts() -> None:
    story = clean_story()
    story.send(b"a", 0, entry=9)
    only(story.judge(), stored_twice=1)


def test_stored_twice_is_seen_from_deliveries() -> None:
    story = clean_story()
    story.receive("c2", b"a", 2, 9, at=26_000)
    story.ack("c2", 9, at=27_000)
    only(story.judge(), stored_twice=1)


def test_position_without_ledger_is_no_second_place() -> None:
    story = clean_story()
    story.send(b"a", 0, entry=0, position=3)
    only(story.judge())


def test_unexpected_delivery_of_what_nobody_sent() -> None:
    story = clean_story()
    story.receive("c2", b"a", 7, 9, at=30_000)
    story.ack("c2", 9, at=31_000)
    only(story.judge(), unexpected=1)


def test_unexpected_delivery_of_a_refused_send() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6, status="fail", position=-1)
    story.receive("c2", b"a", 3, 6, at=30_000)
    story.ack("c2", 6, at=31_000)
    only(story.judge(), unexpected=1)


def test_unexpected_when_one_place_holds_two_messages() -> None:
    story = clean_story()
    story.send(b"c", 0, entry=0, status="info", position=-1)
    story.receive("c3", b"c", 0, 0, at=30_000, epoch=2)
    story.ack("c3", 0, at=31_000)
    findings = story.judge()
    assert findings.violations["unexpected"] == 1
    assert "1:0 of partition 0 holds two messages" in findings.examples["unexpected"][0]


def test_order_first_delivery_behind_a_newer_one() -> None:
    story = clean_story()
    for seq in (3, 4, 5):
        story.send(b"a", seq, entry=seq + 10)
    for seq in (5, 3, 4):
        story.receive("c2", b"a", seq, seq + 10, at=30_000)
        story.ack("c2", seq + 10, at=31_000)
    only(story.judge(), order=2)


def test_order_is_judged_by_stamp_and_not_by_clock() -> None:
    story = clean_story()
    for seq in (3, 4):
        story.send(b"a", seq, entry=seq + 10)
    story.receive("c2", b"a", 4, 14, at=30_000, epoch=2, dispatch=5)
    story.receive("c2", b"a", 3, 13, at=30_500, epoch=2, dispatch=4)
    for entry in (13, 14):
        story.ack("c2", entry, at=31_000)
    only(story.judge())


def test_order_across_owners_follows_the_epoch() -> None:
    story = clean_story()
    for seq in (3, 4):
        story.send(b"a", seq, entry=seq + 10)
    story.receive("c2", b"a", 4, 14, at=30_000, epoch=2, dispatch=900)
    story.receive("c2", b"a", 3, 13, at=30_500, epoch=3, dispatch=1)
    for entry in (13, 14):
        story.ack("c2", entry, at=31_000)
    only(story.judge(), order=1)


def test_old_message_may_come_again_behind_newer_ones() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6)
    story.receive("c2", b"a", 3, 6, at=30_000)
    story.ack("c2", 6, at=31_000, negative=True)
    story.send(b"a", 4, entry=7)
    story.receive("c2", b"a", 4, 7, at=32_000)
    story.ack("c2", 7, at=33_000)
    story.receive("c2", b"a", 3, 6, at=34_000, redelivery=1)
    story.ack("c2", 6, at=35_000)
    findings = story.judge()
    only(findings)
    assert findings.messages["redelivered"] == 1


def test_delayed_messages_may_come_behind_but_not_early() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6, deliver_at=40)
    story.send(b"a", 4, entry=7)
    story.receive("c2", b"a", 4, 7, at=30_000)
    story.receive("c2", b"a", 3, 6, at=40_000)
    for entry in (6, 7):
        story.ack("c2", entry, at=41_000)
    findings = story.judge()
    only(findings)
    assert (findings.checked["delayed"], findings.checked["ordered"]) == (1, 7)


def test_early_delayed_message() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6, deliver_at=40)
    story.receive("c2", b"a", 3, 6, at=39_999)
    story.ack("c2", 6, at=41_000)
    only(story.judge(), early=1)


@pytest.mark.parametrize(
    ("at", "ahead_ms", "early"),
    [
        (39_000, 10, 0),
        (39_000, 0, 1),
        (25_000, 10, 1),
        (30_000, 10, 0),
        (5_000, 3_600_000, 1),
        (20_000, 3_600_000, 0),
        (20_000, -3_600_000, 1),
    ],
)
def test_a_clock_that_leapt_permits_what_it_was_ahead(at: int, ahead_ms: int, early: int) -> None:
    """From then on, and by no more than that; and that is told, as no broken promise."""
    story = clean_story()
    story.send(b"a", 3, entry=6, deliver_at=40)
    story.receive("c2", b"a", 3, 6, at=at)
    story.ack("c2", 6, at=41_000)
    clocks = wrong_clocks([{"kind": CLOCK_JUMP, "at_us": 10_000, "lasts_s": 1.0, "ahead_ms": ahead_ms}])
    findings = story.judge(clocks=clocks)
    assert (findings.violations["early"], findings.information["early"]) == (early, 1 - early)


def test_a_leap_is_over_when_what_it_sent_has_arrived() -> None:
    (clock,) = wrong_clocks(
        [
            {"kind": CLOCK_JUMP, "at_us": 1_000_000, "lasts_s": 2.5, "ahead_ms": 60_000},
            {"kind": CLOCK_JUMP, "at_us": 1_000_000, "lasts_s": 2.5, "ahead_ms": -60_000},
            {"kind": "kill-topic", "at_us": 1_000_000},
        ]
    )
    assert clock == (1_000_000, 3_500_000 + ON_ITS_WAY_US, 60_000)
    times = np.array([999_999, 1_000_000, clock.until, clock.until + 1], np.int64)
    assert permitted([clock], times, np.full(4, 60_000)).tolist() == [False, True, True, False]
    assert not permitted([clock], times, np.full(4, 60_001)).any()


def test_overlap_of_two_holders() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6)
    story.send(b"a", 4, entry=7)
    story.receive("c2", b"a", 3, 6, at=30_000)
    story.receive("c3", b"a", 4, 7, at=30_500)
    story.ack("c2", 6, at=31_000)
    story.ack("c3", 7, at=31_000)
    only(story.judge(), overlap=1)


def test_overlap_behind_an_earlier_long_hold() -> None:
    story = clean_story()
    for seq in (3, 4, 5):
        story.send(b"a", seq, entry=seq + 10)
    story.receive("c2", b"a", 3, 13, at=30_000)
    story.receive("c2", b"a", 4, 14, at=30_100)
    story.ack("c2", 14, at=30_200)
    story.receive("c3", b"a", 5, 15, at=30_300)
    story.ack("c3", 15, at=30_400)
    story.ack("c2", 13, at=30_500)
    only(story.judge(), overlap=1)


def test_touching_holds_do_not_overlap() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6)
    story.send(b"a", 4, entry=7)
    story.receive("c2", b"a", 3, 6, at=30_000)
    story.ack("c2", 6, at=31_000)
    story.receive("c3", b"a", 4, 7, at=31_000)
    story.ack("c3", 7, at=32_000)
    only(story.judge())


@pytest.mark.parametrize("event", [DEATH, EXPIRED])
def test_hold_of_a_dead_consumer_ends_with_it(event: str) -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6)
    story.receive("c2", b"a", 3, 6, at=30_000)
    story.event("c2", event, 31_000, session=1)
    story.receive("c3", b"a", 3, 6, at=32_000, redelivery=1)
    story.ack("c3", 6, at=33_000)
    findings = story.judge()
    only(findings)
    assert findings.messages["redelivered"] == 1


def test_death_of_another_session_explains_nothing() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6)
    story.receive("c2", b"a", 3, 6, at=30_000)
    story.event("c2", EXPIRED, 31_000, session=2)
    story.receive("c3", b"a", 3, 6, at=32_000, redelivery=1)
    story.ack("c3", 6, at=33_000)
    only(story.judge(), overlap=1, unexplained_redelivery=1)


def test_keyless_messages_are_never_out_of_order() -> None:
    story = clean_story()
    for seq in (0, 1):
        story.send(None, seq, entry=20 + seq)
    story.receive("c2", None, 1, 21, at=30_000)
    story.receive("c3", None, 0, 20, at=30_000)
    story.ack("c2", 21, at=31_000)
    story.ack("c3", 20, at=31_000)
    findings = story.judge()
    only(findings)
    assert findings.checked["keys"] == 2
    assert findings.checked["messages"] == 8


def test_unexplained_redelivery() -> None:
    story = clean_story()
    story.receive("c2", b"a", 2, 4, at=26_000, redelivery=1)
    story.acks[-2]["confirmed_at"] = 0
    only(story.judge(), unexplained_redelivery=1)


def test_redelivery_after_owner_change_is_explained() -> None:
    story = clean_story()
    story.receive("c2", b"a", 2, 4, at=26_000, epoch=2)
    story.acks[-2]["confirmed_at"] = 0
    only(story.judge())


def test_redelivery_after_an_owner_change_is_of_its_partition() -> None:
    story = clean_story()
    story.receive("c2", b"a", 2, 4, at=26_000)
    story.acks[-2]["confirmed_at"] = 0
    story.event("", OWNER_CHANGE, 25_500, partition=0)
    only(story.judge())
    story.events[-1]["partition"] = 1
    only(story.judge(), unexplained_redelivery=1)


def test_redelivery_in_a_new_session_is_explained() -> None:
    story = clean_story()
    story.receive("c2", b"a", 2, 4, at=26_000, session=2)
    story.acks[-2]["confirmed_at"] = 0
    only(story.judge())


def test_one_acknowledgement_releases_both_deliveries() -> None:
    story = clean_story()
    for seq in (3, 4):
        story.send(b"a", seq, entry=seq + 10)
    story.receive("c2", b"a", 3, 13, at=30_000)
    story.receive("c2", b"a", 3, 13, at=31_000, session=2)
    story.ack("c2", 13, at=32_000)
    story.receive("c3", b"a", 4, 14, at=33_000)
    story.ack("c3", 14, at=34_000)
    only(story.judge())


def test_acked_redelivered() -> None:
    story = clean_story()
    story.event("c2", DEATH, 26_000)
    story.receive("c3", b"a", 2, 4, at=27_000, redelivery=1)
    story.ack("c3", 4, at=28_000)
    only(story.judge(), acked_redelivered=1)


def test_acked_redelivered_is_not_counted_as_unexplained_too() -> None:
    story = clean_story()
    story.receive("c2", b"a", 2, 4, at=27_000, redelivery=1)
    only(story.judge(), acked_redelivered=1)


def test_acked_redelivered_two_deliveries_later() -> None:
    story = clean_story()
    story.event("c2", DEATH, 26_000)
    story.receive("c3", b"a", 2, 4, at=27_000)
    story.event("c3", DEATH, 28_000)
    story.receive("c4", b"a", 2, 4, at=29_000)
    story.ack("c4", 4, at=30_000)
    only(story.judge(), acked_redelivered=2)


def test_unconfirmed_acknowledgement_may_be_forgotten() -> None:
    story = clean_story()
    story.acks[-2]["confirmed_at"] = 0
    story.event("c2", DEATH, 26_000)
    story.receive("c3", b"a", 2, 4, at=27_000, redelivery=1)
    story.ack("c3", 4, at=28_000)
    only(story.judge())


def test_missing_column_is_refused() -> None:
    sends, receives, acks, events = clean_story().tables()
    with pytest.raises(ValueError, match="'dispatch'"):
        judge(sends, receives.drop_columns(["dispatch"]), acks, events)


def test_parts_add_up() -> None:
    whole = clean_story()
    whole.send(b"z", 0, entry=40)
    halves = []
    for key in (b"a", b"b"):
        part = Story(
            [row for row in whole.sends if row["key"] in (key, b"z" if key == b"b" else key)],
            [row for row in whole.receives if row["key"] == key],
            whole.acks,
            whole.events,
        )
        halves.append(part.judge())
    halves[0].merge(halves[1])
    assert halves[0].violations == whole.judge().violations
    assert halves[0].messages == whole.judge().messages
    assert halves[0].checked == whole.judge().checked


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 40), st.integers(1, 12)),
        max_size=40,
    )
)
def test_overlap_agrees_with_a_plain_model(rows: list[tuple[int, int, int, int]]) -> None:
    """Random holds (key, holder, start, length): the columns find what comparing every pair finds."""
    story = Story()
    expected = 0
    for entry, (key, holder, start, length) in enumerate(rows):
        name = b"k%d" % key
        story.send(name, entry, entry)
        story.receive(f"c{holder}", name, entry, entry, at=start)
        story.ack(f"c{holder}", entry, at=start + length)
    for at, (key, holder, start, _) in enumerate(rows):
        earlier = [r for i, r in enumerate(rows) if (r[2], i) < (start, at)]
        expected += any(r[0] == key and r[1] != holder and r[2] + r[3] > start for r in earlier)
    assert story.judge().violations["overlap"] == expected


@settings(max_examples=60, deadline=None)
@given(st.permutations(list(range(9))))
def test_order_agrees_with_a_plain_model(shuffled: list[int]) -> None:
    story = Story()
    for entry in range(9):
        story.send(b"k%d" % (entry % 2), entry, entry)
    for entry in shuffled:
        story.receive("c", b"k%d" % (entry % 2), entry, entry, at=10)
        story.ack("c", entry, at=11)
    expected = sum(
        any(later % 2 == entry % 2 and later > entry for later in shuffled[:at]) for at, entry in enumerate(shuffled)
    )
    assert story.judge().violations["order"] == expected


def test_rows_may_come_in_any_order_and_in_chunks() -> None:
    rng = np.random.default_rng(5)
    tables = []
    for table, schema in zip(clean_story().tables(), (SENDS, RECEIVES, ACKS, EVENTS), strict=True):
        mixed = table.take(pa.array(rng.permutation(table.num_rows)))
        parts = [mixed.slice(0, 2), mixed.slice(2)]
        tables.append(pa.concat_tables(parts).cast(schema))
    only(judge(*tables))


def test_example_names_the_message() -> None:
    story = clean_story()
    story.send(b"a", 3, entry=6)
    assert story.judge().examples["lost"] == ["message 3 of key b'a' was confirmed and never finished"]
    assert position(1, 6) == story.sends[-1]["position"]
