"""`sluice nodes`: what it asks of the cluster while it waits, and when somebody changes their mind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Cli, FakeClient

TOLD: dict[str, Any] = {
    "node": "0123abcd", "address": "10.0.0.2", "owners": 2, "gateways": 0, "fragments": 0, "done": False,
    "problem": "", "drained": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cli.nodes.LOOK_S", 0)


def asked(client: FakeClient) -> list[str]:
    """Return what was asked of the cluster, without the connection."""
    return [call[0] for call in client.calls[1:]]


def test_a_waiting_drain_only_asks_for_its_state(cli: Cli, client: FakeClient) -> None:
    client.answers |= {"drain_node": TOLD, "drain_status": TOLD | {"owners": 0, "done": True}}
    code, _, errors = cli("nodes", "drain", "10.0.0.2", "--keep-ledgers")
    assert (code, asked(client)) == (0, ["drain_node", "drain_status"])
    assert "still on 10.0.0.2: 2 owners" in errors
    assert "10.0.0.2 is drained" in errors


def test_a_node_that_is_used_again_is_not_drained(cli: Cli, client: FakeClient) -> None:
    client.answers |= {"drain_node": TOLD, "drain_status": TOLD | {"drained": False}}
    code, _, errors = cli("nodes", "drain", "10.0.0.2")
    assert (code, asked(client)) == (2, ["drain_node", "drain_status"])
    assert "somebody lets it be used again" in errors


def test_an_interrupted_drain_lets_the_node_be_used(cli: Cli, client: FakeClient) -> None:
    """The drain may have begun even if the command was interrupted before the first answer."""
    client.answers |= {"drain_node": KeyboardInterrupt(), "uncordon_node": TOLD | {"drained": False}}
    code, _, errors = cli("nodes", "drain", "10.0.0.2")
    assert (code, asked(client)) == (130, ["drain_node", "uncordon_node"])
    assert "10.0.0.2 is used again" in errors
