"""`sluice subscriptions parked`, `redrive` and `discard`: keys that wait because a message of theirs failed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.options import (
    AddressOption,
    DataDirOption,
    DryRunOption,
    JsonOption,
    KeyOption,
    SubscriptionArgument,
    TopicArgument,
)
from cli.output import say, show, show_json
from cli.session import joined
from cli.subscriptions import TopOption, Where, message_id_of
from storage.errors import Invalid

All = Annotated[bool, typer.Option("--all", help="Every key that is parked or blocked.")]
Failed = Annotated[
    str | None,
    typer.Option("--message-id", help="LEDGER:ENTRY:PARTITION of the message that failed, as `parked` shows it."),
]
OnlyFailed = Annotated[
    bool, typer.Option("--only-failed", help="Discard the failed message alone; messages parked behind it go out.")
]


def parked(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    top: TopOption = 100,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """List the keys that are parked or blocked, in the order in which they failed."""
    with joined(address, data_dir) as client:
        answers: list[dict[str, Any]] = client.admin(topic, subscription, "parked", top=top)
    if json:
        show_json(answers)
        return
    show([{"partition": number, **row} for number, answer in enumerate(answers) for row in answer["keys"]], False)
    for alarm in (answer["alarm"] for answer in answers):
        if alarm:
            say(f"alarm: {alarm}")


def redrive(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    key: KeyOption = None,
    message_id: Failed = None,
    everything: All = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Let parked or blocked keys go on: their messages go out in order, before newer ones of the key."""
    _decide("redrive", topic, subscription, _chosen(key, message_id, everything), dry_run, json, (address, data_dir))


def discard(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    key: KeyOption = None,
    message_id: Failed = None,
    everything: All = False,
    only_failed: OnlyFailed = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Count the messages of these keys from the failed one on as done; the keys go on with later messages."""
    chosen = {**_chosen(key, message_id, everything), "only_failed": only_failed}
    _decide("discard", topic, subscription, chosen, dry_run, json, (address, data_dir))


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


def _decide(
    verb: str, topic: str, subscription: str, chosen: dict[str, Any], dry_run: bool, json: bool, where: Where
) -> None:
    if dry_run:
        parked(topic, subscription, json=json, address=where[0], data_dir=where[1])
        say(f"would {verb} {'all of these' if chosen.get('everything') else 'one of these'}")
        return
    with joined(*where) as client:
        rows: list[dict[str, Any]] = client.admin(topic, subscription, verb, **chosen)
    if json:
        show_json(rows)
        return
    keys, messages = (sum(row[name] for row in rows) for name in ("keys", "messages"))
    say(f"{verb}: {keys} keys with {messages} messages" if keys else "no such key is parked or blocked")
