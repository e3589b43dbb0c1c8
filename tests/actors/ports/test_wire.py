"""Messages survive the wire, big parts beside the head; what is damaged is Invalid and nothing else."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.messages import Delivery, Heartbeat, Part, Poll, Publish, RunRead
from sluice.actors.ports.wire import INLINE, Blob, owned, pack, pack_error, unpack, unpack_error
from sluice.actors.runtime.host import REQUESTS
from sluice.storage.errors import WIRE_ERRORS, Fenced, Invalid, SluiceError


def test_small_columns_travel_inside_and_big_ones_beside() -> None:
    """No attachment below the limit, one above it, and the same values either way."""
    for count, attachments in ((INLINE // 8, 0), (INLINE // 8 + 1, 1)):
        packed = pack(Poll(session=1, turn=2, granted=3, acks=np.arange(count)))
        assert len(packed.attachments) == attachments
        back = unpack(Poll, packed.head, packed.attachments, packed.handles)
        assert back.acks.tolist() == list(range(count))
        assert (back.session, back.turn, back.granted) == (1, 2, 3)


def test_a_shared_payload_travels_by_its_handle() -> None:
    """The bytes stay where they are."""
    shared = Blob(b"x" * 100_000, handle="a handle")
    part = Part(
        ledger=1, first_entry=0, count=9, delayed=False, shape=0, crc=5, dispatch=7,
        rows=np.arange(3, dtype=np.uint32), blob=shared,
    )  # fmt: skip
    packed = pack(Delivery(turn=1, parts=[part]))
    assert packed.size < 1000
    back = unpack(Delivery, packed.head, packed.attachments, packed.handles).parts[0]
    assert back.blob is not None
    assert (back.blob.handle, back.blob.size, back.blob.data) == ("a handle", 100_000, None)
    assert back.rows.dtype == np.uint32


@given(st.sampled_from(sorted(REQUESTS)), st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_a_message_or_invalid(name: str, head: bytes) -> None:
    """Nothing else comes out of the decoder."""
    with contextlib.suppress(Invalid):
        unpack(REQUESTS[name], head, [], [])


def test_a_truncated_message_is_invalid() -> None:
    """Every cut of a real message."""
    packed = pack(
        Publish(
            producer="p", session=1, first_sequence=0, count=1, delayed=False, shape=0, crc=0,
            payload=Blob(b"abc"),
        )
    )  # fmt: skip
    for end in range(len(packed.head)):
        with pytest.raises(Invalid):
            unpack(Publish, packed.head[:end], [], [])


def test_errors_keep_their_class_and_their_words() -> None:
    """A peer's refusal arrives as the same error."""
    for kind in WIRE_ERRORS.values():
        back = unpack_error(*pack_error(kind("why")))
        assert type(back) is kind
        assert str(back) == "why"
    assert isinstance(unpack_error("Unheard", "of"), SluiceError)

    class Special(Fenced):
        """A subclass travels as its base."""

    assert pack_error(Special("x"))[0] == "Fenced"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Heartbeat(owners=[], sessions=[1 << 64]), "a number in it has more than 64 bits"),
        (Heartbeat(owners=[], sessions=[-(1 << 63) - 1]), "a number in it has more than 64 bits"),
        (Heartbeat(owners=["x" * 60 + chr(0xD800)], sessions=[]), "is no text that UTF-8 has"),
    ],
)
def test_a_value_that_cannot_travel_is_the_callers(asked: Heartbeat, why: str) -> None:
    """A caller sees Invalid, and no error of the encoder."""
    with pytest.raises(Invalid, match=f"Heartbeat cannot be sent: .*{why}") as refused:
        pack(asked)
    assert len(str(refused.value)) < 150


def test_payload_of_this_process_is_copied_if_it_is_a_small_part() -> None:
    frame = bytes(9_000)
    nearly_all, part = memoryview(frame)[900:], memoryview(frame)[1_200:]
    assert owned(nearly_all) is nearly_all
    assert owned(part).obj is not frame
    elsewhere = memoryview(bytearray(frame))
    assert owned(elsewhere).obj is not elsewhere.obj


def test_payload_that_passed_the_codec_here_is_not_copied() -> None:
    stored = bytes(9_000)
    packed = pack(RunRead(head=b"h", payload=Blob(memoryview(stored)[200:]))).copied()
    read = unpack(RunRead, packed.head, packed.attachments, packed.handles)
    assert read.payload is not None
    assert read.payload.data is not None
    assert read.payload.data == memoryview(stored)[200:]
    assert owned(read.payload.data).obj is stored
