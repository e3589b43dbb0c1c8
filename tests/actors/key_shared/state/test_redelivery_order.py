"""The sentinel's records of the stronger promise agree with a bag that is kept message by message."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sluice.actors.key_shared.state.redelivery_order import Repeated
from sluice.storage.format.position import run_positions


@pytest.mark.parametrize("ledgers", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_messages_out_are_those_sent_and_not_given_back(seed: int, ledgers: int) -> None:
    rng = np.random.default_rng(seed)
    every = np.concatenate([run_positions(1 + 7 * ledger, 0, 400) for ledger in range(ledgers)])
    hashes = rng.integers(1, 9, len(every)).astype(np.uint16)
    books, out, next_one = Repeated(), Counter[int](), 0
    for _ in range(60):
        count = int(rng.integers(0, 30))
        rows = np.arange(next_one, min(next_one + count, len(every)))
        next_one = min(next_one + count, len(every))
        placed = None if rng.random() < 0.5 else rng.random(len(rows)) < 0.9
        assert not books.sent(hashes[rows], every[rows], placed).any()
        books.note_sent(hashes[rows], every[rows], placed)
        out.update(rows.tolist())
        held = np.array(sorted(row for row, number in out.items() if number > 0), np.int64)
        # The first message stays out for ever, far behind all others in the end.
        back = held[(rng.random(len(held)) < 0.6) & (held > 0)]
        books.given_back(hashes[back], every[back], again=False)
        out.subtract(back.tolist())
        if rng.random() < 0.5:
            books._count()
            left = np.array(sorted(row for row, number in out.items() if number > 0), np.int64)
            assert books._out.tolist() == every[left].tolist()
            assert books._hashes.tolist() == hashes[left].tolist()


@pytest.mark.parametrize("both", [False, True])
def test_a_later_one_that_is_out_is_found_after_many_changes(both: bool) -> None:
    books = Repeated()
    one = np.array([3], np.uint16)
    for start in range(0, 400_000, 10_000):
        positions = run_positions(1, start, 10_000)
        many = np.full(10_000, 5, np.uint16)
        assert not books.sent(many, positions, None).any()
        books.note_sent(many, positions, None)
        books.given_back(many, positions, again=False)
    assert books._gathered < 300_000, "what is done is not remembered for ever"
    low, high = run_positions(2, 0, 1), run_positions(2, 9, 1)
    for position in (low, high):
        assert not books.sent(one, position, None).any()
        books.note_sent(one, position, None)
    books.given_back(one, low, again=True)
    if both:
        books.given_back(one, high, again=True)
    assert books.sent(one, low, None).any() != both, "a later message of the hash is out"
