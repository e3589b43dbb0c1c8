"""The commands of `sluice` and their order in the help. Kept free of everything that is slow to import.

With `--install-completion` bash and zsh complete commands and options at the tab key. The file that a shell reads first
leads to a script, which calls the very command that was typed: a clone's `./sluice` is on no path. Typer answers what
the script asks.
"""

from __future__ import annotations

import os
from pathlib import Path
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
from sluice.cluster.base.version import COMMAND

ASKED = "_SLUICE_COMPLETE"
"""The variable by which a script asks; the shell script `sluice` knows it too."""

SCRIPTS = {
    "bash": r"""_sluice() {
    local IFS=$'\n'
    COMPREPLY=($(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _SLUICE_COMPLETE=complete_bash \
        "${COMP_WORDS[0]/#~\//$HOME/}" 2>/dev/null))
}
complete -o default -F _sluice sluice
""",
    "zsh": r"""(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_sluice() {
    eval "$(_TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _SLUICE_COMPLETE=complete_zsh ${~words[1]} 2>/dev/null)"
}
compdef _sluice sluice
""",
}

_START, _SHARE, _USE, _PROVE = "Start and stop", "Share a cluster", "Topics and messages", "Prove it"

app = typer.Typer(
    name="sluice",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Sluice: a message broker that keeps the order of each key, on Ray or in one process. "
    f"Try `{COMMAND} flood`, or `{COMMAND} up`, then `produce` and `consume`. "
    "Exit codes: 0 fine, 1 a promise was broken or Sluice itself failed, 2 the call was wrong or nobody answered, "
    "130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from sluice.cluster.base.version import described

        print(described())
        raise typer.Exit


def answer_shell() -> None:
    """Prepare the answer to a script, if one asks."""
    if ASKED in os.environ:
        from typer import completion

        completion.completion_init()  # type: ignore[attr-defined]


def _install_completion(wanted: bool) -> None:
    """Callback of the option: write the script of the shell that called, and end. Raises BadParameter for another."""
    if not wanted:
        return
    shell = _calling_shell()
    script = Path.home() / ".local" / "share" / "sluice" / f"completion.{shell}"
    begun = Path.home() / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc"
    line = f"source '{script}'"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPTS[shell])
    before = begun.read_text() if begun.exists() else ""
    if line not in before.splitlines():
        with begun.open("a") as file:
            file.write(f"{'' if not before or before.endswith(chr(10)) else chr(10)}{line}\n")
    print(f"{shell} completes commands of sluice from its next start on: {begun} has the line {line}")
    raise typer.Exit


def _calling_shell() -> str:
    """The shell among the processes that called this one, else the person's own."""
    from sluice.cluster.base.callers import callers

    for name in (*callers(), Path(os.environ.get("SHELL", "")).name):
        if name in SCRIPTS:
            return name
    raise typer.BadParameter("completion is for bash and zsh; call it from one of these")


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit.")
    ] = False,
    __: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            callback=_install_completion,
            is_eager=True,
            help="Let bash or zsh complete commands and options at the tab key.",
        ),
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
app.command(rich_help_panel=_PROVE, context_settings=checkout.PASS_ON)(checkout.site)
