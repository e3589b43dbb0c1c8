"""Sessions: leases, turns, and the order in which acknowledgements are confirmed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.actors.dispatcher.delivery.sessions import EPOCH_SESSIONS, Session, Sessions, first_session
from sluice.actors.messages import Event, Part
from sluice.actors.messages.limits import MAX_ANSWER_BYTES
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import Fenced


def opened() -> tuple[Sessions, Session]:
    """Open a session for one consumer at a dispatcher of epoch 3."""
    sessions = Sessions()
    return sessions, sessions.open(first_session(3, "host/owner"), "c", "c.0")


def test_a_session_that_is_over_is_fenced() -> None:
    """S21: requests of an ended session are ignored."""
    sessions, session = opened()
    assert sessions.get(session.number) is session
    sessions.close(session)
    with pytest.raises(Fenced):
        sessions.get(session.number)
    assert sessions.find(session.number) is None
    assert session.ready.is_set()


def test_sessions_of_two_epochs_never_meet() -> None:
    """A session number of an older epoch names no session of the newer one."""
    _, old = opened()
    newer = Sessions()
    newer.open(first_session(4, "host/owner"), "c", "c.0")
    assert old.number // EPOCH_SESSIONS == 3
    with pytest.raises(Fenced):
        newer.get(old.number)


def test_moved_hashes_wake_only_sessions_that_ask_for_them() -> None:
    """A joining consumer takes hashes from many others, and most of those do not ask for the moves."""
    sessions = Sessions()
    deaf = sessions.open(first_session(3, "host/owner"), "c", "c.0", moves=False)
    hears = sessions.open(first_session(3, "host/owner") + 1, "d", "d.0")
    moved = [Event(kind="revoked", ranges=[(1, 9)], epoch=1), Event(kind="drained", ranges=[(1, 9)], epoch=1)]
    for session in (deaf, hears):
        session.tell(moved)
    assert (deaf.ready.is_set(), deaf.waiting, hears.ready.is_set(), hears.events) == (False, False, True, moved)
    deaf.tell([*moved, Event(kind="handed_over")])
    assert ([event.kind for event in deaf.events], deaf.ready.is_set()) == (["handed_over"], True)


@given(st.permutations(range(1, 8)), st.lists(st.integers(1, 7)))
def test_turns_are_received_without_gaps_whatever_their_order(order: list[int], again: list[int]) -> None:
    """`received` is the last turn without a gap before it. A repeated turn is recognized."""
    _, session = opened()
    arrived: set[int] = set()
    for turn in [*order, *again]:
        if session.arrived(turn):
            assert turn not in arrived
            assert session.received < turn, "it counts when it is settled"
            session.settle(turn)
            arrived.add(turn)
        assert turn in arrived
        unbroken = 0
        while unbroken + 1 in arrived:
            unbroken += 1
        assert session.received == unbroken


def test_sessions_with_turns_not_yet_durable_are_listed() -> None:
    sessions, session = opened()
    other = sessions.open(session.number + 1, "d", "d.0")
    for turn in (2, 1):
        session.arrived(turn)
        assert sessions.behind() == []
        session.settle(turn)
        assert sessions.behind() == ([session] if turn == 1 else [])
    session.confirm(1)
    assert sessions.behind() == [session]
    session.confirm(2)
    assert sessions.behind() == []
    for each in (session, other):
        each.arrived(3 if each is session else 1)
        each.settle(3 if each is session else 1)
    assert sessions.behind() == [session, other]
    sessions.close(session)
    assert sessions.behind() == [other]


def test_a_turn_is_answered_with_what_lay_ready_and_remembered() -> None:
    """The session keeps a turn's delivery for its repetition. The outbox is empty afterwards."""
    _, session = opened()
    session.turn = 4
    delivery = session.deliver()
    assert delivery.turn == 4
    assert session.answered is delivery
    assert session.outbox == []


def test_an_outbox_is_bounded_in_bytes() -> None:
    """Every message stays. The outbox leaves payloads beyond the bound out until it is emptied."""
    _, session = opened()
    size = MAX_ANSWER_BYTES // 8

    def part(number: int) -> Part:
        blob = Blob(handle=object(), size=size)
        rows = np.array([0], np.uint32)
        return Part(
            ledger=1, first_entry=number, count=1, delayed=False, shape=0, crc=0, dispatch=number, rows=rows, blob=blob
        )

    for _ in range(2):
        session.push([part(number) for number in range(300)])
        session.push([part(300)])
        delivery = session.deliver()
        assert [one.first_entry for one in delivery.parts] == list(range(301))
        assert [one.first_entry for one in delivery.parts if one.blob is not None] == list(range(8))


def state(session: Session) -> tuple[bool, bool]:
    """Return whether the session's poll is answered at once, and whether the session is known to live."""
    return session.waiting, session.lives.is_set()


def test_only_a_turn_behind_the_answer_says_that_it_lives() -> None:
    """KS-15: a copy of an earlier request, or one under way when the owner asked, proves nothing."""
    _, session = opened()
    session.begin_turn(1)
    session.ask()  # its poll waits
    session.begin_turn(1)
    assert state(session) == (True, False)
    session.deliver()
    session.begin_turn(2)
    assert state(session) == (False, True)
    session.deliver()
    session.ask()  # it has its answer, and the next poll may be under way
    session.begin_turn(3)
    assert state(session) == (True, False)
    session.deliver()
    session.begin_turn(4)
    assert state(session) == (False, True)


def test_one_that_never_polled_is_asked_with_its_first_answer() -> None:
    _, session = opened()
    session.ask()
    session.begin_turn(1)
    assert state(session) == (True, False)
    session.deliver()
    session.begin_turn(2)
    assert state(session) == (False, True)
