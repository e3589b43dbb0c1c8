"""`sluice schemas ...`: the schemas of topics, in all of their versions."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sluice.cli.options import DryRunOption
from sluice.cli.output import say, show, show_json, show_one
from sluice.cli.target import Target, takes, topic_path
from sluice.storage.errors import Conflict, Invalid

app = typer.Typer(no_args_is_help=True, help="Register, show, compare and delete schemas of topics.")

VersionOption = Annotated[int | None, typer.Option("--version", min=0, help="Default: the newest.")]
FileArgument = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A definition, or JSON with its type, as Pulsar's tools take it; - is stdin."),
]
TypeOption = Annotated[
    Literal["AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "STRING", "BYTES"],
    typer.Option("--type", case_sensitive=False, help="Kind of schema, unless the file names one."),
]


@app.command("list")
@takes("topic", "json", "role_token")
def list_schemas(target: Target) -> None:
    """List the versions of a topic's schema. --json has the definitions."""
    rows = target.http().ask("GET", _path(target, "schemas"))["getSchemaResponses"]
    if not target.json:
        rows = [{**row, "fields": _fields(row["data"])} for row in rows]
    show(rows, target.json, {"version": "version", "type": "type", "fields": "fields"})


@app.command()
@takes("topic", "json", "role_token")
def get(target: Target, version: VersionOption = None) -> None:
    """Show a schema with its definition."""
    found = target.http().ask("GET", _path(target, "schema" if version is None else f"schema/{version}"))
    if target.json:
        show_json(found)
        return
    show_one({name: found[name] for name in ("version", "type", "properties")}, False)
    print(_pretty(found["data"]))


@app.command()
@takes("topic", "json", "role_token")
def upload(target: Target, file: FileArgument, kind: TypeOption = "AVRO") -> None:
    """Register a schema. One that does not go with those before it is refused."""
    answer = target.http().ask("POST", _path(target, "schema"), _read(file, kind))
    if target.json:
        show_json(answer)
        return
    say(f"topic {target.topic} has this schema as version {answer['version']['version']}")


@app.command()
@takes("topic", "json", "role_token")
def compatibility(target: Target, file: FileArgument, kind: TypeOption = "AVRO") -> int:
    """Say whether a schema goes with those that the topic has. Exit code 2: it does not."""
    answer = target.http().ask("POST", _path(target, "compatibility"), _read(file, kind))
    if target.json:
        show_json(answer)
        return 0 if answer["compatibility"] else 2
    if not answer["compatibility"]:
        raise Conflict(f"this schema does not go with those of {target.topic}: {answer['schemaCompatibilityStrategy']}")
    say(f"this schema goes with those of {target.topic}: {answer['schemaCompatibilityStrategy']}")
    return 0


@app.command()
@takes("topic", "role_token")
def delete(target: Target, dry_run: DryRunOption = False) -> None:
    """Delete all schemas of a topic. Its messages stay."""
    if dry_run:
        say(f"would delete the schemas of {target.topic}")
        return
    target.http().ask("DELETE", _path(target, "schema"))
    say(f"deleted the schemas of {target.topic}")


def _path(target: Target, rest: str) -> str:
    return f"/admin/v2/schemas/{topic_path(target.topic)}/{rest}"


def _read(file: Path, kind: str) -> dict[str, Any]:
    """The schema in a file, as Pulsar's tools send it. Raises Invalid, OSError."""
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        text = data.decode()
        given = json_module.loads(text) if text.lstrip().startswith("{") else None
    except ValueError as error:
        raise Invalid(f"{file} is no schema: {error}") from None
    if isinstance(given, dict) and isinstance(given.get("schema"), str):
        return {"type": given.get("type", kind), "schema": given["schema"], "properties": given.get("properties") or {}}
    return {"type": kind, "schema": text, "properties": {}}


def _fields(definition: str) -> str:
    """The names of a definition's fields; nothing of one that is not a record."""
    try:
        found = json_module.loads(definition)["fields"]
        return ", ".join(str(each["name"]) for each in found)
    except (ValueError, KeyError, TypeError):
        return ""


def _pretty(definition: str) -> str:
    from sluice.cluster.base.printable import printable

    try:
        return printable(json_module.dumps(json_module.loads(definition), indent=2, ensure_ascii=False))
    except ValueError:
        return printable(definition)
