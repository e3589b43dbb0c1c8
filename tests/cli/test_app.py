"""Every command is there, explains itself, and answers to its help."""

from __future__ import annotations

import pytest
import typer.main

from sluice.cli.app import app
from tests.cli.conftest import Cli

PROMISED = (
    "flood", "up", "down", "status", "watch", "produce", "consume", "chaos", "simulate", "bench", "test", "config show",
    "site", "sql", "nodes drain", "nodes uncordon",
    "topics create", "topics list", "topics stats", "topics delete", "topics accept-loss", "topics partitions",
    "topics add-partitions", "topics terminate", "topics offload", "topics offload-status",
    "topics erase", "topics erase-status",
    "topics compact", "topics compaction-status",
    "subscriptions list", "subscriptions stats", "subscriptions explain", "subscriptions pending",
    "subscriptions blocked-keys", "subscriptions what-if", "subscriptions owner", "subscriptions seek",
    "subscriptions skip", "subscriptions clear-backlog", "subscriptions delete", "subscriptions delayed",
    "subscriptions cancel-delayed", "subscriptions reschedule-delayed", "subscriptions hot-keys",
    "subscriptions parked", "subscriptions redrive", "subscriptions discard",
    "workers list", "workers status", "workers scale", "workers drain", "workers logs",
    "tenants list", "tenants get", "tenants create", "tenants set", "tenants delete",
    "namespaces list", "namespaces create", "namespaces delete", "namespaces get", "namespaces set",
    "namespaces unset",
    "permissions list", "permissions grant", "permissions revoke", "permissions grant-subscription",
    "permissions revoke-subscription",
    "schemas list", "schemas get", "schemas upload", "schemas compatibility", "schemas delete",
    "audit", "tokens create", "tokens create-key",
    "incident export", "incident replay", "subscriptions timeline", "subscriptions waits",
    "inspect ledger", "inspect cursor", "inspect journal", "inspect metadata",
)  # fmt: skip

_HANDS_ON = ("simulate", "test", "bench", "site")
"""These hand --help on."""


def commands() -> list[str]:
    """Every command of the app, groups with a space."""
    root = typer.main.get_command(app)
    found: list[str] = []
    for name, command in vars(root)["commands"].items():
        inner = vars(command).get("commands")
        found += [f"{name} {verb}" for verb in inner] if inner else [name]
    return found


def test_exactly_the_promised_commands() -> None:
    assert sorted(commands()) == sorted(PROMISED)


@pytest.mark.parametrize("command", [name for name in PROMISED if name not in _HANDS_ON])
def test_every_command_explains_itself(cli: Cli, command: str) -> None:
    code, out, err = cli(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert len(out) > 40


@pytest.mark.parametrize("group", ["", "topics", "subscriptions", "workers", "inspect", "config", "tenants", "schemas"])
def test_a_group_alone_shows_its_verbs(cli: Cli, group: str) -> None:
    code, out, err = cli(*group.split())
    assert code == 2
    assert "Usage" in out + err


def test_version(cli: Cli) -> None:
    assert cli("--version")[1].startswith("sluice ")
