"""A process ends with its node, and with no other."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.cluster.node.own_node import end_with_node


def test_a_process_ends_when_its_own_node_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when Ray cannot be asked, or knows nothing of the node."""
    answers: list[Any] = [
        ConnectionError(),
        [],
        [{"NodeID": "here", "Alive": True}, {"NodeID": "there", "Alive": False}],
        [{"NodeID": "here", "Alive": False}],
    ]

    def nodes() -> list[dict[str, Any]]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return list(found)

    monkeypatch.setattr("ray.nodes", nodes)
    ended: list[int] = []
    end_with_node("here", lambda: ended.append(len(answers)), look_s=0)
    assert ended == [0]
