"""Parked and blocked keys in the decision core: held messages, free ones, and the order in which they return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.key_shared.state import parked_messages
from sluice.actors.key_shared.state.parking import Parking
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import check_subscription
from sluice.storage.errors import Invalid
from sluice.storage.format.hashing import masked_hash
from sluice.storage.format.position import show
from tests.actors.key_shared.driver import Driver, at


def parking(policy: str = "park", **settings: Any) -> Driver:
    """Return a driver with one consumer `a`; a message fails when it is given back for the second time."""
    driver = Driver(nack_order="key", max_redeliver_count=1, dead_letter_policy=policy, **settings)
    driver.join("a")
    return driver


def asked_back(driver: Driver) -> list[str]:
    """Take the messages that `a` is asked to give back."""
    return [show(int(p)) for p in driver.dispatch.take_revoked(driver.numbers["a"])]


def look(driver: Driver, size: int = 10) -> None:
    """Read the keys of failed messages and of those behind them, as the owner does."""
    parked = driver.dispatch.parking
    while parked.waits_for_reading:
        for positions, tell in ((parked.failed(2), True), (parked.unknown(2), False)):
            keys = pa.array([driver.keys[p].encode() or None for p in positions.tolist()], pa.binary())
            sizes = np.full(len(positions), size, np.int64)
            if tell:
                parked.park(positions, keys, sizes, driver.now)
            else:
                parked.examined(positions, keys, sizes)
    driver.dispatch.check()


def fail(driver: Driver, message: str) -> None:
    """Give a message back until it has failed, with every message that is asked back. Then look at it."""
    for _ in range(2):
        driver.nack("a", message)
        driver.nack("a", *(asked_back(driver) or ["99:9"]), counted=False)
        driver.route()
    look(driver)


def redrive(driver: Driver, key: str) -> None:
    found = driver.dispatch.parking.find(key.encode())
    assert found is not None
    driver.dispatch.parking.redrive([found.number])


def stats(driver: Driver) -> dict[str, int]:
    """Return the statistics of the subscription."""
    return driver.dispatch.stats(driver.now)


def test_the_key_waits_and_others_go_on() -> None:
    driver = parking()
    driver.send("k", "k", "other")
    fail(driver, "1:0")
    assert driver.send("k", "other") == {"a": ["1:4"]}
    look(driver)
    assert driver.pending("a") == ["1:2", "1:4"]
    assert [stats(driver)[name] for name in ("parkedKeys", "msgParked", "parkedBytes", "unackedMessages")] == [
        1,
        3,
        30,
        2,
    ]
    driver.ack("1:2", "1:4", by="a")
    assert not driver.dispatch.idle()


def test_redriven_messages_come_in_order_and_first() -> None:
    driver = parking()
    driver.send("k", "k", "other")
    fail(driver, "1:0")
    driver.send("k")
    look(driver)
    redrive(driver, "k")
    assert driver.send("k", "other") == {"a": ["1:0", "1:1", "1:3", "1:4", "1:5"]}
    assert driver.dispatch.parking.held() == []
    driver.nack("a", "1:0")
    driver.nack("a", *asked_back(driver), counted=False)
    assert driver.route() == {"a": ["1:0", "1:1", "1:3", "1:4"]}, "its redeliveries are counted from zero"


def test_messages_before_the_failed_one_go_on() -> None:
    driver = parking()
    driver.send("k", "k", "k")
    fail(driver, "1:1")
    assert driver.pending("a") == ["1:0"]
    driver.nack("a", "1:0")
    assert driver.route() == {"a": ["1:0"]}
    driver.nack("a", "1:0")
    look(driver)
    assert driver.route() == {}
    assert [key.failed for key in driver.dispatch.parking.held()] == at("1:0").tolist()
    redrive(driver, "k")
    assert driver.route() == {"a": ["1:0", "1:1", "1:2"]}


def test_a_key_whose_failed_message_is_done_goes_on() -> None:
    driver = parking()
    driver.send("k", "k")
    fail(driver, "1:0")
    driver.ack("1:0")
    assert driver.route() == {"a": ["1:1"]}
    assert stats(driver)["parkedKeys"] == 0
    fail(driver, "1:1")
    driver.send("k")
    driver.dispatch.remove(up_to=int(at("1:1")[0]))
    assert driver.route() == {"a": ["1:2"]}, "also if it was skipped"


def test_a_key_of_the_same_hash_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = parking()
    monkeypatch.setattr("tests.actors.key_shared.driver.masked_hash", lambda key: 5 if key[:1] in b"kt" else 7)
    driver.send("k", "twin", "twin")
    fail(driver, "1:0")
    assert driver.route() == {"a": ["1:1", "1:2"]}
    driver.send("twin", "k", "twin")
    look(driver)
    assert driver.route() == {"a": ["1:3", "1:5"]}
    driver.nack("a", "1:3")
    assert driver.route() == {}, "the one behind it is asked back"
    driver.nack("a", *asked_back(driver), counted=False)
    assert driver.route() == {"a": ["1:3", "1:5"]}
    driver.nack("a", "1:3")
    driver.nack("a", *asked_back(driver), counted=False)
    driver.route()
    look(driver)
    assert [key.key for key in driver.dispatch.parking.held()] == [b"k", b"twin"]
    redrive(driver, "k")
    driver.route()
    look(driver)
    driver.route()
    assert driver.pending("a") == ["1:0", "1:1", "1:2", "1:4"]


def test_message_behind_a_failed_one_waits_for_its_key() -> None:
    driver = parking()
    driver.send("k", "k")
    for _ in range(2):
        driver.nack("a", "1:0")
        driver.nack("a", *asked_back(driver), counted=False)
        driver.route()
    parked = driver.dispatch.parking
    assert parked.unknown(10).tolist() == []
    parked.examined(at("1:1"), pa.array([b"k"], pa.binary()), np.array([10]))
    assert driver.route() == {}, "the key that failed may be its own"
    look(driver)
    assert stats(driver)["msgParked"] == 2


def test_a_message_without_a_key_is_alone() -> None:
    driver = parking()
    driver.send("", "", "k")
    fail(driver, "1:0")
    driver.route()
    assert [key.key for key in driver.dispatch.parking.held()] == [None]
    assert driver.pending("a") == ["1:1", "1:2"]


def test_blocked_keys_count_as_waiting_and_parked_ones_do_not() -> None:
    for policy, room in (("block", 4), ("park", 10)):
        driver = parking(policy, look_ahead_per_subscription=10, look_ahead_per_consumer=0)
        driver.send("k")
        fail(driver, "1:0")
        driver.send(*["k"] * 5)
        look(driver)
        assert driver.dispatch.room() == room
        assert driver.dispatch.due_room() == room


def test_above_the_bytes_the_key_blocks_until_there_is_room() -> None:
    driver = parking(park_max_bytes=30)
    driver.send("k", "j")
    fail(driver, "1:0")
    fail(driver, "1:1")
    driver.send("k", "j", "k")
    look(driver)
    told = stats(driver)
    assert [told[name] for name in ("msgParked", "msgBlockedByKey", "parkingLimitReached")] == [3, 2, True]
    redrive(driver, "j")
    told = stats(driver)
    assert [told[name] for name in ("msgParked", "msgBlockedByKey", "parkingLimitReached")] == [3, 0, False]
    assert driver.route() == {"a": ["1:1", "1:3"]}


def test_above_the_keys_the_later_key_blocks() -> None:
    driver = parking(park_max_keys=1)
    driver.send("k", "j")
    fail(driver, "1:1")
    fail(driver, "1:0")
    told = stats(driver)
    assert [told[name] for name in ("parkedKeys", "blockedKeys", "parkingLimitReached")] == [1, 1, True]
    redrive(driver, "j")
    assert stats(driver)["parkedKeys"] == 1


def test_failed_key_without_a_free_entry_blocks_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_messages, "MOST_KEYS", 1)
    driver = parking()
    driver.send("k", "j", "other")
    fail(driver, "1:0")
    fail(driver, "1:1")
    assert driver.send("j", "other") == {"a": ["1:4"]}
    assert stats(driver)["parkingLimitReached"]
    redrive(driver, "k")
    look(driver)
    assert [key.key for key in driver.dispatch.parking.held()] == [b"j"]
    redrive(driver, "j")
    assert driver.route() == {"a": ["1:0", "1:1", "1:3"]}


def taken_over(driver: Driver) -> Driver:
    """Return the next owner, which has its predecessor's record."""
    new = parking()
    new.dispatch = KeySharedDispatcher(driver.dispatch._core.settings)
    new.dispatch.parking.load(driver.dispatch.parking.record())
    new.keys = driver.keys
    return new


def test_the_next_owner_keeps_them() -> None:
    driver = parking()
    driver.send("k", "other", "k")
    fail(driver, "1:0")
    new = taken_over(driver)
    new.join("a", holding=at("1:2"))
    new.bring("a", {"1:2": "k"})
    new.publish("k", "other", "k", "k")
    assert new.route() == {"a": ["1:1"]}
    assert asked_back(new) == ["1:2"], "it was asked back, and not heard"
    new.nack("a", "1:2", counted=False, overtook=at("1:2"))
    new.route()
    look(new)
    assert new.pending("a") == ["1:1"]
    redrive(new, "k")
    assert new.route() == {"a": ["1:0", "1:2", "1:3"]}
    assert new.dispatch.overtook(at("1:0", "1:2", "1:3")).tolist() == at("1:2").tolist()


def test_messages_unread_by_the_next_owner_are_not_counted() -> None:
    driver = parking()
    driver.send("k", "j")
    fail(driver, "1:0")
    fail(driver, "1:1")
    parked = taken_over(driver).dispatch.parking
    first, second = parked.held()
    parked.redrive([first.number])
    assert parked.counts() == {second.number: (0, 0)}


def parked_with_a_later_message_held() -> Driver:
    """Return the next owner of a subscription with a parked key.

    A consumer `c` returns to it with a later message of the key.
    """
    driver = parking()
    driver.send("k", "k", "k")
    fail(driver, "1:0")
    new = taken_over(driver)
    new.join("b")
    new.publish("k", "k", "k")
    new.route()
    look(new)
    new.join("c", holding=at("1:1"))
    return new


def test_a_consumer_that_comes_back_has_what_it_holds() -> None:
    new = parked_with_a_later_message_held()
    assert new.pending("c") == ["1:1"], "what it holds is not in the lot"
    assert new.route() == {}
    assert [show(int(p)) for p in new.dispatch.take_revoked(new.numbers["c"])] == ["1:1"]
    new.nack("c", "1:1", counted=False)
    new.route()
    look(new)
    assert stats(new)["msgParked"] == 3


def test_redriven_key_asks_back_its_later_messages() -> None:
    """A consumer comes back with a later message of the key, and the key is redriven before the next dispatch."""
    new = parked_with_a_later_message_held()
    redrive(new, "k")
    assert [show(int(p)) for p in new.dispatch.take_revoked(new.numbers["c"])] == ["1:1"]
    assert new.route() == {}
    new.nack("c", "1:1", counted=False)
    assert sorted(one for each in new.route().values() for one in each) == ["1:0", "1:1", "1:2"]


def test_a_delayed_message_of_the_key_is_parked_when_it_is_due() -> None:
    driver = parking()
    driver.send("k", "other")
    fail(driver, "1:0")
    driver.due("k", "other")
    assert driver.route() == {"a": ["1:3"]}
    look(driver)
    redrive(driver, "k")
    assert driver.send("k") == {"a": ["1:0", "1:2", "1:4"]}


def test_parking_needs_settings_that_keep_a_key_in_order() -> None:
    for wrong, told in (
        ({"max_redeliver_count": 1}, "nack_order"),
        ({"nack_order": "key"}, "max_redeliver_count"),
        ({"nack_order": "key", "max_redeliver_count": 1, "dead_letter_topic": "d"}, "dead_letter_topic"),
        ({"nack_order": "key", "max_redeliver_count": 1, "type": "shared"}, "nack_order"),
    ):
        with pytest.raises(Invalid, match=told):
            check_subscription(SubscriptionSettings(dead_letter_policy="park", **wrong))


def test_many_parked_messages_stay_columns() -> None:
    driver = parking()
    driver.send("k")
    fail(driver, "1:0")
    masked = np.full(100_000, masked_hash(b"k"), np.uint32)
    first = int(at("2:0")[0])
    driver.dispatch.append(first + np.arange(100_000), masked)
    driver.dispatch.route(driver.now)
    parked: Parking = driver.dispatch.parking
    while len(positions := parked.unknown(10_000)):
        parked.examined(positions, pa.repeat(pa.scalar(b"k", pa.binary()), len(positions)), np.full(len(positions), 7))
    assert stats(driver)["msgParked"] == 100_001
    assert driver.dispatch.room() > 0


def test_subscription_without_parked_messages_has_no_table() -> None:
    parks, other = parking(), parking()
    for driver in (parks, other):
        driver.send("k", "k", "other")
        driver.ack("1:2")
    table = other.dispatch._core.parked.table
    assert parks.dispatch._core.parked.table is table
    fail(parks, "1:0")
    assert (stats(parks)["msgParked"], stats(other)["msgParked"]) == (2, 0)
    assert (table.tail, other.dispatch._core.parked.table is table) == (0, True)
    redrive(parks, "k")
    parks.ack(*parks.pending("a"))
    assert (stats(parks)["msgParked"], table.live) == (0, 0)
