"""The commands of `sluice` and their order in the help. Kept free of everything that is slow to import."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli import (
    auditing,
    checkout,
    delayed,
    incidents,
    inspection,
    load,
    messages,
    nodes,
    parked,
    running,
    schemas,
    sql,
    subscriptions,
    tenancy,
    tokens,
    topics,
    watching,
    workers,
)

_START, _SHARE, _USE, _PROVE = "Start and stop", "Share a cluster", "Topics and messages", "Prove it"

app = typer.Typer(
    name="sluice",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Sluice: a message broker that keeps the order of each key, on Ray or in one process. "
    "Try `./sluice flood`, or `./sluice up`, then `produce` and `consume`. "
    "Exit codes: 0 fine, 1 a promise was broken or Sluice itself failed, 2 the call was wrong or nobody answered, "
    "130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from sluice.cluster.base.version import described

        print(described())
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit.")
    ] = False,
) -> None:
    pass


app.command(rich_help_panel=_PROVE)(load.flood)
app.command(rich_help_panel=_START)(running.up)
app.command(rich_help_panel=_START)(running.down)
app.command(rich_help_panel=_START)(running.status)
app.command(rich_help_panel=_START)(watching.watch)
app.add_typer(nodes.app, name="nodes", rich_help_panel=_START)
app.command(rich_help_panel=_START)(auditing.audit)
app.add_typer(tokens.app, name="tokens", rich_help_panel=_START)
app.add_typer(tenancy.tenants, name="tenants", rich_help_panel=_SHARE)
app.add_typer(tenancy.namespaces, name="namespaces", rich_help_panel=_SHARE)
app.add_typer(tenancy.permissions, name="permissions", rich_help_panel=_SHARE)
app.add_typer(running.config_app, name="config", rich_help_panel=_START)
app.add_typer(topics.app, name="topics", rich_help_panel=_USE)
subscriptions.app.command("cancel-delayed")(delayed.cancel_delayed)
subscriptions.app.command("reschedule-delayed")(delayed.reschedule_delayed)
subscriptions.app.command()(incidents.timeline)
subscriptions.app.command()(incidents.waits)
subscriptions.app.command()(parked.parked)
subscriptions.app.command()(parked.redrive)
subscriptions.app.command()(parked.discard)
app.add_typer(subscriptions.app, name="subscriptions", rich_help_panel=_USE)
app.add_typer(schemas.app, name="schemas", rich_help_panel=_USE)
app.add_typer(workers.app, name="workers", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(messages.produce)
app.command(rich_help_panel=_USE)(messages.consume)
app.command(rich_help_panel=_USE)(sql.sql)
app.add_typer(inspection.app, name="inspect", rich_help_panel=_USE)
app.command(rich_help_panel=_PROVE)(load.chaos)
app.add_typer(incidents.app, name="incident", rich_help_panel=_PROVE)
app.command(rich_help_panel=_PROVE, context_settings=checkout.PASS_ON)(checkout.simulate)
app.command(rich_help_panel=_PROVE, context_settings=checkout.PASS_ON)(checkout.bench)
app.command(rich_help_panel=_PROVE, context_settings=checkout.PASS_ON)(checkout.test)
