"""`sluice incident ...`, and `timeline` and `waits` of `sluice subscriptions`: what this machine recorded.

No command here needs a running cluster: the recordings are read from the data folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sluice.cli.options import JsonOption, moment
from sluice.cli.output import say, show, show_json
from sluice.cli.target import Target, takes
from sluice.cluster.base.version import COMMAND
from sluice.storage.dates import iso_time

if TYPE_CHECKING:
    from sluice.actors.recorder.flight_file import RecordedCalls

app = typer.Typer(no_args_is_help=True, help="What happened: export and replay the recorded decisions.")

FromOption = Annotated[str, typer.Option("--from", metavar="TIME", help="Since then (ISO-8601).")]
ToOption = Annotated[str, typer.Option("--to", metavar="TIME", help="Until then (ISO-8601).")]
_TEST = '''"""An exported incident stays what it is: made again, its decisions keep every promise."""

from pathlib import Path

from sluice.actors.recorder.flight_file import unpack
from sluice.actors.recorder.replay import replay

INCIDENT = {path!r}


def test_recorded_incident_replays_without_a_violation() -> None:
    found = replay(unpack(Path(INCIDENT).read_bytes(), INCIDENT), through=True)
    assert found
    assert [each.violations for each in found.values() if each.violations] == []
'''
_EQUAL = "    assert [str(each.difference) for each in found.values() if each.difference] == []\n"


@contextmanager
def recordings(target: Target) -> Iterator[Path]:
    """The data folder with the recordings; `everywhere`: a temporary one with those of all machines."""
    from sluice.cluster.settings.config import load

    values = load(target.config, data_dir=target.data_dir).values
    if not target.everywhere:
        yield values.data_dir
        return
    from sluice.cluster.launch import discovery
    from sluice.cluster.launch.everywhere import gathered
    from sluice.storage.errors import Unavailable

    found = (values.address, None) if values.address else discovery.find(values.data_dir)
    if found is None:
        raise Unavailable(f"no cluster is running on {values.data_dir.absolute()}; leave out --everywhere")
    with gathered(found[0], values.data_dir) as folder:
        yield folder


def chunks_of(target: Target) -> list[RecordedCalls]:
    """Return what was recorded of a subscription. Raises NotFound."""
    from sluice.cluster.host.recordings import recorded_chunks
    from sluice.storage.errors import NotFound

    with recordings(target) as folder:
        found = list(recorded_chunks(folder, target.topic, target.subscription))
        if not found:
            what = f"{target.subscription} on {target.topic}"
            raise NotFound(f"nothing is recorded of {what} in {folder}; see recorder_bytes")
        return found


@app.command()
@takes("topic", "subscription", "everywhere", "config")
def export(
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")],
    start: FromOption = "0",
    end: ToOption = "",
) -> None:
    """Write what was recorded of a subscription into one file: no payloads, and keys as hashes alone."""
    from sluice.cluster.host.recordings import export_incident

    with recordings(target) as folder:
        size = export_incident(folder, target.topic, target.subscription, _span(start, end), output)
    say(f"wrote {size} bytes to {output}; `{COMMAND} incident replay {output}` makes its decisions again")


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An exported incident.", exists=True, dir_okay=False)],
    test: Annotated[Path | None, typer.Option("--test", metavar="FILE.py", help="Write it as a test.")] = None,
    json: JsonOption = False,
) -> None:
    """Make the recorded decisions again, and compare each with the recorded one. Exit code 1: they differ, or a promise
    was broken.
    """
    from sluice.actors.recorder.flight_file import unpack
    from sluice.actors.recorder.replay import replay as made_again
    from sluice.storage.errors import Corrupt, Invalid

    try:
        found = made_again(unpack(file.read_bytes(), str(file)))
    except Corrupt as error:
        raise Invalid(str(error)) from None
    rows = [
        {
            "topic": of.topic,
            "partition": of.partition,
            "subscription": of.subscription,
            "epoch": of.epoch,
            "from": iso_time(each.first) if each.first else "",
            "to": iso_time(each.last) if each.last else "",
            "calls": each.calls,
            "sent": each.decisions,
            "gaps": each.gaps,
            "without a state": each.missing,
            "difference": str(each.difference or ""),
            "violation": (each.violations or [""])[0],
            "remarks": [f"{iso_time(at)} {text}" for at, text in each.remarks],
        }
        for of, each in found.items()
    ]
    if json:
        show_json(rows)
    else:
        show(rows, False, {name: name for name in rows[0] if name != "remarks"} if rows else {})
        for remark in sorted(remark for row in rows for remark in cast("list[str]", row["remarks"])):
            say(remark)
    clean = all(each.clean for each in found.values())
    if test is not None:
        test.write_text(_TEST.format(path=str(file.resolve())) + (_EQUAL if clean else ""), encoding="utf-8")
        say(f"wrote {test}")
    for each in found.values():
        for violation in each.violations:
            say(f"a promise was broken: {violation}")
        if each.difference is not None:
            say(f"first difference at {iso_time(each.difference.at)}: {each.difference}")
    if not clean:
        raise typer.Exit(1)


_LATEST = 1 << 60
_BAR = 30


@takes("topic", "subscription", "json", "everywhere", "config")
def timeline(
    target: Target,
    key: Annotated[str, typer.Option("--key", help="The key.")],
    start: FromOption = "0",
    end: ToOption = "",
) -> None:
    """Show what happened to a key, one line each, from what this machine recorded; over changes of owner as well."""
    from sluice.actors.recorder.timeline import timeline as lines_of

    lines = lines_of(chunks_of(target), _hash(key), *_span(start, end))
    rows = [{"at": iso_time(line.at), "partition": line.partition, "what": line.text} for line in lines]
    if target.json:
        show_json(rows)
    else:
        show(rows, False, {"at": "at", "what": "what"})


@takes("topic", "subscription", "json", "everywhere", "config")
def waits(target: Target, start: FromOption = "0", end: ToOption = "") -> None:
    """Show what messages waited for between their confirmation and their first delivery, the longest first."""
    from sluice.actors.recorder.timeline import waits as waits_of

    found = waits_of(chunks_of(target), *_span(start, end))
    rows: list[dict[str, Any]] = [
        {
            "reason": reason,
            "messageSeconds": round(milliseconds / 1000, 3),
            "share": f"{100 * milliseconds / max(found.whole, 1):.1f} %",
            "bar": "#" * round(_BAR * milliseconds / max(found.whole, 1)),
        }
        for reason, milliseconds in found.by_reason.most_common()
    ]
    consumers, holders = _longest("consumer", found.by_consumer), _longest("consumer", found.by_holder)
    hashes = _longest("keyHash", found.by_hash)
    if target.json:
        show_json({"reasons": rows, "consumers": consumers, "holders": holders, "keys": hashes})
        return
    for each in (rows, consumers, holders, hashes):
        for row in each:
            row["messageSeconds"] = f"{row['messageSeconds']:.3f}"
    seconds = {"messageSeconds": "message-seconds"}
    show(rows, False, {"reason": "reason", **seconds, "share": "share", "bar": "bar"})
    show(consumers, False, {"consumer": "waited for", **seconds}, "consumers")
    if holders:
        show(holders, False, {"consumer": "held by", **seconds}, "draining")
    show(hashes, False, {"keyHash": "key (hash)", **seconds}, "keys")


def _longest(name: str, waited: Counter[Any]) -> list[dict[str, Any]]:
    return [{name: whose, "messageSeconds": ms / 1000} for whose, ms in waited.most_common(10)]


def explained(target: Target, key: str, at: int) -> dict[str, Any]:
    """Return what the gates said of a key at a time (ms). Raises NotFound."""
    from sluice.actors.recorder.timeline import explain_at

    return explain_at(chunks_of(target), _hash(key), at)


def _span(start: str, end: str) -> tuple[int, int]:
    """Return both ends of a span in ms; an empty end stands for now and later."""
    return moment(start), moment(end) if end else _LATEST


def _hash(key: str) -> int:
    from sluice.storage.format.hashing import key_bytes, masked_hash

    return int(masked_hash(key_bytes(key)))
