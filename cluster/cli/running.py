"""`sluice up`, `down`, `status`, and `sluice config show`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from cluster.cli.options import (
    AddressOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    ObjectsOption,
    S3EndpointOption,
    SetOption,
    WatchOption,
    parse_settings,
)
from cluster.cli.outcome import say
from cluster.cli.output import show, show_json, show_one, watch

config_app = typer.Typer(no_args_is_help=True, help="Show the configuration.")


def up(
    bookies: Annotated[int | None, typer.Option("--bookies", min=1, help="How many bookies to start.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Ray nodes to start on this machine.")] = 1,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    objects: ObjectsOption = None,
    s3_endpoint: S3EndpointOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads the default and never changes it)
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Start a cluster (or join the Ray cluster at --address); it stays up after this command has ended."""
    from cluster.config import load

    flags: dict[str, object] = _nested(parse_settings(settings))
    given = {
        "bookies": bookies,
        "data_dir": data_dir,
        "address": address,
        "objects": objects,
        "s3_endpoint_url": s3_endpoint,
    }
    loaded = load(config, **(flags | {name: value for name, value in given.items() if value is not None}))
    answer = _launch("up", loaded.values, nodes)
    if json:
        show_json(answer)
    else:
        say(f"up at {answer['address']}; the data is in {answer['data_dir']}")


def down(data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """Stop the cluster cleanly. The data stays; the next `up` finds everything again."""
    from cluster.config import load

    folder = load(config, data_dir=data_dir).values.data_dir
    _launch("down", folder)
    say(f"down; the data stays in {folder.absolute()}")


def status(
    json: JsonOption = False,
    again: WatchOption = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    config: ConfigOption = None,
) -> None:
    """Show nodes, actors, topics with their owners and epochs, disk, objects, alarms."""
    from cluster.config import load

    values = load(config, data_dir=data_dir, address=address).values
    watch(again, lambda: _show_status(_launch("status", values), json))


@config_app.command("show")
def show_config(
    settings: SetOption = [],  # noqa: B006 (typer reads the default and never changes it)
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Print the configuration that applies here and now, as TOML; what is not a default says where it comes from."""
    from cluster.config import load, to_toml

    loaded = load(config, **_nested(parse_settings(settings)))
    if json:
        show_json({"values": loaded.values.model_dump(mode="json"), "sources": loaded.sources})
    else:
        print(to_toml(loaded), end="")


def _nested(pairs: Mapping[str, str]) -> dict[str, object]:
    """`topic.partitions` as a section in a section."""
    tree: dict[str, Any] = {}
    for key, value in pairs.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    return tree


def _launch(verb: str, *arguments: object) -> Any:
    return getattr(import_module("cluster.launch"), verb)(*arguments)


def _show_status(answer: Mapping[str, Any], json: bool) -> None:
    if json:
        show_json(answer)
        return
    show_one({name: value for name, value in answer.items() if not _is_table(value)}, False)
    for name, value in answer.items():
        if _is_table(value):
            show(value, False, title=name)


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)
