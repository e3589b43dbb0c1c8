"""How many descriptors this process may open, and how much of that each use of them may take.

What strangers open must not take those that bookies need for their files: a bookie that cannot list its folder ends. So
connections of clients and shared payloads have a share each, and the rest is the process's own.
"""

from __future__ import annotations

import contextlib
import resource

PAYLOADS = 0.2
CLIENTS = 0.25
HTTP = 0.1
"""Shares of what the process may open: payloads that are shared between processes; connections of Pulsar's clients, and
as many at their handshake; connections with each of its two web servers, the gateway's and the administrator's.
"""


def raise_limit() -> None:
    """Let this process open as many descriptors as it may. Only for processes that are Sluice's own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def at_most(wanted: int, share: float) -> int:
    """Return how many of the wanted descriptors may be open for a use that has this share of the limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if allowed < 0 else min(wanted, int(allowed * share))
