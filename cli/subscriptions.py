"""`sluice subscriptions ...`: show, explain and move subscriptions.

What drops or repeats messages (`seek`, `skip`, `clear-backlog`, `delete`) knows --dry-run, which says what would be
done and does nothing.
"""

from __future__ import annotations

from pathlib import Path
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
    WatchOption,
    moment,
)
from cli.output import say, show, show_json, show_one, show_partitions, watch
from cli.printable import printable
from cli.session import joined

app = typer.Typer(no_args_is_help=True, help="Show, explain and move subscriptions.")

HashOption = Annotated[int | None, typer.Option("--hash", min=1, max=65535, help="A sticky hash, 1 to 65535.")]
TopOption = Annotated[int, typer.Option("--top", "-n", min=1, help="How many to show.")]

Where = tuple[str | None, Path | None]
"""Address and data folder, either of which names the cluster."""

_STATS = {
    "partition": "partition", "policy": "policy", "msgBacklog": "backlog", "msgDelayed": "delayed",
    "unackedMessages": "unacked", "msgInReplay": "in replay", "drainingHashesCount": "draining hashes",
    "drainingHashesClearedTotal": "drained", "orderViolationsTotal": "order violations",
}  # fmt: skip
_CONSUMERS = {
    "partition": "partition", "consumerName": "consumer", "availablePermits": "permits", "unackedMessages": "unacked",
    "msgOutCounter": "delivered", "msgAckCounter": "acknowledged", "drainingHashesCount": "draining hashes",
    "connectedSince": "since",
}  # fmt: skip


@app.command("list")
def list_subscriptions(
    topic: TopicArgument, json: JsonOption = False, address: AddressOption = None, data_dir: DataDirOption = None
) -> None:
    """List the subscriptions of a topic."""
    with joined(address, data_dir) as client:
        show([{"subscription": name} for name in client.subscriptions(topic)], json)


@app.command()
def stats(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    json: JsonOption = False,
    again: WatchOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show backlog, draining hashes and consumers. --json has every field, with Pulsar's names."""
    with joined(address, data_dir) as client:
        watch(again, lambda: _show_stats(client.stats(topic, subscription), json))


@app.command()
def explain(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    key: KeyOption = None,
    hash: HashOption = None,
    message_id: Annotated[str | None, typer.Option("--message-id", help="LEDGER:ENTRY:PARTITION of a message.")] = None,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Why is this key, hash or message not being delivered, and what would unblock it?"""
    if sum(given is not None for given in (key, hash, message_id)) != 1:
        raise typer.BadParameter("give exactly one of --key, --hash and --message-id")
    with joined(address, data_dir) as client:
        answer = client.explain(topic, subscription, key=key, hash=hash, message_id=message_id)
    if json:
        show_json(answer)
        return
    for part in answer.get("partitions", [answer]):
        _show_explanation(part)


@app.command()
def pending(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Only this consumer's.")] = None,
    top: TopOption = 20,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """List the messages that consumers hold and have not acknowledged."""
    _ask(topic, subscription, "pending", json, (address, data_dir), consumer=consumer, most=top)


@app.command("blocked-keys")
def blocked_keys(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    top: TopOption = 20,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """List the keys that wait, the longest first, with the reason of each."""
    _ask(topic, subscription, "blocked_keys", json, (address, data_dir), top=top)


@app.command("hot-keys")
def hot_keys(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    top: TopOption = 10,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Which keys are the heaviest, by messages, bytes and time held, and which hashes wait the longest?"""
    _ask(topic, subscription, "hot_keys", json, (address, data_dir), top=top)


@app.command("what-if")
def what_if(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    add: Annotated[int, typer.Option("--add", min=0, help="Consumers to add.")] = 0,
    remove: Annotated[list[str], typer.Option("--remove", help="Consumer to remove; can be repeated.")] = [],  # noqa: B006
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """How many hashes would move if consumers came or left? Changes nothing."""
    if not add and not remove:
        raise typer.BadParameter("give --add N, --remove NAME, or both")
    _ask(topic, subscription, "what_if", json, (address, data_dir), add=add, remove=remove)


@app.command()
def owner(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    key: KeyOption = None,
    hash: HashOption = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="At that time, not now (ISO-8601).")] = None,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Which consumer gets this key or hash, now or at an earlier time?"""
    if (key is None) == (hash is None):
        raise typer.BadParameter("give one of --key and --hash")
    _ask(topic, subscription, "owner", json, (address, data_dir), key=key, hash=hash, at=moment(at) if at else None)


@app.command()
def delayed(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    top: TopOption = 20,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """When do delayed messages fall due? A histogram and the next ones, without loading the index."""
    _ask(topic, subscription, "delayed", json, (address, data_dir), top=top)


@app.command()
def seek(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    to: Annotated[
        str, typer.Argument(metavar="WHERE", help="earliest, latest, LEDGER:ENTRY[:PARTITION], or a time (ISO-8601).")
    ],
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Move the subscription: messages behind that position come (again). A message id moves its own partition."""
    place: dict[str, object] = {"message_id": to}
    if to not in ("earliest", "latest"):
        message_id = message_id_of(to)
        place = {"time": moment(to)} if message_id is None else message_id
    words = f"move {subscription} of {topic} to {to}"
    _change(topic, subscription, "seek", dry_run, json, (address, data_dir), words, **place)


@app.command()
def skip(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    count: Annotated[int, typer.Argument(min=1, help="How many messages of each partition.")],
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Skip the oldest unacknowledged messages of each partition; they are not delivered any more."""
    words = f"skip {count} messages in each partition of {topic} for {subscription}"
    _change(topic, subscription, "skip", dry_run, json, (address, data_dir), words, messages=count)


@app.command("clear-backlog")
def clear_backlog(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Forget all waiting messages, including delayed ones."""
    words = f"clear the backlog of {subscription} on {topic}"
    _change(topic, subscription, "clear_backlog", dry_run, json, (address, data_dir), words)


@app.command()
def delete(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if consumers are connected.")] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Delete a subscription with its position, acknowledgements and delayed index."""
    with joined(address, data_dir) as client:
        if dry_run:
            _show_stats(client.stats(topic, subscription), False)
            say(f"would delete {subscription} of {topic}")
            return
        client.delete_subscription(topic, subscription, force=force)
    say(f"deleted {subscription} of {topic}")


def message_id_of(text: str) -> dict[str, object] | None:
    """The arguments that name LEDGER:ENTRY or LEDGER:ENTRY:PARTITION, None if the text is neither."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.isdecimal() for part in parts):
        return None
    found: dict[str, object] = {"message_id": ":".join(parts[:2])}
    return found if len(parts) == 2 else found | {"partition": int(parts[2])}


def _ask(
    topic: str, subscription: str, verb: str, json: bool, where: Where, **arguments: object
) -> list[dict[str, Any]]:
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    with joined(*where) as client:
        rows: list[dict[str, Any]] = client.admin(topic, subscription, verb, **given)
    show_partitions(rows, json)
    return rows


def _change(
    topic: str,
    subscription: str,
    verb: str,
    dry_run: bool,
    json: bool,
    where: Where,
    words: str,
    **arguments: object,
) -> None:
    if dry_run:
        with joined(*where) as client:
            _show_stats(client.stats(topic, subscription), json)
        say(f"would {words}")
        return
    _ask(topic, subscription, verb, json, where, **arguments)
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
        facts = ", ".join(f"{key} {value}" for key, value in known.items())
        line = ": ".join(part for part in (name, said, facts) if part)
        print(printable(f"- {line}" + (f" (unblocked by: {opens})" if opens else ""), lines=False))
