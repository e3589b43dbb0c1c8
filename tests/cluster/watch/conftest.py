"""Ports of an actor that talks to nobody."""

from __future__ import annotations

import pytest

from actors.ports import Ports
from cluster.real import RealClock, StructuredLog, Tasks, make_rng


@pytest.fixture
def ports() -> Ports:
    """The real clock and tasks, and nothing else."""
    return Ports(
        me="host/admin",
        clock=RealClock(),
        net=None,  # type: ignore[arg-type]
        objects=None,  # type: ignore[arg-type]
        meta=None,  # type: ignore[arg-type]
        rng=make_rng(),
        spawn=Tasks("admin"),
        log=StructuredLog("admin"),
    )
