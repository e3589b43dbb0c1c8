"""The parts that a host's process gets from its maker."""

from __future__ import annotations

import pickle

from sluice.cluster.launch.build import SluiceParts


def test_parts_of_another_version_begin_anew() -> None:
    """An older controller, whose object has other attributes, makes a host on a machine with this version."""
    older = SluiceParts()
    vars(older).clear()
    vars(older)["_of_the_older_version"] = 1
    made = pickle.loads(pickle.dumps(older))
    assert vars(made).keys() == vars(SluiceParts()).keys()
