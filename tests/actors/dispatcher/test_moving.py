"""Where a skip of so many messages ends."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actors.dispatcher.moving import behind
from actors.messages import Ends
from storage.cursor import Cursor
from storage.position import position


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.sets(st.integers(0, 23)),
    st.integers(1, 30),
)
def test_a_skip_counts_messages_that_are_not_done_over_ledger_ends(
    counts: list[int], done: set[int], messages: int
) -> None:
    """Whatever the ledgers hold (also nothing) and whatever is acknowledged: exactly so many, or all there are."""
    every = [position(ledger * 2 + 1, entry) for ledger, count in enumerate(counts) for entry in range(count)]
    chain: list[tuple[int, int | None]] = [(ledger * 2 + 1, count - 1) for ledger, count in enumerate(counts)]
    chain[-1] = (chain[-1][0], None)
    cursor = Cursor()
    cursor.chain(chain, complete=True)
    acknowledged = [every[index] for index in sorted(done) if index < len(every)]
    cursor.acknowledge(np.array(acknowledged, np.int64))
    end = position(chain[-1][0], counts[-1])
    ends = Ends(first=position(1, 0), last=every[-1] if every else -1, next=end, ledgers=chain)
    target = behind(cursor, ends, messages)
    open_ones = [at for at in every if at not in set(acknowledged)]
    assert len([at for at in open_ones if at < target]) == min(messages, len(open_ones))
    assert target <= end or not every
