"""A dispatcher remembers what is open and nothing else, at every moment and not only at rest."""

from __future__ import annotations

import numpy as np

from sluice.actors.delayed.shared import SharedView
from sluice.actors.dispatcher import Dispatcher
from sluice.storage.format.position import show
from tests.sim.world import World

EVERY_MS = 100


async def watch_bounds(world: World) -> None:
    """Look at every dispatcher now and then, for as long as the world lives."""
    while True:
        await world.loop.pause(EVERY_MS)
        for name in world.alive("dispatcher-"):
            actor = world.process(name).actor
            if isinstance(actor, Dispatcher) and actor.serves:
                _check(name, actor)
                if not actor.ended():
                    _check_view(name, actor)
                    _check_open(name, actor)


def _check(name: str, dispatcher: Dispatcher) -> None:
    """Every run that is kept has a message that is not acknowledged, wherever that message waits just now.

    It may be in the window, delayed, or in a part of the delayed index that was lost and has to be read again.
    """
    runs, cursor = dispatcher.parts.context.runs, dispatcher.parts.context.state.cursor
    for home in range(runs._head, runs._end):
        last = int(runs._lasts[home])
        done = runs._runs[home] is not None and cursor.next_unacknowledged(int(runs._firsts[home])) > last
        assert not done, f"L3: {name} keeps a run up to {last} of which everything is acknowledged"


def _check_view(name: str, dispatcher: Dispatcher) -> None:
    """A dispatcher with a view of the shared delayed index is given what falls due there."""
    view = dispatcher.parts.context.tracker._inner
    if isinstance(view, SharedView) and dispatcher.parts.deletion._outcome is None:
        there = view._index.views.get(dispatcher.ports.me)
        assert there is view, f"L3: {name} serves without its view of the shared delayed index"


def _check_open(name: str, dispatcher: Dispatcher) -> None:
    """Each open message up to where the log was read is in the window or delayed, or is to be read again."""
    parts = dispatcher.parts
    context, reader = parts.context, parts.reader
    cursor, tracker, core = context.state.cursor, context.tracker, context.core._core
    at = cursor.next_unacknowledged(cursor.mark_delete + 1)
    while at <= reader.end and at < reader.position:
        place = np.array([at], np.int64)
        known = bool(tracker.contains(place)[0]) or any(t.find(place).size for t in (core.window, core.parked.table))
        assert known or reader.reads_again(at), f"L3: {name} knows {show(at)} in none of its tables"
        at = cursor.next_unacknowledged(at + 1)
