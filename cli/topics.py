"""`sluice topics ...`: make, show and delete topics."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from sluice.cli.options import (
    DryRunOption,
    SetOption,
    WatchOption,
    parse_settings,
    size,
)
from sluice.cli.output import WATCH_SECONDS, say, show, watch
from sluice.cli.target import Target, takes

Rows = list[dict[str, Any]]

app = typer.Typer(no_args_is_help=True, help="Make, show and delete topics.")

TOPICS = {
    "topic": "topic", "partitions": "partitions", "ensemble": "ensemble", "write_quorum": "write quorum",
    "ack_quorum": "ack quorum",
}  # fmt: skip
"""What a table of topics shows of each; its other settings are in --json."""
_STATS = {
    "partition": "partition", "numberOfEntries": "messages", "storageSize": "bytes", "msgInCounter": "published",
    "underReplicated": "under-replicated", "producers": "known producers", "subscriptions": "done up to",
}  # fmt: skip
_OFFLOAD = {
    "partition": "partition", "offloaded_ledgers": "ledgers there", "offloaded_bytes": "bytes there",
    "bookie_bytes": "bytes on bookies", "ledger": "on its way", "error": "waits for",
}  # fmt: skip
_ERASING = {
    "partition": "partition", "keys": "keys left", "ledgers_left": "ledgers left", "messages": "messages so far",
    "done_messages": "messages of the last", "error": "waits for",
}  # fmt: skip
_COMPACTION = {
    "partition": "partition", "messages": "messages", "bytes": "bytes there", "left_bytes": "bytes since then",
    "error": "waits for",
}  # fmt: skip
_PARTITIONS = {
    "partition": "partition", "owner": "owner", "epoch": "epoch", "trimmedBefore": "begins",
    "lastConfirmedEntry": "last confirmed",
}  # fmt: skip

_RETENTION = ("retention_ms", "retention_bytes", "history_retention_ms", "history_retention_bytes")


@app.command()
@takes("topic")
def create(
    target: Target,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many partitions.")] = 1,
    settings: SetOption = [],  # noqa: B006 (typer reads the default and never changes it),
) -> None:
    """Create a topic. The same call again is fine; with other settings it is refused."""
    from msgspec import structs

    from sluice.cluster.settings.config import load

    chosen = load().values.topic_settings(**(parse_settings(settings) | {"partitions": partitions}))
    with target.join() as client:
        client.create_topic(target.topic, **structs.asdict(chosen))
    say(f"topic {target.topic} has {chosen.partitions} partition{'s' if chosen.partitions > 1 else ''}")


@app.command("add-partitions")
@takes("topic")
def add_partitions(
    target: Target,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=2, help="The new number of partitions.")],
) -> None:
    """Give a partitioned topic more partitions. New messages of a key may go to another partition than earlier ones."""
    with target.join() as client:
        client.add_partitions(target.topic, partitions)
    say(f"topic {target.topic} has {partitions} partitions")


@app.command()
@takes("topic")
def terminate(target: Target) -> None:
    """End a topic for good: it takes no more messages, and those that it has are delivered as before."""
    with target.join() as client:
        last = client.terminate_topic(target.topic)
    say(
        f"topic {target.topic} takes no more messages; "
        f"its last one{'s are' if len(last) > 1 else ' is'} {', '.join(last)}"
    )


@app.command()
@takes("topic", "json")
def offload(
    target: Target,
    keep: Annotated[
        str, typer.Option(metavar="SIZE", help="Of each partition, so much stays on bookies: 512MB.")
    ] = "0",
    wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True,
) -> None:
    """Let closed ledgers leave the bookies for the object store, where they are tables of Parquet.

    The bookies keep their copies for offload_deletion_lag_ms. Ctrl-C ends the waiting only.
    """
    kept = size(keep)

    def far(rows: Rows) -> str:
        busy = [row for row in rows if row["ledger"]]
        each = [f"ledger {row['ledger']}: {row['runs_done']} of {row['runs_all']} runs" for row in busy]
        return f"offloading {target.topic} ... {', '.join(each)}"

    with target.join() as client:
        rows = client.offload(target.topic, kept)
        if wait:
            rows = _done(rows, lambda: client.offload_status(target.topic), far)
        made = [row for row in client.topics() if row["topic"] == target.topic]
    show(rows, target.json, _OFFLOAD)
    if made and not any(made[0][name] for name in _RETENTION):
        say(
            f"topic {target.topic} was created without retention: what all its subscriptions have acknowledged leaves "
            "the object store too, unless its namespace keeps it (create it with --set retention_ms=365d)"
        )


def _done(rows: Rows, look: Callable[[], Rows], far: Callable[[Rows], str]) -> Rows:
    """Wait until every partition has done what it was asked for, or says why it cannot. far: how far they are."""
    while any((row.get("asked") or row.get("keys")) and not row["error"] for row in rows):
        say(far(rows))
        time.sleep(WATCH_SECONDS)
        rows = look()
    return rows


@app.command("offload-status")
@takes("topic", "json")
def offload_status(target: Target, again: WatchOption = False) -> None:
    """Show what of a topic is in the object store, and what is on its way there."""
    with target.join() as client:
        watch(again, lambda: show(client.offload_status(target.topic), target.json, _OFFLOAD))


@app.command()
@takes("topic", "json")
def compact(target: Target, wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True) -> None:
    """Keep of each key the last message, for those who read the topic compacted. A message without payload deletes its
    key. The log stays as it is. Ctrl-C ends the waiting only.
    """

    def far(rows: Rows) -> str:
        read, whole = (sum(row[name] for row in rows if row["running"]) for name in ("read_bytes", "all_bytes"))
        return f"compacting {target.topic} ... {min(100 * read // max(whole, 1), 99)} %"

    with target.join() as client:
        rows = client.compact(target.topic)
        if wait:
            rows = _done(rows, lambda: client.compaction_status(target.topic), far)
    show(rows, target.json, _COMPACTION)


@app.command()
@takes("topic", "json")
def erase(
    target: Target,
    key: Annotated[str, typer.Option("--key", help="Whose messages are forgotten.")],
    wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True,
    dry_run: DryRunOption = False,
) -> None:
    """Forget the messages of a key that the topic has now: in the object store, on bookies, in its compacted table.

    Each leaves an empty message without key at its place. Ledgers that hold some leave for the object store. It goes on
    by itself: Ctrl-C ends the waiting only. Copies that consumers made, and dead letters, are not known here.
    """

    def far(rows: Rows) -> str:
        left, messages = (sum(row[name] for row in rows) for name in ("ledgers_left", "messages"))
        return f"erasing in {target.topic} ... {left} ledgers left, {messages} messages erased"

    with target.join() as client:
        if dry_run:
            say(f"would erase the messages of {key!r} in topic {target.topic}")
            return
        rows = client.erase(target.topic, key)
        _write_down("erase", target)
        if wait:
            rows = _done(rows, lambda: client.erase_status(target.topic), far)
    show(rows, target.json, _ERASING)


def _write_down(what: str, target: Target) -> None:
    """Tell the audit of this machine, where there is one, who did what here."""
    from sluice.actors.policies.audited import Audited
    from sluice.cluster.base.audit import AuditLog
    from sluice.cluster.settings.config import load

    values = load(None, data_dir=target.data_dir).values
    if values.authorization_enabled:
        log = AuditLog(values.data_dir, "command-line")
        log(Audited("the command line", f"{getpass.getuser()}@{os.uname().nodename}", what, target.topic))
        log.close()


@app.command("erase-status")
@takes("topic", "json")
def erase_status(target: Target, again: WatchOption = False) -> None:
    """Show which erasing of keys is under way, and what the last one erased."""
    with target.join() as client:
        watch(again, lambda: show(client.erase_status(target.topic), target.json, _ERASING))


@app.command("compaction-status")
@takes("topic", "json")
def compaction_status(target: Target, again: WatchOption = False) -> None:
    """Show what of a topic is compacted, and what has come since then."""
    with target.join() as client:
        watch(again, lambda: show(client.compaction_status(target.topic), target.json, _COMPACTION))


@app.command("list")
@takes("json")
def list_topics(target: Target) -> None:
    """List the topics."""
    with target.join() as client:
        show(client.topics(), target.json, TOPICS)


@app.command()
@takes("topic", "json")
def stats(target: Target, again: WatchOption = False) -> None:
    """Show the contents of the topic, one row for each partition. --json has every field, with Pulsar's names.

    What was published is counted since the partition's owner started.
    """
    with target.join() as client:
        watch(again, lambda: show(client.stats(target.topic), target.json, _STATS))


@app.command()
@takes("topic", "json")
def partitions(target: Target) -> None:
    """Show the partitions: who owns each, under which epoch, where it ends."""
    with target.join() as client:
        show(client.stats(target.topic), target.json, _PARTITIONS)


@app.command()
@takes("topic")
def delete(
    target: Target,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if it has subscriptions.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a topic with everything in it."""
    with target.join() as client:
        if dry_run:
            show(client.stats(target.topic), False, _STATS)
            say(f"would delete topic {target.topic}")
            return
        client.delete_topic(target.topic, force=force)
    say(f"deleted topic {target.topic}")


@app.command("accept-loss")
@takes("topic", "json")
def accept_loss(
    target: Target,
    run: Annotated[
        list[str],
        typer.Option(
            "--run", metavar="LEDGER:ENTRY", help="A message of the run, as `status` names it; can be repeated."
        ),
    ],
    dry_run: DryRunOption = False,
) -> None:
    """Give up messages that no bookie can read, so that the others of their partition go on."""
    with target.join() as client:
        rows = [client.accept_loss(target.topic, one, dry_run=dry_run) for one in run]
    show(rows, target.json)
    if not target.json:
        lost = sum(row["messages"] for row in rows)
        say(f"{'would give up' if dry_run else 'gave up'} {lost} messages of {target.topic}")
