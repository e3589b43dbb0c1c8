"""With ordered negative acknowledgement, messages that come back go out before later ones of their key."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.messages import SubscriptionSettings
from sluice.actors.messages.settings import check_subscription
from sluice.storage.errors import Invalid, InvariantViolation
from sluice.storage.format.position import show
from sluice.storage.format.redeliveries import decode
from tests.actors.key_shared.driver import Driver, at


def ordered() -> Driver:
    """Return a driver with the option on and one consumer `a`."""
    driver = Driver(nack_order="key")
    driver.join("a")
    return driver


def asked_back(driver: Driver, name: str) -> list[str]:
    """Take the messages that a consumer is asked to give back."""
    return [show(int(p)) for p in driver.dispatch.take_revoked(driver.numbers[name])]


def give_back(driver: Driver, name: str, *messages: str, seen: tuple[str, ...] = ()) -> None:
    """Answer like the client library: in order, and not counted."""
    driver.nack(name, *messages, counted=False, overtook=at(*seen))


def test_later_messages_of_the_key_are_asked_back() -> None:
    driver = ordered()
    driver.send("k", "k", "other", "k")
    driver.nack("a", "1:1")
    assert asked_back(driver, "a") == ["1:3"]
    assert asked_back(driver, "a") == []
    assert driver.route() == {}, "the key waits for what was asked back"
    assert driver.send("k", "other") == {"a": ["1:5"]}, "other keys go on"
    give_back(driver, "a", "1:3")
    assert driver.route() == {"a": ["1:1", "1:3", "1:4"]}


def test_consumer_asked_to_give_back_is_listed_as_untold() -> None:
    driver = ordered()
    dispatch, number = driver.dispatch, driver.numbers["a"]
    assert dispatch.untold() == [number], "of what it was assigned"
    dispatch.take_events(number)
    assert dispatch.untold() == []
    driver.send("k", "k")
    driver.nack("a", "1:0")
    assert dispatch.untold() == [number]
    dispatch.check()
    dispatch.take_revoked(number)
    assert dispatch.untold() == []


def test_held_message_behind_a_fresh_one_is_asked_back() -> None:
    driver = Driver(nack_order="key")
    driver.join("a", holding=at("1:1"))
    driver.publish("k", "k")
    assert asked_back(driver, "a") == ["1:1"]
    driver.dispatch.check()
    give_back(driver, "a", "1:1")
    assert driver.route() == {"a": ["1:0", "1:1"]}


def test_without_the_option_nothing_is_asked_back() -> None:
    driver = Driver()
    driver.join("a")
    driver.send("k", "k")
    driver.nack("a", "1:0")
    assert asked_back(driver, "a") == []
    assert driver.send("k") == {"a": ["1:0", "1:2"]}


def test_a_key_waits_out_the_delay_of_what_came_back() -> None:
    driver = ordered()
    driver.send("k", "k")
    driver.nack("a", "1:0", delay=500)
    give_back(driver, "a", *asked_back(driver, "a"))
    assert driver.send("k", "other") == {"a": ["1:3"]}
    assert driver.why(position=at("1:1")[0]) == ["waits_for_redelivery"]
    driver.now += 500
    assert driver.route() == {"a": ["1:0", "1:1", "1:2"]}


def test_an_acknowledgement_frees_what_was_asked_back() -> None:
    driver = ordered()
    driver.send("k", "k")
    driver.nack("a", "1:0")
    driver.ack("1:1", by="a")
    assert asked_back(driver, "a") == [], "it was done before it was told"
    assert driver.route() == {"a": ["1:0"]}


def test_a_consumer_that_leaves_frees_what_was_asked_back() -> None:
    driver = ordered()
    driver.send("k", "k")
    driver.nack("a", "1:0", delay=50)
    driver.join("b")
    driver.leave("a")
    driver.now += 50
    assert driver.route() == {"b": ["1:0", "1:1"]}


def test_given_back_messages_stay_behind_earlier_ones() -> None:
    driver = ordered()
    driver.send("k", "k", "k")
    driver.nack("a", "1:1")
    driver.nack("a", "1:0", delay=80)
    give_back(driver, "a", *asked_back(driver, "a"))
    assert driver.route() == {}
    driver.now += 80
    assert driver.route() == {"a": ["1:0", "1:1", "1:2"]}


def test_everything_given_back_comes_in_order() -> None:
    driver = ordered()
    driver.send("k", "k", "j")
    driver.nack("a")
    assert asked_back(driver, "a") == []
    assert driver.route() == {"a": ["1:0", "1:1", "1:2"]}


def test_overtaking_seen_by_the_application_is_remembered() -> None:
    driver = ordered()
    driver.send("k", "k", "k")
    driver.nack("a", "1:0")
    give_back(driver, "a", "1:1", "1:2", seen=("1:1",))
    assert driver.route() == {"a": ["1:0", "1:1", "1:2"]}
    every = at("1:0", "1:1", "1:2")
    assert driver.dispatch.overtook(every).tolist() == at("1:1").tolist()
    driver.nack("a", "1:1")
    assert driver.dispatch.overtook(every).tolist() == at("1:1").tolist()


def test_the_next_owner_keeps_the_place_and_the_mark() -> None:
    first = ordered()
    first.send("k", "k", "k")
    first.nack("a", "1:0", delay=500)
    give_back(first, "a", *asked_back(first, "a"), seen=("1:1",))
    second = Driver(nack_order="key")
    second.dispatch.remember(decode(first.dispatch.redeliveries()), second.now)
    second.join("b")
    assert second.send("k", "k", "k") == {}
    second.now += 500
    assert second.route() == {"b": ["1:0", "1:1", "1:2"]}
    assert second.dispatch.overtook(at("1:0", "1:1", "1:2")).tolist() == at("1:1").tolist()


def test_returned_message_does_not_overtake_a_reread_one() -> None:
    first = ordered()
    first.send("k", "k")
    first.nack("a", "1:1")
    second = Driver(nack_order="key")
    second.dispatch.remember(decode(first.dispatch.redeliveries()), second.now)
    second.join("b")
    assert second.send("k", "k") == {"b": ["1:0", "1:1"]}


def test_message_held_from_an_earlier_owner_is_asked_back() -> None:
    """The owner changed between the nack and its answer. The consumer holds a message behind the nacked one."""
    driver = Driver(nack_order="key")
    driver.join("a", holding=at("1:1"))
    driver.bring("a", {"1:1": "k"})
    driver.publish("k", "k", "j")
    assert asked_back(driver, "a") == ["1:1"]
    assert driver.route() == {"a": ["1:2"]}
    give_back(driver, "a", "1:1")
    assert driver.route() == {"a": ["1:0", "1:1"]}


def test_returned_message_waits_for_earlier_unread_ones() -> None:
    """An earlier message may have been given back to an earlier owner."""
    driver = Driver(nack_order="key")
    driver.join("a", holding=at("1:1"))
    driver.bring("a", {"1:1": "k"})
    give_back(driver, "a", "1:1")
    assert driver.route() == {}
    assert driver.why(position=int(at("1:1")[0])) == ["not_read"] * 2
    assert driver.send("k", "k") == {"a": ["1:0", "1:1"]}


def test_returned_message_behind_only_done_ones_goes_on() -> None:
    """Done and delayed messages are read and not handed on, so nothing more comes before the returned one."""
    driver = Driver(nack_order="key")
    driver.join("a", holding=at("1:1"))
    driver.bring("a", {"1:1": "k"})
    give_back(driver, "a", "1:1")
    assert driver.route() == {}
    driver.dispatch.reach(int(at("1:1")[0]))
    assert driver.route() == {"a": ["1:1"]}


def test_the_answer_names_what_the_key_waits_for() -> None:
    driver = ordered()
    driver.send("k", "k")
    driver.nack("a", "1:0")
    driver.route()
    reason = driver.dispatch.explain(position=int(at("1:0")[0]), now=driver.now)["reasons"][0]
    assert reason["gate"] == "waits_for_redelivery"
    assert reason["text"].startswith("waits for a redelivery")
    assert [held["message_id"] for held in reason["held"]] == ["1:1"]
    assert driver.dispatch.stats(driver.now)["msgRevoked"] == 1


def test_a_delayed_message_has_no_place_until_it_comes_back() -> None:
    driver = ordered()
    driver.send("k", "k")
    driver.due("k")
    assert driver.route() == {"a": ["1:2"]}
    driver.send("k")
    driver.nack("a", "1:2")
    assert asked_back(driver, "a") == ["1:3"]


def test_the_sentinel_sees_a_repeated_delivery_out_of_order() -> None:
    driver = ordered()
    driver.send("k", "k")
    driver.nack("a", "1:0")
    core = driver.dispatch._core
    core.tables.revoked_messages = 0  # a defect: the gate does not see what is still out
    core.look_again()
    with pytest.raises(InvariantViolation, match="nack_order broken"):
        driver.route()


def test_the_sentinel_sees_what_overtakes_a_redelivery() -> None:
    sentinel = ordered().dispatch._core.sentinel
    slot, hashes = np.zeros(1, np.uint16), np.full(1, 7, np.uint16)
    sentinel.sent(slot, hashes, np.array([5]), None)
    sentinel.sent(slot, hashes, np.array([6]), None)
    for position in (6, 5):
        sentinel.given_back(hashes, np.array([position]), again=True)
    none = np.zeros(1, np.bool_)
    sentinel.sent(slot, hashes, np.array([6]), none)
    with pytest.raises(InvariantViolation, match="nack_order broken"):
        sentinel.sent(slot, hashes, np.array([5]), none)


@pytest.mark.parametrize(
    "settings", [{"type": "shared"}, {"allow_out_of_order_delivery": True}, {"policy": "last_sent_position"}]
)
def test_without_order_there_is_none_to_keep(settings: dict[str, object]) -> None:
    with pytest.raises(Invalid, match="keeps its keys in order"):
        check_subscription(SubscriptionSettings(nack_order="key", **settings))  # type: ignore[arg-type]
