"""The three selectors agree with their published examples and with naive look-ups."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.key_shared.state.history import History, take_events
from sluice.actors.key_shared.state.members import Members
from sluice.actors.key_shared.state.selectors import (
    SELECTORS,
    AutoSplit,
    ConsistentHashing,
    NameIndexes,
    Selector,
    SingleActive,
    Sticky,
    difference,
    make_selector,
    mask_ranges,
    ranges_by_slot,
    ranges_of,
)
from sluice.actors.key_shared.state.window import NO_SLOT, Reduced
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import CHOICES
from sluice.storage.errors import Conflict, Invalid
from sluice.storage.format.hashing import Hashes, masked_hash, reduce_hash
from tests.storage.format.test_hashing import KNOWN


def reduced(selector: Selector, masked: Hashes) -> Reduced:
    """Return hashes as a selector sees them."""
    return reduce_hash(masked, size=selector.size, start=selector.start)


def shares(selector: Selector, keys: list[str]) -> dict[int, int]:
    """Return how many of the keys each slot gets."""
    masked = np.array([masked_hash(key.encode()) for key in keys], np.uint32)
    slots = selector.owners()[reduced(selector, masked)]
    return {int(slot): int((slots == slot).sum()) for slot in np.unique(slots)}


def even(got: dict[int, int], total: int, consumers: int, tolerance: float) -> bool:
    """Return whether every consumer has a fair share."""
    return len(got) == consumers and all(
        abs(n - total / consumers) <= tolerance * total / consumers for n in got.values()
    )


@pytest.mark.parametrize(("key", "masked", "ring", "split"), KNOWN)
def test_h_1_and_ks_1_and_ks_2_and_ks_5_published_hash_values(key: str, masked: int, ring: int, split: int) -> None:
    assert masked_hash(key.encode()) == masked
    column = np.array([masked], np.uint32)
    assert reduced(ConsistentHashing(), column.copy()).tolist() == [ring]
    assert reduced(AutoSplit(), column.copy()).tolist() == [split]
    assert reduced(Sticky(), column.copy()).tolist() == [split]


def test_ch_1_even_shares_as_consumers_come_and_go() -> None:
    ring = ConsistentHashing(200)
    assert (ring.owners() == NO_SLOT).all()
    seeded = random.Random(11)
    keys = [f"{seeded.random()}" for _ in range(1000)]
    for count in range(1, 5):
        ring.add(count, f"c{count}")
        assert even(shares(ring, keys), 1000, count, 0.2)
    for gone in (1, 2, 3):
        ring.remove(gone)
        assert even(shares(ring, keys), 1000, 4 - gone, 0.2)
    assert shares(ring, keys) == {4: 1000}


def test_ch_2_and_ks_9_golden_ring() -> None:
    ring = ConsistentHashing(3)
    for slot in range(3):
        ring.add(slot, f"consumer{slot + 1}")
    owners = ring.owners()
    assert ranges_of(owners, 0) == [(14359, 18366), (29991, 39817), (52980, 60442)]
    assert ranges_of(owners, 1) == [(1, 6668), (39818, 52979), (60443, 63679), (65184, 65535)]
    assert ranges_of(owners, 2) == [(6669, 14358), (18367, 29990), (63680, 65183)]
    assert (owners[1:] != NO_SLOT).sum() == 65535
    assert (ring.owners() == owners).all()


def test_ch_3_twenty_consumers_of_one_name() -> None:
    ring = ConsistentHashing(200)
    for slot in range(20):
        ring.add(slot, "same")
    assert even(shares(ring, [f"key {n}" for n in range(10000)]), 10000, 20, 0.2)
    for slot in range(20):
        ring.remove(slot)
    assert (ring.owners() == NO_SLOT).all()
    assert len(ring.names) == 0


def test_ch_4_names_that_begin_alike_share_no_points() -> None:
    ring, alone = ConsistentHashing(12), ConsistentHashing(12)
    ring.add(0, "consumer1")
    alone.add(0, "consumer11")
    mine = {end for _, end in ranges_of(ring.owners(), 0)}
    ring.add(1, "consumer11")
    assert ranges_of(ring.owners(), 1)
    assert not {end for _, end in ranges_of(ring.owners(), 1)} & mine - {65535}


def test_ch_5_removing_twice_is_fine() -> None:
    ring = ConsistentHashing(12)
    for slot in range(99):
        ring.add(slot, f"c{slot}")
    assert len(np.unique(ring.owners()[1:])) == 99
    for _ in range(2):
        for slot in range(99):
            ring.remove(slot)
    assert (ring.owners() == NO_SLOT).all()


def test_ch_9_newcomers_take_from_the_old_who_do_not_swap() -> None:
    ring = ConsistentHashing(100)
    for slot in range(50):
        ring.add(slot, f"c{slot}")
    before = ring.owners()
    for slot in range(50, 100):
        ring.add(slot, f"c{slot}")
    after = ring.owners()
    assert ((after == before) | (after >= 50))[1:].all()
    for slot in range(50, 100):
        ring.remove(slot)
    assert (ring.owners() == before).all()


def test_ch_12_equal_names_in_the_same_order_get_the_same_points() -> None:
    ring = ConsistentHashing(100)
    for slot in range(50):
        ring.add(slot, "same")
    before = ring.owners()
    order = list(range(50))
    random.Random(5).shuffle(order)
    for slot in order:
        ring.remove(slot)
    for slot in range(50):
        ring.add(slot, "same")
    assert (ring.owners() == before).all()


def test_ch_13_a_thousand_consumers() -> None:
    ring = ConsistentHashing(100)
    for slot in range(1000):
        ring.add(slot, f"consumer-{slot}")
    assert len(np.unique(ring.owners()[1:])) == 1000


def test_ks_11_the_first_keeps_a_point_then_the_next_in_line() -> None:
    ring = ConsistentHashing(400)
    before: list[np.ndarray] = []
    for slot in range(60):
        before.append(ring.owners())
        ring.add(slot, f"c{slot}")
        moved = difference(before[-1], ring.owners())
        assert all(new == slot for _, _, _, new in moved), "a hash moved between two old consumers"
    # 24,000 points on 65,535 places: thousands collided. Undoing the joins in order restores every ring exactly.
    for slot in reversed(range(60)):
        ring.remove(slot)
        assert (ring.owners() == before[slot]).all()


def test_ks_11_the_holder_leaves_first() -> None:
    ring, alone = ConsistentHashing(2000), ConsistentHashing(2000)
    ring.add(0, "first")
    ring.add(1, "second")
    alone.add(1, "second")
    ring.remove(0)
    assert (ring.owners() == alone.owners()).all()


def test_ks_11_of_several_in_line_the_first_takes_over() -> None:
    ring, without = ConsistentHashing(8000), ConsistentHashing(8000)
    for slot, name in enumerate(("first", "second", "third")):
        ring.add(slot, name)
        if slot:
            without.add(slot, name)
    ring.remove(0)
    assert (ring.owners() == without.owners()).all()


def test_ring_needs_a_point_and_takes_no_ranges() -> None:
    with pytest.raises(Invalid, match="at least one point"):
        ConsistentHashing(0)
    ring = ConsistentHashing(3)
    with pytest.raises(Invalid, match="sticky"):
        ring.add(0, "c", ranges=[(0, 5)])
    assert len(ring.names) == 0


def test_ni_1_equal_names_get_different_indexes() -> None:
    names = NameIndexes()
    assert (names.increase("a", 1), names.increase("a", 2)) == (0, 1)
    assert (names.index("a", 1), names.index("a", 2)) == (0, 1)


def test_ni_3_counted_by_reference() -> None:
    names = NameIndexes()
    assert [names.increase("a", 1), names.increase("a", 1)] == [0, 0]
    assert names.decrease("a", 1) == 0
    assert names.index("a", 1) == 0
    assert len(names) == 1
    names.decrease("a", 1)
    assert names.index("a", 1) == -1
    assert len(names) == 0


def test_ni_4_all_names_vanish_after_release() -> None:
    names = NameIndexes()
    for number in range(100):
        names.increase(f"n{number}", number)
    assert len(names) == 100
    for number in range(100):
        names.decrease(f"n{number}", number)
    assert len(names) == 0


def test_ni_5_unknown_and_reused_indexes() -> None:
    names = NameIndexes()
    assert names.decrease("a", 1) == -1
    for slot in (1, 2, 3):
        names.increase("a", slot)
    names.decrease("a", 2)
    assert names.increase("a", 9) == 1


def test_as_1_published_example() -> None:
    split = AutoSplit(64)
    for slot in (1, 2, 3, 4):
        split.add(slot, f"c{slot}")
    assert split.parts() == [(0, 16, 3), (17, 32, 2), (33, 48, 4), (49, 64, 1)]


def test_as_2_equal_names_get_distinct_ranges() -> None:
    split = AutoSplit()
    for slot in range(4):
        split.add(slot, "same")
    assert len(split.parts()) == 4
    assert len(np.unique(split.owners())) == 4


def test_as_3_the_table_agrees_with_the_published_ranges() -> None:
    split = AutoSplit(1024)
    joined = list(range(8))
    for step in [*joined, *(-1 - slot for slot in (7, 0, 3, 1, 6, 2, 5))]:
        if step >= 0:
            split.add(step, f"c{step}")
        else:
            split.remove(-1 - step)
        owners = split.owners()
        for value in range(1024):
            assert owners[value] == next(slot for low, high, slot in split.parts() if low <= value <= high)
    split.remove(4)
    assert (split.owners() == NO_SLOT).all()
    split.remove(4)


@pytest.mark.parametrize("size", [0, 1, 3, 1000])
def test_as_5_sizes_that_are_refused(size: int) -> None:
    with pytest.raises(Invalid, match="power of two"):
        AutoSplit(size)


def test_as_5_a_part_of_width_one_is_not_split() -> None:
    split = AutoSplit(2)
    split.add(0, "a")
    split.add(1, "b")
    before = split.owners()
    with pytest.raises(Conflict):
        split.add(2, "c")
    assert (split.owners() == before).all()


def test_ex_1_values_belong_to_the_ranges_given() -> None:
    sticky = Sticky(10)
    sticky.add(1, "c1", ranges=[(0, 2)])
    assert sticky.owners()[:5].tolist() == [1, 1, 1, NO_SLOT, NO_SLOT]
    sticky.add(2, "c2", ranges=[(3, 9)])
    assert sticky.owners()[:10].tolist() == [1] * 3 + [2] * 7
    sticky.remove(1)
    assert sticky.owners()[1] == NO_SLOT
    sticky.remove(2)
    assert (sticky.owners() == NO_SLOT).all()


def test_ex_2_no_ranges_is_an_error() -> None:
    with pytest.raises(Invalid, match="no ranges"):
        Sticky().add(1, "c1")


def test_ex_3_size_zero_is_refused() -> None:
    with pytest.raises(Invalid):
        Sticky(0)


def test_ex_4_published_ranges_equal_the_input() -> None:
    sticky = Sticky()
    given = {1: (0, 2), 2: (3, 7), 3: (9, 12), 4: (15, 20)}
    for slot, pair in given.items():
        sticky.add(slot, f"c{slot}", ranges=[pair])
    assert {slot: ranges_of(sticky.owners(), slot) for slot in given} == {slot: [pair] for slot, pair in given.items()}


def test_ex_5_equal_names_have_ranges_of_their_own() -> None:
    sticky = Sticky()
    given = {1: [(1, 2), (20, 29)], 2: [(3, 7)], 3: [(9, 12), (14, 19), (40, 41)]}
    for slot, pairs in given.items():
        sticky.add(slot, "same", ranges=pairs)
    assert {slot: ranges_of(sticky.owners(), slot) for slot in given} == given
    sticky.remove(2)
    assert {slot: ranges_of(sticky.owners(), slot) for slot in given} == {**given, 2: []}


def test_ranges_of_all_slots_are_those_of_each() -> None:
    ring = ConsistentHashing(7)
    for slot in range(9):
        for owners in (ring.owners(), Sticky().owners()):
            slots = np.unique(owners).tolist()
            assert ranges_by_slot(owners) == {each: ranges_of(owners, each) for each in slots}
        ring.add(slot, f"c{slot}")


@pytest.mark.parametrize("pair", [(4, 6), (1, 3), (2, 2), (5, 5), (1, 5), (2, 6), (2, 5), (1, 6), (8, 6)])
def test_ex_6_overlaps_are_refused_without_a_trace(pair: tuple[int, int]) -> None:
    sticky = Sticky(10)
    sticky.add(1, "c1", ranges=[(2, 5)])
    before = sticky.owners()
    with pytest.raises((Conflict, Invalid)):
        sticky.add(2, "c2", ranges=[pair])
    assert (sticky.owners() == before).all()


@pytest.mark.parametrize("pairs", [[(2, 2), (3, 3), (4, 5)], [(0, 0), (1, 2)]])
def test_ex_7_lists_are_refused_as_a_whole(pairs: list[tuple[int, int]]) -> None:
    sticky = Sticky(10)
    sticky.add(1, "c1", ranges=[(2, 5)])
    with pytest.raises(Conflict):
        sticky.add(2, "c2", ranges=pairs)
    assert (sticky.owners() == 2).sum() == 0


def test_ex_10_own_ranges_that_overlap_are_refused() -> None:
    with pytest.raises(Invalid, match="same consumer"):
        Sticky(10).add(1, "c1", ranges=[(0, 3), (3, 5)])


def test_ks_14_gaps_between_ranges_of_one_consumer_are_not_its() -> None:
    sticky = Sticky()
    sticky.add(1, "c1", ranges=[(0, 99), (400, 65535)])
    sticky.add(2, "c2", ranges=[(100, 399)])
    assert sticky.owners()[[99, 100, 399, 400]].tolist() == [1, 2, 2, 1]


def test_sn_1_touching_ranges_are_joined() -> None:
    mask = np.zeros(40, np.bool_)
    for low, high in ((1, 5), (6, 10), (8, 12), (15, 20), (21, 25)):
        mask[low : high + 1] = True
    assert mask_ranges(mask) == [(1, 12), (15, 25)]


def owners_of(*ranges: tuple[int, int, int]) -> np.ndarray:
    """Return a table of owners. ranges: (first hash, last hash, slot)."""
    owner = np.full(65536, NO_SLOT, np.uint16)
    for low, high, slot in ranges:
        owner[low : high + 1] = slot
    return owner


def test_sn_2_difference() -> None:
    one, two, nobody = owners_of((1, 5, 1)), owners_of((1, 5, 2)), owners_of()
    assert difference(one, one) == []
    assert difference(one, two) == [(1, 5, 1, 2)]
    assert difference(nobody, one) == [(1, 5, NO_SLOT, 1)]
    assert difference(one, nobody) == [(1, 5, 1, NO_SLOT)]


def test_sn_4_each_consumer_is_told_what_it_lost_and_gained() -> None:
    def told(before: np.ndarray, after: np.ndarray) -> dict[str, list[tuple[str, list[tuple[int, int]]]]]:
        members, history = Members(0, 0), History()
        for slot in (0, 1):
            members.add(slot, f"c{slot + 1}", 0, 0)
        history.record(members, before, after, now=0, cause="a test")
        events = {member.name: take_events(member, history.number) for member in members}
        return {name: [(event.kind, event.ranges) for event in heard] for name, heard in events.items() if heard}

    one, two, nobody = owners_of((1, 5, 0)), owners_of((1, 5, 1)), owners_of()
    assert told(one, one) == {}
    assert told(one, two) == {"c1": [("revoked", [(1, 5)])], "c2": [("assigned", [(1, 5)])]}
    assert told(nobody, one) == {"c1": [("assigned", [(1, 5)])]}
    assert told(one, nobody) == {"c1": [("revoked", [(1, 5)])]}
    assert told(owners_of((1, 9, 0), (20, 29, 0)), owners_of((1, 5, 0), (6, 22, 1))) == {
        "c1": [("revoked", [(6, 9), (20, 22), (23, 29)])],
        "c2": [("assigned", [(6, 9), (10, 19), (20, 22)])],
    }


def test_ks_17_overlapping_pieces() -> None:
    moved = difference(owners_of((1, 5, 1)), owners_of((3, 7, 2)))
    assert moved == [(1, 2, 1, NO_SLOT), (3, 5, 1, 2), (6, 7, NO_SLOT, 2)]


def test_exclusive_takes_one_and_failover_the_first_by_priority() -> None:
    exclusive = SingleActive(exclusive=True)
    exclusive.add(0, "a")
    with pytest.raises(Conflict, match="exclusive"):
        exclusive.add(1, "b")
    line = SingleActive(exclusive=False)
    for slot, priority in ((0, 1), (1, 1), (2, 0)):
        line.add(slot, "c", priority=priority)
    assert line.owners()[7] == 2
    line.remove(2)
    assert line.owners()[7] == 0


@given(st.permutations(range(5)), st.integers(0, 20))
def test_failover_divides_partitions_by_name_within_a_level(order: list[int], partition: int) -> None:
    """As in Pulsar, the order of joining does not matter. Consumers of other levels wait."""
    names, priorities = ["b", "e", "a", "d", "c"], [1, 1, 1, 2, 2]
    line = SingleActive(exclusive=False, partition=partition)
    assert line.owners()[7] == NO_SLOT
    for slot in order:
        line.add(slot, names[slot], priority=priorities[slot])
    assert line.owners()[7] == [2, 0, 1][partition % 3]
    line.remove(0)
    assert line.owners()[7] == [2, 1][partition % 2]
    line.remove(1)
    line.remove(2)
    assert line.owners()[7] == [4, 3][partition % 2]


def test_every_selector_can_be_chosen_and_every_choice_made() -> None:
    """The choices in the settings are the names by which selectors are made."""
    assert set(SELECTORS) == set(CHOICES["selector"])
    made = [type(make_selector(SubscriptionSettings(selector=name))) for name in CHOICES["selector"]]
    assert len(set(made)) == len(made)


def test_many_references_are_given_and_taken_at_once() -> None:
    names = NameIndexes()
    assert [names.increase("a", 1, 100), names.increase("a", 2, 100)] == [0, 1]
    assert names.decrease("a", 1, 99) == names.index("a", 1) == 0
    assert [names.decrease("a", 1), names.index("a", 1)] == [0, -1]
    assert names.increase("a", 3, 100) == 0


@pytest.mark.parametrize("name", sorted(SELECTORS))
@given(st.integers(1, 40), st.data())
def test_many_that_leave_at_once_leave_what_one_by_one_leave(name: str, count: int, data: st.DataObject) -> None:
    """Owners and shares do not depend on the order of leaving."""
    together, one_by_one = (make_selector(SubscriptionSettings(selector=name)) for _ in range(2))
    for slot in range(count):
        ranges = [(slot * 100, slot * 100 + 99)] if name == "sticky" else []
        for selector in (together, one_by_one):
            selector.add(slot, f"c{slot % 7}", ranges=ranges)
    leaving = data.draw(st.lists(st.integers(0, count), unique=True))
    together.remove(*leaving)
    for slot in leaving:
        one_by_one.remove(slot)
    assert (together.owners() == one_by_one.owners()).all()
    assert together.layout() == one_by_one.layout()
