"""Stretches of SENDs in a read: frame by frame and by columns they are the same."""

from __future__ import annotations

import random

import pytest

from sluice.actors.pulsar.codec.frames import PAD, Cut
from sluice.actors.pulsar.codec.send_decoder import PIECE_BYTES
from sluice.actors.pulsar.codec.vectorized_decoder import SEND_COMMAND
from sluice.actors.pulsar.conversation.consuming.reading_ahead import (
    FEW_FRAMES,
    Reading,
    _short_stretches,
    _stretches,
)

PING_COMMAND = b"\x08\x12"


def cut_of(frames: list[bytes]) -> Cut:
    """A read of frames with these bytes behind their two lengths."""
    starts, data = [], b""
    for frame in frames:
        starts.append(len(data))
        data += bytes(8) + frame
    return Cut(data + bytes(PAD), starts, len(data))


@pytest.mark.parametrize("seed", range(50))
def test_either_way_finds_the_same_stretches(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [SEND_COMMAND + b"x", SEND_COMMAND, PING_COMMAND, b"\x08", b"", SEND_COMMAND + bytes(PIECE_BYTES)]
    cut = cut_of(rng.choices(kinds, (8, 4, 4, 1, 1, 0.2), k=rng.randrange(FEW_FRAMES)))
    assert _short_stretches(cut) == _stretches(cut)


def test_stretch_ends_at_the_number_that_is_wanted_at_once() -> None:
    reading = Reading(cut_of([PING_COMMAND, *[SEND_COMMAND] * 5, PING_COMMAND]))
    assert reading.sends_from_here(1, 10, 10) == 0
    reading.at = 1
    assert reading.sends_from_here(1, 3, 10) == 4
    reading.at = 4
    assert reading.sends_from_here(10, 3, 1) == 5
