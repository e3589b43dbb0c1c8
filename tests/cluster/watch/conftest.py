"""Ports of an actor that talks to nobody."""

from __future__ import annotations

import pytest

from sluice.actors.ports import Ports
from tests.cluster.helpers import admin_ports


@pytest.fixture
def ports() -> Ports:
    """The real clock and tasks, and nothing else."""
    return admin_ports()
