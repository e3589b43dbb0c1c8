"""`sluice subscriptions ...`: show, explain and move subscriptions.

What drops or repeats messages (`seek`, `skip`, `clear-backlog`, `delete`) knows --dry-run, which says what would be
done and does nothing.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from sluice.cli.incidents import explained
from sluice.cli.options import (
    DryRunOption,
    KeyOption,
    WatchOption,
    moment,
)
from sluice.cli.output import in_words, is_table, say, show, show_json, show_line, show_one, show_partitions, watch
from sluice.cli.target import Target, takes
from sluice.cluster.base.printable import printable

app = typer.Typer(no_args_is_help=True, help="Show, explain and move subscriptions.")

HashOption = Annotated[int | None, typer.Option("--hash", min=1, max=65535, help="A sticky hash, 1 to 65535.")]
TopOption = Annotated[int, typer.Option("--top", "-n", min=1, help="How many to show.")]

# The columns of tables; with --json everything is shown.
_STATS = {
    "partition": "partition", "policy": "policy", "msgBacklog": "backlog", "msgDelayed": "delayed",
    "unackedMessages": "unacked", "msgInReplay": "in replay", "msgRedeliverCounter": "given back",
    "drainingHashesCount": "draining hashes", "drainingHashesClearedTotal": "drained",
    "orderViolationsTotal": "order violations",
}  # fmt: skip
_CONSUMERS = {
    "partition": "partition", "consumerName": "consumer", "availablePermits": "permits", "unackedMessages": "unacked",
    "msgOutCounter": "delivered", "msgAckCounter": "acknowledged", "drainingHashesCount": "draining hashes",
    "connectedSince": "since",
}  # fmt: skip


@app.command("list")
@takes("topic", "json")
def list_subscriptions(target: Target) -> None:
    """List the subscriptions of a topic."""
    with target.join() as client:
        show([{"subscription": name} for name in client.subscriptions(target.topic)], target.json)


@app.command()
@takes("topic", "subscription", "json")
def stats(target: Target, again: WatchOption = False) -> None:
    """Show backlog, draining hashes and consumers. --json has every field, with Pulsar's names.

    What was given back, drained or violated is counted since the owner of the subscription started.
    """
    with target.join() as client:
        watch(again, lambda: _show_stats(client.stats(target.topic, target.subscription), target.json))


@app.command()
@takes("topic", "subscription", "json")
def explain(
    target: Target,
    key: KeyOption = None,
    hash: HashOption = None,
    message_id: Annotated[str | None, typer.Option("--message-id", help="LEDGER:ENTRY:PARTITION of a message.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="With --key: as it was then (ISO-8601).")
    ] = None,
) -> None:
    """Why is this key, hash or message not being delivered, and what would unblock it?

    With --at the answer comes from what this machine recorded, and needs no cluster.
    """
    if at is not None:
        if key is None or hash is not None or message_id is not None:
            raise typer.BadParameter("--at wants --key")
        answer = explained(target, key, moment(at))
        if target.json:
            show_json(answer)
        else:
            _show_explanation(answer)
        return
    if sum(given is not None for given in (key, hash, message_id)) != 1:
        raise typer.BadParameter("give exactly one of --key, --hash and --message-id")
    with target.join() as client:
        answer = client.explain(target.topic, target.subscription, key=key, hash=hash, message_id=message_id)
    if target.json:
        show_json(answer)
        return
    for part in answer.get("partitions", [answer]):
        _show_explanation(part)


@app.command()
@takes("topic", "subscription", "json")
def pending(
    target: Target,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Only this consumer's.")] = None,
    top: TopOption = 20,
) -> None:
    """List the messages that consumers hold and have not acknowledged."""
    _ask(target, "pending", consumer=consumer, most=top)


@app.command("blocked-keys")
@takes("topic", "subscription", "json")
def blocked_keys(target: Target, top: TopOption = 20) -> None:
    """List the keys that wait, the longest first, with the reason of each."""
    _ask(target, "blocked_keys", top=top)


@app.command("hot-keys")
@takes("topic", "subscription", "json")
def hot_keys(target: Target, top: TopOption = 10) -> None:
    """Which keys are the heaviest, by messages, bytes and time held, and which hashes wait the longest?"""
    _ask(target, "hot_keys", top=top)


@app.command("what-if")
@takes("topic", "subscription", "json")
def what_if(
    target: Target,
    add: Annotated[int, typer.Option("--add", min=0, help="Consumers to add.")] = 0,
    remove: Annotated[list[str], typer.Option("--remove", help="Consumer to remove; can be repeated.")] = [],  # noqa: B006,
) -> None:
    """How many hashes would move if consumers came or left? Changes nothing."""
    if not add and not remove:
        raise typer.BadParameter("give --add N, --remove NAME, or both")
    _ask(target, "what_if", add=add, remove=remove)


@app.command()
@takes("topic", "subscription", "json")
def owner(
    target: Target,
    key: KeyOption = None,
    hash: HashOption = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="At that time, not now (ISO-8601).")] = None,
) -> None:
    """Which consumer gets this key or hash, now or at an earlier time?"""
    if (key is None) == (hash is None):
        raise typer.BadParameter("give one of --key and --hash")
    _ask(target, "owner", key=key, hash=hash, at=moment(at) if at is not None else None)


@app.command()
@takes("topic", "subscription", "json")
def delayed(target: Target, top: TopOption = 20) -> None:
    """When do delayed messages fall due? A histogram and the next ones, without loading the index."""
    _ask(target, "delayed", top=top)


@app.command()
@takes("topic", "subscription", "json")
def seek(
    target: Target,
    to: Annotated[
        str, typer.Argument(metavar="WHERE", help="earliest, latest, LEDGER:ENTRY[:PARTITION], or a time (ISO-8601).")
    ],
    dry_run: DryRunOption = False,
) -> None:
    """Move the subscription: messages behind that position come (again). A message id moves its own partition."""
    place: dict[str, object] = {"message_id": to}
    if to not in ("earliest", "latest"):
        message_id = message_id_of(to)
        place = {"time": moment(to)} if message_id is None else message_id
    words = f"move {target.subscription} of {target.topic} to {to}"
    _change(target, "seek", dry_run, words, **place)


@app.command()
@takes("topic", "subscription", "json")
def skip(
    target: Target,
    count: Annotated[int, typer.Argument(min=1, help="How many messages of each partition.")],
    dry_run: DryRunOption = False,
) -> None:
    """Skip the oldest unacknowledged messages of each partition; they are not delivered any more."""
    words = f"skip {count} messages in each partition of {target.topic} for {target.subscription}"
    _change(target, "skip", dry_run, words, messages=count)


@app.command("clear-backlog")
@takes("topic", "subscription", "json")
def clear_backlog(target: Target, dry_run: DryRunOption = False) -> None:
    """Forget all waiting messages, including delayed ones."""
    words = f"clear the backlog of {target.subscription} on {target.topic}"
    _change(target, "clear_backlog", dry_run, words)


@app.command()
@takes("topic", "subscription", "json")
def delete(
    target: Target,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if consumers are connected.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a subscription with its position, acknowledgements and delayed index."""
    with target.join() as client:
        if dry_run:
            _show_stats(client.stats(target.topic, target.subscription), target.json)
            say(f"would delete {target.subscription} of {target.topic}")
            return
        client.delete_subscription(target.topic, target.subscription, force=force)
    if target.json:
        show_json({"topic": target.topic, "subscription": target.subscription, "deleted": True})
    say(f"deleted {target.subscription} of {target.topic}")


def message_id_of(text: str) -> dict[str, object] | None:
    """The arguments that name LEDGER:ENTRY or LEDGER:ENTRY:PARTITION, None if the text is neither."""
    if not re.fullmatch(r"\d+:(\d+|-1)(:\d+)?", text):
        return None
    parts = text.split(":")
    found: dict[str, object] = {"message_id": ":".join(parts[:2])}
    return found if len(parts) == 2 else found | {"partition": int(parts[2])}


def _ask(target: Target, verb: str, **arguments: object) -> None:
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    with target.join() as client:
        rows: list[dict[str, Any]] = client.admin(target.topic, target.subscription, verb, **given)
    show_partitions(rows, target.json, given.get("partition", 0))


def _change(target: Target, verb: str, dry_run: bool, words: str, **arguments: object) -> None:
    if dry_run:
        with target.join() as client:
            _show_stats(client.stats(target.topic, target.subscription), target.json)
        say(f"would {words}")
        return
    _ask(target, verb, **arguments)
    say(f"done: {words}")


def _show_stats(rows: list[dict[str, Any]], json: bool) -> None:
    show(rows, json, _STATS)
    if not json:
        consumers = [{"partition": row.get("partition"), **one} for row in rows for one in row.get("consumers") or []]
        show(consumers, False, _CONSUMERS, "consumers")


def _show_explanation(answer: dict[str, Any]) -> None:
    """The facts in a grid, then every gate that holds, the first one deciding, and what would open it."""
    gates = [*answer.get("gates", []), *answer.get("reasons", [])]
    show_one({name: value for name, value in answer.items() if name not in ("gates", "reasons")}, False)
    for gate in gates:
        known = dict(gate)
        name = known.pop("gate")
        opens = known.pop("unblocks", None) or known.pop("until", None)
        said = known.pop("text", None) or known.pop("because", None) or ""
        tables = {key: known.pop(key) for key in list(known) if is_table(known[key])}
        line = ": ".join(part for part in (name, said, in_words(known) if known else "") if part)
        show_line(printable(f"- {line}" + (f" (unblocked by: {opens})" if opens else ""), lines=False))
        for key, rows in tables.items():
            show(rows, False, title=key)
