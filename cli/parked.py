"""`sluice subscriptions parked`, `redrive` and `discard`: dead letters, and keys that wait behind a failed message."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.options import (
    DryRunOption,
    KeyOption,
)
from sluice.cli.output import say, show, show_json
from sluice.cli.subscriptions import TopOption
from sluice.cli.target import Target, takes
from sluice.storage.errors import SluiceError

if TYPE_CHECKING:
    from sluice.cluster.client.dead_letters import DeadLetter, LettersChoice, LettersDecided

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
    """List the keys that are parked or blocked, in the order in which they failed; and why, if a pool says so.

    Where failed messages move to a dead letter topic, list those that are not decided there.
    """
    _show_parked(target, top)


def _show_parked(target: Target, top: int) -> None:
    from sluice.cluster.workers.registry import tracebacks

    with target.join() as client:
        answers: list[dict[str, Any]] = client.admin(target.topic, target.subscription, "parked", top=top)
        if not any(answer.get("keys") for answer in answers):
            for letter in client.dead_letters(target.topic, target.subscription).letters(top):
                answers[letter.message_id.partition()]["keys"].append(_row(letter))
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


def _row(letter: DeadLetter) -> dict[str, Any]:
    """A letter in a dead letter topic, as the owner shows a parked key."""
    key = None if letter.key is None else letter.key.decode("utf-8", "replace")
    return {
        "key": key,
        "state": letter.state,
        "since": letter.since,
        "failed": str(letter.message_id),
        "messages": letter.messages,
        "bytes": len(letter.data),
    }


@takes("topic", "subscription", "json")
def redrive(
    target: Target,
    key: KeyOption = None,
    message_id: Failed = None,
    everything: All = False,
    dry_run: DryRunOption = False,
) -> None:
    """Let parked or blocked keys go on: their messages go out in order, before newer ones of the key.

    A letter in a dead letter topic is published again, for every subscription of the topic that it came from.
    """
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
    """Count the messages of these keys from the failed one on as done; the keys go on with later messages.

    A letter in a dead letter topic counts as done there.
    """
    _decide("discard", target, _chosen(key, message_id, everything), dry_run, only_failed=only_failed)


def _chosen(key: str | None, message_id: str | None, everything: bool) -> LettersChoice:
    if sum((key is not None, message_id is not None, everything)) != 1:
        raise typer.BadParameter("give exactly one of --key, --message-id and --all")
    if key is not None:
        return {"key": key}
    if message_id is None:
        return {"everything": True}
    from sluice.cluster.client.message import MessageId

    return {"message_id": MessageId.parse(message_id)}


def _decide(verb: str, target: Target, chosen: LettersChoice, dry_run: bool, **more: bool) -> None:
    if dry_run:
        _show_parked(target, 100)
        say(f"would {verb} {'all of these' if chosen.get('everything') else 'one of these'}")
        return
    with target.join() as client:
        letters = client.dead_letters(target.topic, target.subscription)
        decided: LettersDecided = getattr(letters, verb)(**chosen, **more)
    if target.json:
        show_json({"keys": decided.keys, "messages": decided.messages})
    elif decided.messages:
        say(f"{verb}: {decided.keys} keys with {decided.messages} messages")
    else:
        say("no such key is parked or blocked, and no such letter is in a dead letter topic")
