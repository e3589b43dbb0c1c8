"""Ends a process when its Ray node was given up.

If a raylet hangs, Ray gives its node up after a while and starts the controller again elsewhere. But the processes of
that node live on: no new caller finds them, and connected callers are served as before. The old controller would answer
for ever where each actor was, bookies would keep the locks of their disks, and owners would be in service beside those
that take their place. When the raylet goes on it ends them all; so each of them ends itself at once.

Ray answers without the raylet whether a node was given up.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial

import ray
from ray.exceptions import RayError

LOOK_S = 2.0
"""Seconds between two looks at the own node."""


def watch_own_node() -> None:
    """End this process, from now on, when Ray gives its node up. In a thread: its event loop may hang as well."""
    watched = own_node(), partial(os._exit, 1)
    threading.Thread(target=end_with_node, args=watched, name="own-node", daemon=True).start()


def end_with_node(node: str, end: Callable[[], object], look_s: float = LOOK_S) -> None:
    """Wait until Ray counts this node as dead, and `end` what runs there."""
    while True:
        time.sleep(look_s)
        with contextlib.suppress(RayError, ConnectionError, RuntimeError):
            if is_dead(node):
                end()
                return


def own_node() -> str:
    """The id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def is_dead(node: str) -> bool:
    """Whether Ray has given up a node, by its id. One that it does not know, or not yet, is not dead."""
    return any(row["NodeID"] == node and not row["Alive"] for row in ray.nodes())
