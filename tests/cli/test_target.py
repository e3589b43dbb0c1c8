"""Commands are given their topic, subscription and cluster as one target."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from sluice.cli.target import Target, takes


def test_a_command_gets_what_it_takes_as_one_object() -> None:
    got: list[tuple[Target, int]] = []
    made = typer.Typer()

    @made.command()
    @takes("topic", "json")
    def show(target: Target, top: int = 3) -> None:
        got.append((target, top))

    given = ["orders", "--top", "5", "--json", "--data-dir", "here"]
    assert CliRunner().invoke(made, given).exit_code == 0
    assert got == [(Target("orders", json=True, data_dir=Path("here")), 5)]
    assert CliRunner().invoke(made, ["orders", "billing"]).exit_code == 2
