"""Admission of producers to a partition, without any I/O."""

from __future__ import annotations

import pytest

from sluice.actors.ledger.record import Exclusivity, Holder
from sluice.actors.messages import AccessMode, OpenProducer
from sluice.actors.topic.partition.access import HEARD_MS, Access, Admit, Ask, Wait
from sluice.storage.errors import Conflict, ProducerFenced

SHARED: AccessMode = "shared"
EXCLUSIVE: AccessMode = "exclusive"
WAITING: AccessMode = "wait_for_exclusive"
FENCING: AccessMode = "exclusive_with_fencing"


def wants(name: str, access: AccessMode, epoch: int | None = None, life: int = 1, home: str = "g") -> OpenProducer:
    """A producer asks; life: of its client's connection."""
    return OpenProducer(producer=name, incarnation=f"{name}-{life}", home=home, access=access, topic_epoch=epoch)


def let_in(access: Access, request: OpenProducer, now: int = 0) -> list[str]:
    """Admit a producer, and return the names of those that have to give way."""
    assert access.judge(request, now, asked=True) == Admit()
    return [other.name for other in access.enter(request, now)]


def test_many_share_and_one_alone_keeps_them_out() -> None:
    access = Access()
    let_in(access, wants("a", SHARED))
    let_in(access, wants("b", SHARED))
    (asked,) = [access.judge(wants("c", EXCLUSIVE), 0, asked=False)]
    assert isinstance(asked, Ask)
    assert [one.name for one in asked.holders] == ["a", "b"]
    with pytest.raises(ProducerFenced):
        access.judge(wants("c", EXCLUSIVE), 0, asked=True)
    access.leave("a-1")
    access.leave("b-1")
    let_in(access, wants("c", EXCLUSIVE))
    assert access.epoch == 0
    with pytest.raises(Conflict):
        access.judge(wants("a", SHARED, life=2), 0, asked=True)


def test_fencing_producer_ends_all_others() -> None:
    access = Access()
    let_in(access, wants("a", SHARED))
    assert access.judge(wants("w", WAITING), 0, asked=True) == Wait()
    assert let_in(access, wants("b", FENCING)) == ["a"]
    assert let_in(access, wants("c", FENCING)) == ["b"]
    assert access.epoch == 1
    for gone in (wants("a", SHARED), wants("b", FENCING, 0), wants("w", WAITING)):
        with pytest.raises(ProducerFenced):
            access.judge(gone, 0, asked=True)


@pytest.mark.parametrize("again", [EXCLUSIVE, WAITING, FENCING])
def test_producer_back_after_another_one_is_fenced(again: AccessMode) -> None:
    """Over owners: the epoch is what it had, and the record says what it is."""
    access = Access()
    let_in(access, wants("a", EXCLUSIVE))
    access.leave("a-1")
    let_in(access, wants("b", EXCLUSIVE))
    later = Access()
    later.restore(access.durable, 0)
    later.leave("b-1")
    with pytest.raises(ProducerFenced, match="epoch 0 is over; it is 1"):
        later.judge(wants("a", again, 0, life=2), 0, asked=True)
    let_in(later, wants("b", again, 1, life=2))
    assert later.epoch == 1


@pytest.mark.parametrize("claimed", [1, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("access", [EXCLUSIVE, WAITING, FENCING])
def test_an_epoch_that_was_never_given_is_refused(access: AccessMode, claimed: int) -> None:
    """The next producer's epoch is one more than that of the last, so a made-up one would never end."""
    partition = Access()
    let_in(partition, wants("a", EXCLUSIVE))
    partition.leave("a-1")
    with pytest.raises(ProducerFenced, match=f"epoch {claimed} was never given; it is 0"):
        partition.judge(wants("b", access, claimed), 0, asked=True)
    assert partition.epoch == 0


def test_the_first_holder_cannot_name_its_epoch() -> None:
    with pytest.raises(ProducerFenced, match="epoch 0 was never given"):
        Access().judge(wants("a", EXCLUSIVE, 0), 0, asked=True)


def test_a_record_with_an_impossible_epoch_still_opens() -> None:
    """Earlier versions stored a client's claim; the next producer counts from the beginning."""
    access = Access()
    access.restore(Exclusivity((1 << 64) - 1, Holder("a", "a-1", "g")), 0)
    assert access.durable == Exclusivity()
    let_in(access, wants("b", EXCLUSIVE))
    assert access.durable == Exclusivity(0, Holder("b", "b-1", "g"))


def test_the_holder_comes_back_at_once_over_owners() -> None:
    access = Access()
    let_in(access, wants("a", EXCLUSIVE))
    later = Access()
    later.restore(access.durable, 0)
    assert isinstance(later.judge(wants("b", EXCLUSIVE), 0, asked=False), Ask)
    assert let_in(later, wants("a", EXCLUSIVE, 0, life=2, home="another")) == ["a"]
    assert later.durable == Exclusivity(0, Holder("a", "a-2", "another"))
    with pytest.raises(ProducerFenced):
        later.judge(wants("a", EXCLUSIVE, 0), 0, asked=True)


def test_waiting_producers_stand_in_line() -> None:
    access = Access()
    let_in(access, wants("a", SHARED))
    for name in ("b", "c"):
        assert access.judge(wants(name, WAITING), 0, asked=True) == Wait()
    access.leave("a-1")
    assert access.judge(wants("c", WAITING), 1, asked=True) == Wait()
    with pytest.raises(ProducerFenced):
        access.judge(wants("d", EXCLUSIVE), 1, asked=True)
    with pytest.raises(Conflict):
        access.judge(wants("d", SHARED), 1, asked=True)
    assert access.judge(wants("c", WAITING), HEARD_MS, asked=True) == Admit(), "b asks no more"


def test_producer_without_a_home_blocks_no_other() -> None:
    access = Access()
    let_in(access, wants("own", SHARED, home=""))
    let_in(access, wants("a", EXCLUSIVE))
    with pytest.raises(Conflict):
        access.judge(wants("other", SHARED, home=""), 0, asked=True)


def test_holder_without_a_home_is_heard_until_it_is_silent() -> None:
    access = Access()
    let_in(access, wants("own", EXCLUSIVE, home=""), 5)
    (own,) = access.present
    assert access.is_heard(own, 4 + HEARD_MS)
    assert not access.is_heard(own, 5 + HEARD_MS)
    let_in(access, wants("own", EXCLUSIVE, 0, home=""), 7)
    assert access.is_heard(own := access.present[0], 6 + HEARD_MS)
    later = Access()
    later.restore(access.durable, 1_000_000)
    assert later.is_heard(own, 1_000_000)
    assert not later.is_heard(own, 1_000_000 + HEARD_MS)


def test_a_holder_that_left_does_not_come_back() -> None:
    """Earlier requests of the holder may arrive behind its farewell."""
    access = Access()
    let_in(access, wants("own", EXCLUSIVE, home=""))
    assert access.leave("own-1")
    with pytest.raises(ProducerFenced, match="was replaced"):
        access.judge(wants("own", EXCLUSIVE, 0, home=""), 1, asked=True)
    let_in(access, wants("own", EXCLUSIVE, home="", life=2))
    access.withdraw("own-2")
    let_in(access, wants("own", EXCLUSIVE, home="", life=2))
