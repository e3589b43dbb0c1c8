"""`sluice flood` and `sluice chaos`: load from Spark, faults, and a verdict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sluice.cli.options import (
    AddressOption,
    NackOrderOption,
    ObjectsOption,
    S3EndpointOption,
    SetOption,
    finite,
    milliseconds,
    parse_settings,
)
from sluice.cluster.base.extras import require
from sluice.cluster.base.version import COMMAND
from sluice.cluster.node.environment import TOKEN_PATH
from sluice.storage.errors import Invalid

Policy = Literal["draining_hashes", "last_sent_position", "read_position"]
Scenario = Literal["rolling-restart"]
Workload = Literal["joins"]
Client = Literal["sluice", "pulsar"]

PartitionsOption = Annotated[int, typer.Option("--partitions", min=1, max=1024, help="Partitions of the topic.")]
MessagesOption = Annotated[int, typer.Option("--messages", min=1, help="How many messages to publish.")]
SizeOption = Annotated[int, typer.Option("--size", min=16, max=5 << 20, help="Bytes of a message's payload.")]
KeysOption = Annotated[int, typer.Option("--keys", min=1, help="How many different keys.")]
SkewOption = Annotated[
    float, typer.Option("--skew", min=0, callback=finite, help="Zipf exponent of the keys; 0 is uniform.")
]
MOST_CONSUMERS, CONSUMERS = 256, 4
ConsumersOption = Annotated[
    str,
    typer.Option(
        "--consumers",
        metavar="N|ray[:N]",
        help="How many consumers, each a process; ray: as workers of a pool that Ray places, 4 or so many.",
    ),
]
DelayedOption = Annotated[
    float,
    typer.Option(
        "--delayed",
        metavar="FRACTION",
        min=0,
        max=1,
        callback=finite,
        help="Part of the messages that is delayed; in a flood in acts, part of the second act.",
    ),
]
RateOption = Annotated[
    float, typer.Option("--rate", min=0, callback=finite, help="Messages per second; 0 is as fast as can be.")
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, help="Same seed, same messages and same faults. Default: a new one.")
]
BookiesOption = Annotated[int, typer.Option("--bookies", min=2, help="Bookies of the cluster that is started.")]
PolicyOption = Annotated[Policy, typer.Option("--policy", help="Key_Shared policy to test.")]
MOST_MINUTES = 366 * 24 * 60
MinutesOption = Annotated[
    float | None,
    typer.Option("--minutes", min=0.1, max=MOST_MINUTES, callback=finite, help="How long, in place of --messages."),
]
ChaosMinutesOption = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        min=0.1,
        max=MOST_MINUTES,
        callback=finite,
        help="How long. Default: 5, and for a scenario as long as it may take.",
    ),
]
DataOption = Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Where to put the data.")]
CHAOS_STALL_S = 120.0
"""So long nothing may move: a busy machine takes a minute until the bookies of a lost node are back."""
BrokenOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data folder of the running cluster; else where to put the data."),
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the data and the histories afterwards.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")]
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the report as one HTML page.")]

WorkloadOption = Annotated[
    Workload | None,
    typer.Option("--workload", help="A set of options; joins: few keys, slow consumers, many of which come and go."),
]
RestartsOption = Annotated[
    int,
    typer.Option("--restarts", min=0, help="How many faults, in turn: join, hang, leave and return, kill, freeze."),
]
ClientOption = Annotated[
    Client,
    typer.Option(
        "--client",
        help="Which client publishes and consumes; pulsar: the unchanged pulsar-client.",
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit 1 as well when a promise could not be tested (not shown).")
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Print the address of a live page, with a button for every fault.")
]

NackOption = Annotated[
    float,
    typer.Option(
        "--nack", metavar="FRACTION", callback=finite, help="Part of the messages that consumers give back once."
    ),
]
FaultsOption = Annotated[
    str | None,
    typer.Option(
        "--faults",
        metavar="A,B,...",
        help="For example kill-consumer,kill-bookie. Default: all that this cluster can stand.",
    ),
]
EveryOption = Annotated[
    str, typer.Option("--every", metavar="DURATION", help="Time between two faults, for example 500ms or 3s.")
]

_INPUT = "Real input"
KeyColumnOption = Annotated[
    str | None, typer.Option("--key-column", help="Column that is the key.", rich_help_panel=_INPUT)
]
TimeColumnOption = Annotated[
    str | None, typer.Option("--time-column", help="Column that gives the order.", rich_help_panel=_INPUT)
]
PayloadColumnsOption = Annotated[
    str | None,
    typer.Option("--payload-columns", metavar="A,B,...", help="Default: all columns.", rich_help_panel=_INPUT),
]
RESTART_S = 2.0
"""About how long a consumer's restart takes on a machine that is busy with the load."""


def flood(
    context: typer.Context,
    partitions: PartitionsOption = 4,
    messages: MessagesOption = 1_000_000,
    size: SizeOption = 100,
    keys: KeysOption = 10_000,
    skew: SkewOption = 1.0,
    consumers: ConsumersOption = str(CONSUMERS),
    restarts: RestartsOption = 5,
    delayed: DelayedOption = 0.0,
    rate: RateOption = 0.0,
    minutes: MinutesOption = None,
    seed: SeedOption = None,
    policy: PolicyOption = "draining_hashes",
    nack: NackOption = 0.0,
    nack_order: NackOrderOption = "none",
    input: Annotated[
        str | None,
        typer.Option("--input", metavar="PATH", help="Publish this file's rows.", rich_help_panel=_INPUT),
    ] = None,
    key_column: KeyColumnOption = None,
    payload_columns: PayloadColumnsOption = None,
    time_column: TimeColumnOption = None,
    bookies: BookiesOption = 3,
    objects: ObjectsOption = None,
    s3_endpoint: S3EndpointOption = None,
    data_dir: DataOption = None,
    keep: KeepOption = False,
    json: JsonFile = None,
    report: ReportFile = None,
    workload: WorkloadOption = None,
    strict: StrictOption = False,
    client: ClientOption = "sluice",
    watch: WatchOption = False,
    address: AddressOption = None,
) -> int:
    """Start everything, flood it from Spark, restart consumers meanwhile, and judge what was delivered.

    Exit 0 when every promise held, 1 when one was broken.
    """
    _check_input(input, key_column, payload_columns or time_column)
    many, pool = _consumers(consumers)
    _check_length(context, minutes)
    columns = [name.strip() for name in payload_columns.split(",") if name.strip()] if payload_columns else None
    given: dict[str, Any] = dict(  # noqa: C408 - the names are parameters
        partitions=partitions, messages=messages, size=size, keys=keys, skew=skew, consumers=many, pool=pool,
        restarts=restarts, delayed=delayed, rate=rate, minutes=minutes, seed=seed, policy=policy, nack=nack,
        nack_order=nack_order, input=input,
        key_column=key_column, payload_columns=columns, time_column=time_column, bookies=bookies, objects=objects,
        s3_endpoint_url=s3_endpoint, data_dir=data_dir, keep=keep, json=json, report=report, address=_joined(address),
        strict=strict, watch=watch, client=client,
    )  # fmt: skip
    return _flood(**_asked_for(context, given, workload))


def _consumers(text: str) -> tuple[int, bool]:
    """How many, and whether they are workers of a pool. Raises BadParameter."""
    kind, _, number = text.partition(":") if text.startswith("ray") else ("", "", text)
    number = str(CONSUMERS) if text == "ray" else number
    if kind not in ("", "ray") or not number.isascii() or not number.isdecimal():
        raise typer.BadParameter(f"--consumers is a number, ray, or ray:NUMBER, not {text!r}")
    if not 1 <= int(number) <= MOST_CONSUMERS:
        raise typer.BadParameter(f"--consumers is 1 to {MOST_CONSUMERS}, not {number}")
    return int(number), bool(kind)


def _check_length(context: typer.Context, minutes: float | None) -> None:
    """Raises BadParameter if the load is to end for two reasons."""
    if minutes is not None and _is_given(context, "messages"):
        raise typer.BadParameter("give --messages or --minutes, not both")


def _check_input(input: str | None, key_column: str | None, others: str | None) -> None:
    """Raises BadParameter if the options of real input do not fit together."""
    if input is None and (key_column or others):
        raise typer.BadParameter("--key-column, --payload-columns and --time-column need --input")
    if input is not None and not key_column:
        raise typer.BadParameter("--input needs --key-column: the column whose values keep their order")


def chaos(
    minutes: ChaosMinutesOption = None,
    faults: FaultsOption = None,
    scenario: Annotated[
        Scenario | None, typer.Option("--scenario", help="Restart one consumer after the other, in place of --faults.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often a scenario is repeated.")] = 3,
    every: EveryOption = "3s",
    partitions: PartitionsOption = 4,
    size: SizeOption = 100,
    keys: KeysOption = 10_000,
    consumers: ConsumersOption = str(CONSUMERS),
    delayed: DelayedOption = 0.0,
    rate: RateOption = 20_000.0,
    seed: SeedOption = None,
    policy: PolicyOption = "draining_hashes",
    settings: SetOption = [],  # noqa: B006 (typer reads the default and never changes it)
    bookies: BookiesOption = 3,
    data_dir: BrokenOption = None,
    keep: KeepOption = False,
    json: JsonFile = None,
    report: ReportFile = None,
    client: ClientOption = "sluice",
    watch: WatchOption = False,
    address: AddressOption = None,
) -> int:
    """Break things on the running cluster (or a new one) under load, again and again, and judge as `flood` does.

    Exit 0 when every promise held, 1 when one was broken.
    """
    from sluice.loadgen.base.kinds import KINDS

    period = milliseconds(every)
    if period <= 0:
        raise typer.BadParameter("--every must be more than 0")
    many, pool = _consumers(consumers)
    names = [name.strip() for name in faults.split(",") if name.strip()] if faults else ["all"]
    unknown = [name for name in names if name not in KINDS and names != ["all"]]
    if unknown:
        raise typer.BadParameter(f"there is no fault {unknown[0]!r}; there are {', '.join(KINDS)}")
    if faults and scenario:
        raise typer.BadParameter("--scenario has its own faults; give it or --faults")
    if minutes is None:
        minutes = max(5.0, many * rounds * max(period / 1000, RESTART_S) / 60) if scenario else 5.0
    return _flood(
        minutes=minutes, faults=names, fault_every_ms=period, partitions=partitions, size=size,
        keys=keys, consumers=many, pool=pool, delayed=delayed, rate=rate, seed=seed, policy=policy, bookies=bookies,
        data_dir=_beside_a_cluster(data_dir), keep=keep, json=json, report=report, topic_settings=_given(settings),
        **_cluster(address), scenario=scenario or "", rounds=rounds, watch=watch, client=client, stall_s=CHAOS_STALL_S,
    )  # fmt: skip


def _given(pairs: list[str]) -> dict[str, Any]:
    """Settings of a topic, from KEY=VALUE. Raises BadParameter, Invalid."""
    from msgspec import structs

    from sluice.cluster.settings.config import load

    given = parse_settings(pairs)
    chosen = structs.asdict(load().values.topic_settings(**given))
    return {name: chosen[name] for name in given}


def _asked_for(context: typer.Context, values: dict[str, Any], workload: str | None) -> dict[str, Any]:
    """All values; with a workload those alone that the command line has, because the rest is the workload's own."""
    if workload is None:
        return values
    pool = {"pool": True} if values["pool"] else {}
    return {name: value for name, value in values.items() if _is_given(context, name)} | pool | {"workload": workload}


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, and not its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _cluster(address: str | None) -> dict[str, Any]:
    """The cluster that is broken, with its stores: that at an address, the one that runs, or else a new one with the
    object store that is configured. The S3 server is named if the cluster uses it.
    """
    from sluice.cluster.settings.config import load

    values, found = load().values, _joined(address) or _running()
    uses = any((url or "").startswith("s3://") for url in (values.metadata, values.objects))
    objects = values.objects if found is None and values.objects else None
    return {"address": found, "objects": objects, "s3_endpoint_url": values.s3_endpoint_url if uses else None}


def _beside_a_cluster(data_dir: Path | None) -> Path | None:
    """Return the folder for the data of the run; None for a folder on which a cluster runs, which only names that
    cluster.
    """
    from sluice.cluster.launch import discovery

    if data_dir is None or not (data_dir.is_dir() and discovery.find(data_dir)):
        return data_dir
    os.environ["SLUICE_DATA_DIR"] = str(data_dir.absolute())
    return None


def _running() -> str | None:
    """Address of the configured cluster, or of the one that `up` left running here; None: start one."""
    from sluice.cluster.launch import discovery, standalone
    from sluice.cluster.settings.config import load

    values = load().values
    found = discovery.find(values.data_dir)
    if values.address is None and found is not None:
        if standalone.process_on(values.data_dir):
            raise Invalid(
                f"the cluster on {values.data_dir} is one process, and this needs one of several; "
                f"end it with `{COMMAND} down`, or name another --data-dir"
            )
        return _use_token(*found)
    return values.address


def _joined(address: str | None) -> str | None:
    """The same address. If the cluster there is the one on the configured data folder, its token is used."""
    if address is not None:
        from sluice.cluster.launch import discovery
        from sluice.cluster.settings.config import load

        found = discovery.find(load().values.data_dir)
        if found is not None and found[0] == address:
            _use_token(*found)
    return address


def _use_token(address: str, token: Path | None) -> str:
    """The address of a cluster that was found, whose token is used from now on, unless one is named already."""
    if token is not None:
        os.environ.setdefault(TOKEN_PATH, str(token.absolute()))
    return address


def _flood(**options: object) -> int:
    require("a flood", "ray", "pyspark", "hdrh", "plotly")
    from sluice.loadgen.spark.java import ensure_java

    for name in ("json", "report"):
        path = options.get(name)
        if isinstance(path, Path):
            _check_writable(path.absolute())
    os.environ.update(ensure_java())  # before anything is started, so that a missing Java costs no time
    from sluice.loadgen.run.flood import flood_command  # Java first: this imports Spark

    return flood_command(**options)


def _check_writable(path: Path) -> None:
    """Check, before a run of minutes and not after it, that a file can be written. Raises Invalid."""
    if not path.parent.is_dir():
        raise Invalid(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise Invalid(f"cannot write {path}: it is a folder; name a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Invalid(f"cannot write {path}: permission denied")
