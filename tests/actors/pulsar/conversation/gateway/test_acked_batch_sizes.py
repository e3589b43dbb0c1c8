"""How many messages an id stands for: never more than the client was sent under it."""

from __future__ import annotations

import numpy as np

from sluice.actors.pulsar.conversation.gateway.acked_batch_sizes import AckedBatchSizes, acknowledged_rows

KEY = ("orders", 0, "s")


def remember(pieces: AckedBatchSizes, at: int, count: int) -> None:
    pieces.remember(KEY, np.array([at]), np.array([count]))


def test_an_id_that_nobody_knows_is_its_first_row() -> None:
    pieces = AckedBatchSizes()
    assert pieces.count(KEY, 7, ()) == (1, False)
    assert acknowledged_rows(1, ()).tolist() == [0]


def test_the_last_open_bit_of_an_unknown_id_is_one_of_its_rows() -> None:
    """The bits behind it may be no rows at all: a word has 64 of them."""
    count, sure = AckedBatchSizes().count(KEY, 7, (0b10100,))
    assert not sure
    assert acknowledged_rows(count, (0b10100,)).tolist() == [0, 1, 3]


def test_sent_sizes_are_known_again() -> None:
    pieces = AckedBatchSizes()
    remember(pieces, 7, 5)
    assert pieces.count(KEY, 7, ()) == (5, True)
    assert pieces.count(("orders", 1, "s"), 7, ()) == (1, False)
    assert acknowledged_rows(5, (0b00010,)).tolist() == [0, 2, 3, 4]


def test_shorter_of_two_lengths_counts() -> None:
    """A client that was sent the shorter frame has acknowledged no more than that."""
    pieces = AckedBatchSizes()
    remember(pieces, 7, 2)
    remember(pieces, 7, 5)
    assert pieces.count(KEY, 7, ()) == (2, False)


def test_the_oldest_are_forgotten_first() -> None:
    pieces = AckedBatchSizes(most=2)
    for at in (1, 2, 3):
        remember(pieces, at, 4)
    assert [pieces.count(KEY, at, ()) for at in (1, 2, 3)] == [(1, False), (4, True), (4, True)]


def test_bits_of_a_second_word_count() -> None:
    assert acknowledged_rows(70, (0, 0b100000)).tolist() == [row for row in range(70) if row != 69]
    assert acknowledged_rows(3, (1 << 63 | 1,)).tolist() == [1, 2]
    assert acknowledged_rows(64, (-1,)).tolist() == []
