"""`sluice subscriptions cancel-delayed` and `reschedule-delayed`: take delayed messages back, or move them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sluice.cli.options import DryRunOption, KeyOption, moment
from sluice.cli.output import show, show_json
from sluice.cli.target import Target, takes

Subscription = Annotated[str | None, typer.Argument(metavar="[SUBSCRIPTION]", help="Default: each one of the topic.")]
Ids = Annotated[list[str], typer.Option("--message-id", help="LEDGER:ENTRY:PARTITION of a message; can be repeated.")]
DelayIds = Annotated[list[str], typer.Option("--delay-id", help="The sender's own id; can be repeated.")]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Only messages due at this time or later.")]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only messages due before this time.")]
Before = Annotated[str | None, typer.Option("--before", metavar="MESSAGE", help="Only messages sent before this one.")]
Everything = Annotated[bool, typer.Option("--all", help="Every delayed message.")]
At = Annotated[str, typer.Option("--at", metavar="TIME", help="When they are due from now on (ISO-8601).")]

_COUNTS = {
    "subscription": "subscription", "partition": "partition", "cancelled": "cancelled", "rescheduled": "rescheduled",
    "tooLateDelivered": "delivered before", "tooLateDue": "due", "unknown": "unknown",
}  # fmt: skip


@takes("topic", "json")
def cancel_delayed(
    target: Target,
    subscription: Subscription = None,
    message_id: Ids = [],  # noqa: B006
    delay_id: DelayIds = [],  # noqa: B006
    key: KeyOption = None,
    due_from: From = None,
    due_to: To = None,
    before: Before = None,
    everything: Everything = False,
    dry_run: DryRunOption = False,
) -> None:
    """Cancel delayed messages, so that nobody gets them. Prints the result for each id when it is durable."""
    chosen = _chosen(message_id, delay_id, key, due_from, due_to, before, everything, dry_run)
    _change(target, subscription, "cancel_delayed", chosen)


@takes("topic", "json")
def reschedule_delayed(
    target: Target,
    at: At,
    subscription: Subscription = None,
    message_id: Ids = [],  # noqa: B006
    delay_id: DelayIds = [],  # noqa: B006
    key: KeyOption = None,
    due_from: From = None,
    due_to: To = None,
    before: Before = None,
    everything: Everything = False,
    dry_run: DryRunOption = False,
) -> None:
    """Give delayed messages another due time. Prints the result for each id when it is durable."""
    chosen = _chosen(message_id, delay_id, key, due_from, due_to, before, everything, dry_run)
    _change(target, subscription, "reschedule_delayed", {**chosen, "deliver_at": moment(at)})


def _chosen(
    ids: list[str],
    names: list[str],
    key: str | None,
    due_from: str | None,
    due_to: str | None,
    before: str | None,
    everything: bool,
    dry_run: bool,
) -> dict[str, Any]:
    if not all(names):
        raise typer.BadParameter("--delay-id is empty")
    begins, ends = moment(due_from) if due_from is not None else None, moment(due_to) if due_to is not None else None
    if begins is not None and ends is not None and begins > ends:
        raise typer.BadParameter("--from is later than --to: nothing is due in between")
    given = {
        "message_id": ids or None,
        "delay_id": names or None,
        "key": key,
        "due_from": begins,
        "due_to": ends,
        "before": before,
        "everything": everything or None,
        "dry_run": dry_run or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _change(target: Target, subscription: str | None, verb: str, chosen: dict[str, Any]) -> None:
    with target.join() as client:
        rows: list[dict[str, Any]] = getattr(client, verb)(target.topic, subscription, **chosen)
    if target.json:
        show_json(rows)
        return
    show(rows, False, _COUNTS)
    held = [
        {"subscription": row["subscription"], "partition": row["partition"], "consumer": name, "holds": count}
        for row in rows
        for name, count in row["tooLateAtConsumer"].items()
    ]
    if held:
        show(held, False)
    answers = [{"subscription": row["subscription"], **one} for row in rows for one in row["messages"]]
    if answers:
        show(answers, False)
