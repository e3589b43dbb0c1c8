"""`sluice up`, `down`, `status`, and `sluice config show`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.options import (
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
from sluice.cli.output import is_table, say, show, show_json, show_one, watch
from sluice.cli.topics import TOPICS
from sluice.cluster.base.printable import printable
from sluice.cluster.base.version import COMMAND

if TYPE_CHECKING:
    from sluice.cluster.settings.config import Configuration

MOST_NODES = 64
"""More Ray nodes than a machine is asked to run: each costs about 150 MB of memory."""

_ACTORS = {"name": "name", "process": "process", "state": "state", "restarts": "restarts", "problem": "problem"}
"""The columns of the table; with --json everything is shown."""

config_app = typer.Typer(no_args_is_help=True, help="Show the configuration.")
EmbeddedOption = Annotated[
    bool, typer.Option("--embedded", help="In one process, without Ray: small, and ready at once.")
]
ForegroundOption = Annotated[
    bool, typer.Option("--foreground", help="With --embedded: serve in this process until a signal ends it.")
]
ForgetOption = Annotated[
    bool, typer.Option("--forget", help="Give up the data of a folder that the metadata does not know: set it aside.")
]


def up(
    bookies: Annotated[int | None, typer.Option("--bookies", min=1, help="How many bookies to start.")] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=MOST_NODES, help="Ray nodes to start on this machine.")
    ] = 1,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    objects: ObjectsOption = None,
    s3_endpoint: S3EndpointOption = None,
    embedded: EmbeddedOption = False,
    foreground: ForegroundOption = False,
    forget: ForgetOption = False,
    settings: SetOption = [],  # noqa: B006 (typer reads the default and never changes it)
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Start a cluster (or join the Ray cluster at --address); it stays up after this command has ended.

    Exit 2 if nothing can be written to it, for example because the disk is full; what it holds can still be read.
    """
    if embedded and (nodes > 1 or address):
        raise typer.BadParameter("--embedded is one process: it has no --nodes and no --address")
    if foreground and not embedded:
        raise typer.BadParameter("--foreground is for one process: give --embedded too")
    from sluice.cluster.launch import launch, standalone
    from sluice.cluster.settings.config import load

    flags: dict[str, object] = _nested(parse_settings(settings))
    given = {
        "bookies": bookies,
        "data_dir": data_dir,
        "address": address,
        "objects": objects,
        "s3_endpoint_url": s3_endpoint,
    }
    loaded = load(config, **(flags | {name: value for name, value in given.items() if value is not None}))
    if forget:
        say(launch.forget(loaded.values))
    if foreground:
        return _serve(loaded.values)
    answer = standalone.up(loaded.values) if embedded else launch.up(loaded.values, nodes)
    for name, (has, asked) in answer.get("kept", {}).items():
        if nodes > 1 if name == "nodes" else _was_given(name, loaded.sources):
            say(f"{name} stays {has!r}, not {asked!r}: the cluster runs already; use `{COMMAND} down`, then `up`")
    for alarm in answer.get("alarms", ()):
        say(f"alarm: {alarm}")
    if json:
        show_json(answer)
    else:
        _say_where(answer)
    return 2 if answer.get("read_only") else 0


def _say_where(answer: Mapping[str, Any]) -> None:
    only = ", but nothing can be written to it" if answer.get("read_only") else ""
    say(f"up at {answer['address']}{only}; the data is in {answer['data_dir']}")
    if answer.get("pulsar"):
        say(answer["pulsar"])


def _serve(values: Configuration) -> int:
    from sluice.cluster.launch import standalone

    with standalone.serving(values.cluster_options()) as endpoint:
        say(f"up at {endpoint.host}:{endpoint.port}; the data is in {values.data_dir}")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


def _was_given(option: str, sources: Mapping[str, str]) -> bool:
    """Whether the user chose it, as an option, in the environment or in the file; a default does not count."""
    return option in sources or (option == "bookie_settings" and any(key.startswith("bookie.") for key in sources))


def down(data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """Stop the cluster cleanly. The data stays; the next `up` finds everything again."""
    from sluice.cluster.launch import launch
    from sluice.cluster.settings.config import load

    folder = load(config, data_dir=data_dir).values.data_dir
    launch.down(folder)
    say(f"down; the data stays in {folder.absolute()}")


def status(
    json: JsonOption = False,
    again: WatchOption = False,
    data_dir: DataDirOption = None,
    address: AddressOption = None,
    config: ConfigOption = None,
) -> None:
    """Show nodes, actors and where they run, topics, disk, objects, alarms.

    Owners of partitions and their epochs: `topics partitions`.
    """
    from sluice.cluster.launch.status import describe
    from sluice.cluster.settings.config import load

    values = load(config, data_dir=data_dir, address=address).values
    watch(again, lambda: _show_status(describe(values), json))


@config_app.command("show")
def show_config(
    settings: SetOption = [],  # noqa: B006 (typer reads the default and never changes it)
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Print the configuration in force, as TOML; values that are not defaults say where they come from."""
    from sluice.cluster.settings.config import load, to_toml

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


def _show_status(answer: Mapping[str, Any], json: bool) -> None:
    if json:
        show_json(answer)
        return
    tables = [name for name, value in answer.items() if is_table(value)] + ["alarms", "actors"]
    show_one({name: value for name, value in answer.items() if name not in tables}, False)
    for name, value in answer.items():
        if name == "actors":
            where = [{**row, "process": row["address"].partition("/")[0]} for row in value]
            show(where, False, _ACTORS, title=name)
        elif is_table(value):
            show(value, False, TOPICS if name == "topics" else None, title=name)
    # Last, where they are seen, and one a line.
    for line in [f"alarm: {alarm}" for alarm in answer.get("alarms", ())] or ["no alarms"]:
        print(printable(line, lines=False))
