"""A dispatcher remembers what is open and nothing else, at every moment and not only at rest."""

from __future__ import annotations

from sluice.actors.delayed.shared import SharedView
from sluice.actors.dispatcher import Dispatcher
from tests.sim.world import World

EVERY_MS = 100
LOOK_MS = 1_000
"""So often a dispatcher looks whether its tables know each open message."""


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
                    actor.parts.open_positions.search(LOOK_MS)


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
