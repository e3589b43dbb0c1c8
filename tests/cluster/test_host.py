"""A host that Ray has restarted gets itself going, although the first calls may fail."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnavailableError

from cluster import host


class Handle:
    """An actor's handle whose first calls fail, as while Ray takes the actor for restarting."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.calls = 0
        self.wake = self

    def remote(self) -> str:
        self.calls += 1
        return "ref"

    def get(self, ref: str) -> None:
        """What ray.get does with the reference."""
        assert ref == "ref"
        if self.left:
            self.left -= 1
            raise ActorUnavailableError("the actor is restarting", None)


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_it_knocks_until_it_is_awake(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """Each failed call is followed by another; after the one that works there is no more."""
    handle: Any = Handle(failures)
    monkeypatch.setattr(ray, "get", handle.get)
    monkeypatch.setattr(host, "KNOCK_S", 0)
    host.knock(handle)
    assert handle.calls == failures + 1
