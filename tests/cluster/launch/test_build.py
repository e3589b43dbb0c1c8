"""The parts that a host's process gets from its maker."""

from __future__ import annotations

import pickle
import pickletools

import pytest

from sluice.cluster.launch.build import SluiceParts


def test_packed_parts_name_no_class_but_their_own() -> None:
    """A controller makes a host on a machine whose version has other modules."""
    words = [word for _, word, _ in pickletools.genops(pickle.dumps(SluiceParts())) if isinstance(word, str)]
    assert [word for word in words if word.startswith("sluice.")] == [SluiceParts.__module__]


def test_parts_of_another_version_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older controller, whose object has other attributes and sends them, makes a host with this version."""
    monkeypatch.delattr(SluiceParts, "__getstate__")
    older = SluiceParts()
    vars(older).clear()
    vars(older)["_of_the_older_version"] = 1
    made = pickle.loads(pickle.dumps(older))
    assert vars(made).keys() == vars(SluiceParts()).keys()
