"""`sluice topics ...`: make, show and delete topics."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cluster.cli.options import (
    AddressOption,
    DataDirOption,
    DryRunOption,
    JsonOption,
    SetOption,
    TopicArgument,
    WatchOption,
    parse_settings,
)
from cluster.cli.outcome import say
from cluster.cli.output import show, show_json, watch
from cluster.cli.session import joined

app = typer.Typer(no_args_is_help=True, help="Make, show and delete topics.")

_STATS = (
    "partition", "owner", "epoch", "msgInCounter", "storageSize", "ledgers", "lastConfirmedEntry", "subscriptions",
)  # fmt: skip


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


@app.command("list")
def list_topics(json: JsonOption = False, address: AddressOption = None, data_dir: DataDirOption = None) -> None:
    """List the topics."""
    with joined(address, data_dir) as client:
        show(client.topics(), json, ("topic", "partitions", "ensemble", "write_quorum", "ack_quorum"))


@app.command()
def stats(
    topic: TopicArgument,
    json: JsonOption = False,
    again: WatchOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show what the topic holds, one row a partition. --json has every field, with Pulsar's names."""
    with joined(address, data_dir) as client:
        watch(again, lambda: _show_partitions(client.stats(topic), json))


@app.command()
def partitions(
    topic: TopicArgument, json: JsonOption = False, address: AddressOption = None, data_dir: DataDirOption = None
) -> None:
    """Show the partitions: who owns each, under which epoch, where it ends."""
    with joined(address, data_dir) as client:
        _show_partitions(client.stats(topic), json, ("partition", "owner", "epoch", "lastConfirmedEntry"))


@app.command()
def delete(
    topic: TopicArgument,
    force: Annotated[bool, typer.Option("--force", help="Also if it has subscriptions.")] = False,
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Delete a topic with everything in it."""
    with joined(address, data_dir) as client:
        if dry_run:
            _show_partitions(client.stats(topic), False)
            say(f"would delete topic {topic}")
            return
        client.delete_topic(topic, force=force)
    say(f"deleted topic {topic}")


def _show_partitions(rows: list[dict[str, Any]], json: bool, columns: tuple[str, ...] = _STATS) -> None:
    if json:
        show_json(rows)
        return
    numbered = [{"partition": number, **row} for number, row in enumerate(rows)]
    present = [name for name in columns if any(name in row for row in numbered)]
    show(numbered, False, present if len(present) > 1 else None)
