"""Both sides prove that they have the key; nothing that was ever said can be used again, or by somebody else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.cluster.wire import frames
from sluice.cluster.wire.frames import (
    CHALLENGE,
    HELLO,
    PROOF,
    REFUSED,
    REQUEST,
    WELCOME,
    FrameReader,
    MalformedFrame,
    WireFrame,
)
from sluice.cluster.wire.handshake import MAX_GREETING, Caller, Greeter, HandshakeRefused, Versions, prove, refusal
from sluice.storage.format.frame import Buffer

KEY = b"a token of the cluster"


def frame(pieces: list[Buffer]) -> WireFrame:
    """The frame that these pieces are."""
    reader = FrameReader(MAX_GREETING)
    data = b"".join(pieces)
    room = reader.buffer()
    room[: len(data)] = data
    return reader.advance(len(data))[0]


def test_both_have_the_key() -> None:
    caller, greeter = Caller(KEY, "broker-1"), Greeter(KEY, "broker-1")
    challenge = greeter.receive_frame(frame(caller.hello()))
    proof = caller.receive_frame(frame(challenge))
    assert (caller.done, greeter.done) == (False, False)
    welcome = greeter.receive_frame(frame(proof))
    assert (caller.done, greeter.done) == (False, True)
    assert caller.receive_frame(frame(welcome)) == []
    assert (caller.done, greeter.done) == (True, True)


def test_nothing_that_is_said_holds_the_key() -> None:
    caller, greeter = Caller(KEY, "broker-1"), Greeter(KEY, "broker-1")
    said = [caller.hello()]
    said.append(greeter.receive_frame(frame(said[-1])))
    said.append(caller.receive_frame(frame(said[-1])))
    said.append(greeter.receive_frame(frame(said[-1])))
    assert all(KEY not in b"".join(pieces) for pieces in said)


@pytest.mark.parametrize(
    ("mine", "theirs", "agreed"),
    [
        (Versions(1, 1), Versions(1, 1), 1),
        (Versions(1, 3), Versions(2, 5), 3),
        (Versions(1, 3), Versions(1, 1), 1),
        (Versions(2, 4), Versions(4, 4), 4),
    ],
)
def test_both_speak_the_newest_version_that_both_know(mine: Versions, theirs: Versions, agreed: int) -> None:
    """During an upgrade, machine by machine, either side may be the newer one."""
    for one, other in ((mine, theirs), (theirs, mine)):
        caller, greeter = Caller(KEY, "broker-1", one), Greeter(KEY, "broker-1", other)
        caller.receive_frame(
            frame(
                greeter.receive_frame(frame(caller.receive_frame(frame(greeter.receive_frame(frame(caller.hello()))))))
            )
        )
        assert caller.version == greeter.version == agreed


def test_two_that_have_no_version_in_common_say_both() -> None:
    """Whichever side is older: the listener refuses first, and tells its caller."""
    for mine, theirs in ((Versions(1, 1), Versions(2, 3)), (Versions(2, 3), Versions(1, 1))):
        caller, greeter = Caller(KEY, "broker-1", mine), Greeter(KEY, "broker-1", theirs)
        with pytest.raises(HandshakeRefused) as refused:
            greeter.receive_frame(frame(caller.hello()))
        with pytest.raises(HandshakeRefused) as told:
            caller.receive_frame(frame(refusal(str(refused.value))))
        assert str(told.value).count("\n") == 0
        assert "version 1 " in str(told.value).replace(":", " ")
        assert "versions 2 to 3" in str(told.value)


def test_one_that_says_no_version_is_of_the_first_one() -> None:
    """So did processes before there were versions."""
    caller, greeter = Caller(KEY, "broker-1"), Greeter(KEY, "broker-1", Versions(1, 2))
    hello = msgspec.msgpack.decode(frame(caller.hello()).head)
    del hello["versions"]
    greeter.receive_frame(frame(frames.encode(HELLO, 0, b"", msgspec.msgpack.encode(hello))))
    assert greeter.version == 1


def test_a_caller_without_the_key_is_refused() -> None:
    caller, greeter = Caller(b"guessed", "broker-1"), Greeter(KEY, "broker-1")
    proof = caller.receive_frame(frame(greeter.receive_frame(frame(caller.hello()))))
    with pytest.raises(HandshakeRefused, match="does not have this cluster's token"):
        greeter.receive_frame(frame(proof))
    assert not greeter.done


def test_a_listener_without_the_key_is_not_believed() -> None:
    caller, greeter = Caller(KEY, "broker-1"), Greeter(b"guessed", "broker-1")
    caller.receive_frame(frame(greeter.receive_frame(frame(caller.hello()))))
    forged = frames.encode(WELCOME, 0, b"", b"\x81\xa5proof\xc4\x20" + bytes(32))
    with pytest.raises(HandshakeRefused, match="does not have this cluster's token"):
        caller.receive_frame(frame(forged))
    assert not caller.done


def test_frames_of_a_caller_cannot_be_sent_back_to_it() -> None:
    """A stranger that mirrors each frame, or the proof of the caller, proves nothing."""
    caller = Caller(KEY, "broker-1")
    hello = frame(caller.hello())
    mirrored = WireFrame(CHALLENGE, 0, b"", hello.head, [])
    proof = frame(caller.receive_frame(mirrored))
    with pytest.raises(HandshakeRefused):
        caller.receive_frame(WireFrame(WELCOME, 0, b"", proof.head, []))


def test_a_recorded_conversation_opens_nothing() -> None:
    caller, greeter = Caller(KEY, "broker-1"), Greeter(KEY, "broker-1")
    hello = frame(caller.hello())
    proof = frame(caller.receive_frame(frame(greeter.receive_frame(hello))))
    again = Greeter(KEY, "broker-1")
    again.receive_frame(hello)
    with pytest.raises(HandshakeRefused):
        again.receive_frame(proof)


def test_a_proof_for_one_process_is_none_for_another() -> None:
    nonces = bytes(32), bytes(32)
    said = {prove(KEY, role, name, *nonces) for role in (b"caller", b"listener") for name in ("a", "b")}
    assert len(said) == 4
    assert prove(KEY, b"caller", "ab", b"c", b"") != prove(KEY, b"caller", "a", b"bc", b"")


def test_a_caller_of_another_process_learns_it_is_not_here() -> None:
    caller, greeter = Caller(KEY, "broker-1"), Greeter(KEY, "broker-2")
    with pytest.raises(HandshakeRefused) as refused:
        greeter.receive_frame(frame(caller.hello()))
    assert refused.value.elsewhere
    with pytest.raises(HandshakeRefused) as told:
        caller.receive_frame(frame(refusal(str(refused.value), elsewhere=True)))
    assert told.value.elsewhere


kinds = st.sampled_from([HELLO, CHALLENGE, PROOF, WELCOME, REFUSED, REQUEST])


@settings(deadline=None)
@given(st.lists(st.tuples(kinds, st.binary(max_size=80)), max_size=6), st.booleans())
def test_no_made_up_greeting_opens_a_door(said: list[tuple[int, bytes]], listening: bool) -> None:
    """Whatever a stranger says: MalformedFrame, HandshakeRefused, or another question; never a door that is open."""
    side: Caller | Greeter = Greeter(KEY, "broker-1") if listening else Caller(KEY, "broker-1")
    for kind, head in said:
        try:
            side.receive_frame(WireFrame(kind, 0, b"", head, []))
        except (MalformedFrame, HandshakeRefused):
            break
    assert not side.done


@settings(deadline=None)
@given(st.lists(kinds, max_size=6))
def test_frames_out_of_turn_open_no_door(order: list[int]) -> None:
    """Well-formed frames of somebody without the key, in any order."""
    greeter = Greeter(KEY, "broker-1")
    stranger = Caller(b"guessed", "broker-1")
    heads = {HELLO: frame(stranger.hello()).head}
    heads[PROOF] = frame(
        stranger.receive_frame(frame(Greeter(b"x", "broker-1").receive_frame(frame(stranger.hello()))))
    ).head
    for kind in order:
        try:
            greeter.receive_frame(WireFrame(kind, 0, b"", heads.get(kind, b""), []))
        except (MalformedFrame, HandshakeRefused):
            break
    assert not greeter.done
