"""`sluice workers`: what it asks of the cluster, and what it shows."""

from __future__ import annotations

import json
import time
from typing import Any

from sluice.actors.messages import DescribePools, DrainPool, ScalePool, Text
from sluice.storage.errors import NotFound
from tests.cli.conftest import Cli, FakeClient

STATUS: dict[str, Any] = {
    "workers": {"billing-0": "running", "billing-1": "starting"},
    "where": {"billing-0": "17 on 127.0.0.1"},
    "versions": {"billing-0": "one", "billing-1": "one"},
    "handled": 12,
    "failures": {"key-1": "Traceback\nValueError: never"},
    "reason": "Ray cannot place one more worker: GPU: 1 wanted, 0 free",
    "events": [[1_700_000_000_000, "billing-1 died: killed"]],
}


def pool(**more: Any) -> Text:
    """The answer of the controller."""
    row = {
        "name": "billing", "topic": "orders", "subscription": "s", "kind": "detached", "version": "one", "epoch": 3,
        "min_workers": 2, "max_workers": 4, "draining": False, "reported_at": round(time.time() * 1000),
        "status": STATUS,
    }  # fmt: skip
    return Text(json=json.dumps([row | more]))


def asked(client: FakeClient) -> list[Any]:
    return [call[1] for call in client.calls if call[0] == "ask_controller"]


def test_pools_are_listed(cli: Cli, client: FakeClient) -> None:
    client.answers["ask_controller"] = pool()
    code, out, _ = cli("workers", "list")
    assert code == 0
    for word in ("billing", "orders", "2 of 2 to 4", "running", "GPU: 1 wanted"):
        assert word in out
    assert json.loads(cli("workers", "list", "--json")[1])[0]["status"] == STATUS
    client.answers["ask_controller"] = pool(reported_at=0)
    assert "no keeper reports" in cli("workers", "list")[1]


def test_a_pool_is_shown_with_what_failed(cli: Cli, client: FakeClient) -> None:
    client.answers["ask_controller"] = pool()
    code, out, _ = cli("workers", "status", "billing")
    assert code == 0
    for word in ("17 on 127.0.0.1", "ValueError: never", "billing-1 died: killed"):
        assert word in out
    client.answers["ask_controller"] = NotFound("there is no pool of workers 'x'")
    assert cli("workers", "status", "x")[0] == 2


def test_a_pool_that_gave_up_is_shown_with_the_reason(cli: Cli, client: FakeClient) -> None:
    why = "a message failed 6 times: Traceback\n  line 7\nValueError: never"
    client.answers["ask_controller"] = pool(status={}, stopped=why, reported_at=0)
    listed = cli("workers", "list")[1]
    assert "stopped" in listed
    assert "ValueError: never" in listed
    assert "line 7" not in listed
    assert "line 7" in cli("workers", "status", "billing")[1]


def test_a_pool_is_scaled(cli: Cli, client: FakeClient) -> None:
    assert cli("workers", "scale", "billing", "3")[0] == 0
    assert cli("workers", "scale", "billing", "3", "9")[0] == 0
    first, second = asked(client)
    assert first == ScalePool(name="billing", min_workers=3, max_workers=3)
    assert second == ScalePool(name="billing", min_workers=3, max_workers=9)


def test_a_pool_that_is_started_again_is_not_waited_for(cli: Cli, client: FakeClient) -> None:
    """The pool ended between two looks, or was to go on: nobody wishes its end now."""
    client.answers["ask_controller"] = pool(draining=False)
    code, _, errors = cli("workers", "drain", "billing")
    assert code == 2
    assert [type(one).__name__ for one in asked(client)] == ["DrainPool", "DescribePools"]
    assert "somebody has started it again" in errors


def test_a_name_that_nobody_keeps_is_forgotten(cli: Cli, client: FakeClient) -> None:
    assert cli("workers", "drain", "billing", "--forget")[0] == 0
    assert asked(client) == [DrainPool(name="billing", forget=True)]


def test_the_last_lines_of_workers_are_shown(cli: Cli, client: FakeClient) -> None:
    client.answers["ask_controller"] = pool(tails={"billing-0": "hello\nworld\n"})
    code, out, _ = cli("workers", "logs", "billing")
    assert code == 0
    assert "billing-0: world" in out
    assert "billing-1 died: killed" in out
    assert asked(client) == [DescribePools(name="billing", tails=True)]


def test_parked_keys_have_the_traceback_of_their_handler(cli: Cli, client: FakeClient) -> None:
    client.answers["ask_controller"] = pool()
    client.answers["admin"] = [{"keys": [{"key": "key-1"}, {"key": "key-2"}], "alarm": ""}]
    [answer] = json.loads(cli("subscriptions", "parked", "orders", "s", "--json")[1])
    assert answer["keys"] == [{"key": "key-1", "traceback": "Traceback\nValueError: never"}, {"key": "key-2"}]
