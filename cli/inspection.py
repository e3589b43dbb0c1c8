"""`sluice inspect ...`: what is on the disk, read without a running cluster."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.cli.options import DataDirOption, JsonOption
from sluice.cli.output import in_words, show
from sluice.storage.errors import Invalid

app = typer.Typer(no_args_is_help=True, help="Read the data on the disk, without a running cluster.")

VerifyOption = Annotated[bool, typer.Option("--verify", help="Check checksums, chain and quorum; exit 1 if one fails.")]


@app.command()
def ledger(
    number: Annotated[int | None, typer.Argument(metavar="[LEDGER]", min=0, help="One ledger. Default: all.")] = None,
    verify: VerifyOption = False,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> int:
    """Show ledgers: ensembles, entries, state, and on which bookies they lie."""
    return _inspect("ledger", verify, json, data_dir, ledger=number)


@app.command()
def cursor(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]")] = None,
    subscription: Annotated[str | None, typer.Argument(metavar="[SUBSCRIPTION]")] = None,
    verify: VerifyOption = False,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> int:
    """Show cursors: mark-delete positions and what is acknowledged beyond them."""
    return _inspect("cursor", verify, json, data_dir, topic=topic, subscription=subscription)


@app.command()
def journal(
    bookie: Annotated[str | None, typer.Argument(metavar="[BOOKIE]", help="One bookie. Default: all.")] = None,
    verify: VerifyOption = False,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> int:
    """Show the journal files of bookies: frames, bytes, torn ends."""
    return _inspect("journal", verify, json, data_dir, bookie=bookie)


@app.command()
def metadata(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only keys that begin with this.")] = "",
    verify: VerifyOption = False,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> int:
    """Show metadata records: key, version, value."""
    return _inspect("metadata", verify, json, data_dir, prefix=prefix)


def _inspect(what: str, verify: bool, json: bool, data_dir: Path | None, **arguments: object) -> int:
    from sluice.cluster import inspect
    from sluice.cluster.settings.config import load

    values = load(None, data_dir=data_dir).values
    if not values.data_dir.is_dir():
        raise Invalid(f"there is no data folder {values.data_dir}; name it with --data-dir")
    rows: list[dict[str, Any]] = getattr(inspect, what)(values, verify=verify, **arguments)
    show(rows if json else [_for_people(row) for row in rows], json)
    return 0 if all(row.get("ok", True) for row in rows) else 1


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """A row in which the value of a metadata record is words."""
    try:
        return {**row, "value": in_words(loads(row["value"]))}
    except (KeyError, ValueError, TypeError):
        return row
