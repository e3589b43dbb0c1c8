"""A snapshot that names the modules of an earlier version is read."""

from __future__ import annotations

import sys

import pytest

from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.key_shared.state import given_back, tables, window
from tests.actors.key_shared.driver import Driver

EARLIER = {
    window.PositionTable: "position_table",
    given_back.CarriedRedeliveries: "carried_redeliveries",
    given_back.Delays: "delays",
    tables.HashGroups: "hash_groups",
}


def test_classes_are_found_that_have_moved_since(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    driver.join("a")
    driver.send("k1", "k2")
    with monkeypatch.context() as earlier:
        for kind, name in EARLIER.items():
            module = f"sluice.actors.key_shared.state.{name}"
            earlier.setitem(sys.modules, module, sys.modules[kind.__module__])
            earlier.setattr(kind, "__module__", module)
        written = driver.dispatch.snapshot()
    named = [name for name in EARLIER.values() if f"state.{name}".encode() in written]
    assert set(named) >= {"carried_redeliveries", "delays", "hash_groups"}
    assert KeySharedDispatcher.restored(written).idle() == driver.dispatch.idle()
