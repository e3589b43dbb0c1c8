"""`sluice subscriptions parked`, `redrive` and `discard`: keys that wait because a message of theirs failed."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

from sluice.cli.options import (
    DryRunOption,
    KeyOption,
)
from sluice.cli.output import say, show, show_json
from sluice.cli.subscriptions import TopOption, message_id_of
from sluice.cli.target import Target, takes
from sluice.storage.errors import Invalid, SluiceError

All = Annotated[bool, typer.Option("--all", help="Every key that is parked or blocked.")]
Failed = Annotated[
    str | None,
    typer.Option("--message-id", help="LEDGER:ENTRY:PARTITION of the message that failed, as `parked` shows it."),
]
OnlyFailed = Annotated[
    bool, typer.Option("--only-failed", help="Discard the failed message alone; messages parked behind it go out.")
]


@takes("topic", "subscription", "json")
def parked(target: Target, top: TopOption = 100) -> None:
    """List the keys that are parked or blocked, in the order in which they failed; and why, if a pool says so."""
    _show_parked(target, top)


def _show_parked(target: Target, top: int) -> None:
    from sluice.cluster.workers.registry import tracebacks

    with target.join() as client:
        answers: list[dict[str, Any]] = client.admin(target.topic, target.subscription, "parked", top=top)
        known: dict[str, str] = {}
        with suppress(SluiceError):  # the keys are what was asked for
            known = tracebacks(client, target.topic, target.subscription)
    for row in (row for answer in answers for row in answer.get("keys", ())):
        if row.get("key") in known:
            row["traceback"] = known[row["key"]]
    if target.json:
        show_json(answers)
        return
    show([{"partition": number, **row} for number, answer in enumerate(answers) for row in answer["keys"]], False)
    for alarm in (answer["alarm"] for answer in answers):
        if alarm:
            say(f"alarm: {alarm}")


@takes("topic", "subscription", "json")
def redrive(
    target: Target,
    key: KeyOption = None,
    message_id: Failed = None,
    everything: All = False,
    dry_run: DryRunOption = False,
) -> None:
    """Let parked or blocked keys go on: their messages go out in order, before newer ones of the key."""
    _decide("redrive", target, _chosen(key, message_id, everything), dry_run)


@takes("topic", "subscription", "json")
def discard(
    target: Target,
    key: KeyOption = None,
    message_id: Failed = None,
    everything: All = False,
    only_failed: OnlyFailed = False,
    dry_run: DryRunOption = False,
) -> None:
    """Count the messages of these keys from the failed one on as done; the keys go on with later messages."""
    chosen = {**_chosen(key, message_id, everything), "only_failed": only_failed}
    _decide("discard", target, chosen, dry_run)


def _chosen(key: str | None, message_id: str | None, everything: bool) -> dict[str, Any]:
    if sum((key is not None, message_id is not None, everything)) != 1:
        raise typer.BadParameter("give exactly one of --key, --message-id and --all")
    if key is not None:
        return {"key": key}
    if message_id is None:
        return {"everything": True}
    found = message_id_of(message_id)
    if found is None:
        raise Invalid(f"a message id is LEDGER:ENTRY:PARTITION, not {message_id!r}")
    return found


def _decide(verb: str, target: Target, chosen: dict[str, Any], dry_run: bool) -> None:
    if dry_run:
        _show_parked(target, 100)
        say(f"would {verb} {'all of these' if chosen.get('everything') else 'one of these'}")
        return
    with target.join() as client:
        rows: list[dict[str, Any]] = client.admin(target.topic, target.subscription, verb, **chosen)
    if target.json:
        show_json(rows)
        return
    keys, messages = (sum(row[name] for row in rows) for name in ("keys", "messages"))
    say(f"{verb}: {keys} keys with {messages} messages" if keys else "no such key is parked or blocked")
