"""`sluice topics ...`: make, show and delete topics."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import (
    AddressOption,
    DataDirOption,
    DryRunOption,
    JsonOption,
    SetOption,
    TopicArgument,
    WatchOption,
    parse_settings,
)
from cli.output import say, show, watch
from cli.session import joined

app = typer.Typer(no_args_is_help=True, help="Make, show and delete topics.")

_TOPICS = {
    "topic": "topic", "partitions": "partitions", "ensemble": "ensemble", "write_quorum": "write quorum",
    "ack_quorum": "ack quorum",
}  # fmt: skip
_STATS = {
    "partition": "partition", "numberOfEntries": "messages", "storageSize": "bytes", "msgInCounter": "published",
    "underReplicated": "under-replicated", "producers": "producers", "subscriptions": "subscriptions",
}  # fmt: skip
_PARTITIONS = {
    "partition": "partition", "owner": "owner", "epoch": "epoch", "trimmedBefore": "begins",
    "lastConfirmedEntry": "last confirmed",
}  # fmt: skip


@app.command()
def create(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many partitions.")] = 1,
    settings: SetOption = [],  # noqa: B006 (typer reads the default and never changes it)
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Create a topic. The same call again is fine; with other settings it is refused."""
    from msgspec import structs

    from cluster.config import load

    chosen = load().values.topic_settings(**(parse_settings(settings) | {"partitions": partitions}))
    with joined(address, data_dir) as client:
        client.create_topic(topic, **structs.asdict(chosen))
    say(f"topic {topic} has {chosen.partitions} partition{'s' if chosen.partitions > 1 else ''}")


@app.command("add-partitions")
def add_partitions(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=2, help="The new number of partitions.")],
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Give a partitioned topic more partitions. New messages of a key may go to another partition than earlier ones."""
    with joined(address, data_dir) as client:
        client.add_partitions(topic, partitions)
    say(f"topic {topic} has {partitions} partitions")


@app.command()
def terminate(topic: TopicArgument, address: AddressOption = None, data_dir: DataDirOption = None) -> None:
    """End a topic for good: it takes no more messages, and those that it has are delivered as before."""
    with joined(address, data_dir) as client:
        last = client.terminate_topic(topic)
    say(f"topic {topic} takes no more messages; its last one{'s are' if len(last) > 1 else ' is'} {', '.join(last)}")


@app.command("list")
def list_topics(json: JsonOption = False, address: AddressOption = None, data_dir: DataDirOption = None) -> None:
    """List the topics."""
    with joined(address, data_dir) as client:
        show(client.topics(), json, _TOPICS)


@app.command()
def stats(
    topic: TopicArgument,
    json: JsonOption = False,
    again: WatchOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show the contents of the topic, one row for each partition. --json has every field, with Pulsar's names."""
    with joined(address, data_dir) as client:
        watch(again, lambda: show(client.stats(topic), json, _STATS))


@app.command()
def partitions(
    topic: TopicArgument, json: JsonOption = False, address: AddressOption = None, data_dir: DataDirOption = None
) -> None:
    """Show the partitions: who owns each, under which epoch, where it ends."""
    with joined(address, data_dir) as client:
        show(client.stats(topic), json, _PARTITIONS)


@app.command()
def delete(
    topic: TopicArgument,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if it has subscriptions.")] = False,
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Delete a topic with everything in it."""
    with joined(address, data_dir) as client:
        if dry_run:
            show(client.stats(topic), False, _STATS)
            say(f"would delete topic {topic}")
            return
        client.delete_topic(topic, force=force)
    say(f"deleted topic {topic}")


@app.command("accept-loss")
def accept_loss(
    topic: TopicArgument,
    run: Annotated[
        list[str],
        typer.Option(
            "--run", metavar="LEDGER:ENTRY", help="A message of the run, as `status` names it; can be repeated."
        ),
    ],
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Give up messages that no bookie can read, so that the others of their partition go on."""
    with joined(address, data_dir) as client:
        rows = [client.accept_loss(topic, one, dry_run=dry_run) for one in run]
    show(rows, json)
    if not json:
        say(f"{'would give up' if dry_run else 'gave up'} {sum(row['messages'] for row in rows)} messages of {topic}")
