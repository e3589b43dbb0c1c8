"""Who has the view of a subscription when its dispatchers overtake each other."""

from __future__ import annotations

import numpy as np

from actors.delayed.shared import SharedIndex, SharedView
from storage.position import position


def due_at(index: SharedIndex, view: SharedView, entry: int) -> None:
    place = np.array([position(1, entry)], np.int64)
    assert view.add(place, place.astype(np.uint32), np.array([100]), 0).all()


def test_an_owner_that_was_overtaken_takes_no_view_away() -> None:
    index = SharedIndex()
    now = index.view("one", lambda: None, epoch=3)
    due_at(index, now, 1)
    late = index.view("one", lambda: None, epoch=2)
    assert late.take(10, 100)[0].size == 0
    assert now.take(10, 100)[0].tolist() == [position(1, 1)]
    index.leave("one", 2)
    due_at(index, now, 2)
    assert now.take(10, 100)[0].tolist() == [position(1, 2)]


def test_an_owner_that_is_gone_holds_no_view() -> None:
    index = SharedIndex()
    gone = index.view("one", lambda: None, epoch=3)
    index.leave("one", gone.epoch)
    assert not index.views
    again = index.view("one", lambda: None, epoch=1)
    due_at(index, again, 1)
    assert again.take(10, 100)[0].tolist() == [position(1, 1)]
