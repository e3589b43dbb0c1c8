"""By which address a process attaches itself to a Ray cluster."""

from __future__ import annotations

from importlib import import_module

import pytest

from sluice.cluster.launch.attach import choose_own, keep_ray_off_stdout, own_addresses


def test_a_node_of_this_machine_is_chosen() -> None:
    """Not the first that answers, which is another machine; and those elsewhere have a loopback as well."""
    assert choose_own(["192.0.2.1", "192.0.2.2"], {"127.0.0.1", "192.0.2.2"}) == "192.0.2.2"
    assert choose_own(["127.0.0.1", "192.0.2.2"], {"127.0.0.1", "192.0.2.2"}) == "192.0.2.2"
    assert choose_own(["127.0.0.1", "127.0.0.1"], {"127.0.0.1", "192.0.2.2"}) == "127.0.0.1"
    assert choose_own(["192.0.2.1"], {"127.0.0.1", "192.0.2.2"}) is None
    assert choose_own([], {"127.0.0.1"}) is None


def test_every_machine_has_the_loopback() -> None:
    assert "127.0.0.1" in own_addresses()


def test_ray_says_nothing_between_the_lines_of_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray's lines on a lost node came between the JSON of `./sluice status --json`."""
    worker = import_module("ray._private.worker")
    monkeypatch.setattr(worker, "_worker_logs_enabled", True)

    def says(line: str) -> str:
        # As the thread does that every process has which is attached to Ray.
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
        return capsys.readouterr().out

    assert "node 1 is lost" in says("node 1 is lost")
    keep_ray_off_stdout()
    assert says("node 2 is lost") == ""
