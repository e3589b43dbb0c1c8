"""`sluice subscriptions timeline` and `waits`: what happened to a key, and where the time went, from recordings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sluice.cli.incidents import FromOption, ToOption, chunks_of
from sluice.cli.options import ConfigOption, DataDirOption, JsonOption, SubscriptionArgument, TopicArgument, moment
from sluice.cli.output import show, show_json
from sluice.storage.dates import iso_time

_LATEST = 1 << 60
_BAR = 30


def timeline(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    key: Annotated[str, typer.Option("--key", help="The key.")],
    start: FromOption = "0",
    end: ToOption = "",
    json: JsonOption = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what happened to a key, one line each, from what this machine recorded; over changes of owner as well."""
    from sluice.actors.recorder.timeline import timeline as lines_of

    chunks = chunks_of(topic, subscription, data_dir, config)
    lines = lines_of(chunks, _hash(key), moment(start), moment(end) if end else _LATEST)
    rows = [{"at": iso_time(line.at), "partition": line.partition, "what": line.text} for line in lines]
    if json:
        show_json(rows)
    else:
        show(rows, False, {"at": "at", "what": "what"})


def waits(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    start: FromOption = "0",
    end: ToOption = "",
    json: JsonOption = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what messages waited for between being read and their first delivery, the longest first."""
    from sluice.actors.recorder.timeline import waits as waits_of

    found = waits_of(chunks_of(topic, subscription, data_dir, config), moment(start), moment(end) if end else _LATEST)
    rows: list[dict[str, Any]] = [
        {
            "reason": reason,
            "messageSeconds": round(milliseconds / 1000, 3),
            "share": f"{100 * milliseconds / max(found.whole, 1):.1f} %",
            "bar": "#" * round(_BAR * milliseconds / max(found.whole, 1)),
        }
        for reason, milliseconds in found.by_reason.most_common()
    ]
    consumers = [{"consumer": name, "messageSeconds": ms / 1000} for name, ms in found.by_consumer.most_common(10)]
    hashes = [{"keyHash": number, "messageSeconds": ms / 1000} for number, ms in found.by_hash.most_common(10)]
    if json:
        show_json({"reasons": rows, "consumers": consumers, "keys": hashes})
        return
    show(rows, False, {name: name for name in ("reason", "messageSeconds", "share", "bar")})
    show(consumers, False, {"consumer": "waited for", "messageSeconds": "message-seconds"}, "consumers")
    show(hashes, False, {"keyHash": "key (hash)", "messageSeconds": "message-seconds"}, "keys")


def explained(topic: str, subscription: str, key: str, at: int, data_dir: Any) -> dict[str, Any]:
    """What the gates said of a key at a time (ms). Raises NotFound."""
    from sluice.actors.recorder.timeline import explain_at

    return explain_at(chunks_of(topic, subscription, data_dir, None), _hash(key), at)


def _hash(key: str) -> int:
    from sluice.storage.format.hashing import key_bytes, masked_hash

    return int(masked_hash(key_bytes(key)))
