"""Options and arguments that several commands share, each declared once, checked where they come in."""

from __future__ import annotations

import math
import socket
from pathlib import Path
from typing import Annotated, Literal

import typer

from sluice.storage.errors import Unavailable

CONNECT_SECONDS = 3
"""How long a connection to an address may take."""

MOST_DIGITS = 5
"""Of a port."""

MOST = 10**12
"""More messages than any topic has, and a number that every library takes."""
MAX_DURATION_MS = 100 * 365 * 86_400_000
LEAST_MS, MOST_MS = 10**11, 10**14
"""Bare numbers that are times in milliseconds: 1973 to 5138. Seconds and microseconds of our days lie outside."""

_SHOWN = 40


def _name(kind: str) -> object:
    def check(value: str | None) -> str | None:
        from sluice.actors.ownership.names import check_name

        return None if value is None else check_name(kind, value)

    return check


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`["roll_ms=1h"]` as a dict. Raises typer.BadParameter if a pair has no equals sign."""
    for pair in pairs:
        if "=" not in pair:
            raise typer.BadParameter(f"--set needs KEY=VALUE, not {pair!r}")
    return {key.strip(): value.strip() for key, _, value in (pair.partition("=") for pair in pairs)}


def milliseconds(text: str) -> int:
    """Callback for durations: `250ms`, `10s`, `1h30m`, or a bare number of milliseconds; a hundred years at most."""
    from sluice.cluster.settings.config import parse_duration

    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if duration > MAX_DURATION_MS:
        raise typer.BadParameter(f"{text[:_SHOWN]!r} is more than a hundred years")
    return duration


def finite(value: float | None) -> float | None:
    """Callback for numbers with a fraction: `inf` and `nan` are none. Raises BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number of anything")
    return value


def size(text: str) -> int:
    """Bytes of `64MB` or a bare number. Raises BadParameter."""
    from sluice.cluster.settings.config import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def moment(text: str) -> int:
    """A point in time as milliseconds since 1970: such a number, or ISO-8601 (with its zone, else local time)."""
    from datetime import datetime

    if text.isdecimal():
        number = int(text) if text.isascii() and len(text) <= len(str(MOST_MS)) else -1
        if number and not LEAST_MS <= number < MOST_MS:
            raise typer.BadParameter(
                f"{text[:_SHOWN]!r} is not a time in milliseconds since 1970 (seconds have three digits less, "
                "microseconds three more); write 2026-12-24T18:00:00Z"
            )
        return number
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text[:_SHOWN]!r} is not a time; write 2026-12-24T18:00:00Z or milliseconds"
        ) from None


def _check_address(text: str | None) -> str | None:
    """HOST:PORT at which a process listens. Ray itself would wait for more than a minute."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or len(port) > MOST_DIGITS or not 0 < int(port) < 1 << 16:
        raise typer.BadParameter(f"an address is HOST:PORT, not {text[:_SHOWN]!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except UnicodeError:  # such a name cannot even be looked up
        raise typer.BadParameter(f"an address is HOST:PORT, not {text[:_SHOWN]!r}") from None
    except OSError as error:
        raise Unavailable(f"nothing answers at {text}: {error.strerror or error}") from None
    return text


def _folder(text: str) -> Path:
    """A folder by name. A variable of the shell that is not set would else mean the current one."""
    if not text:
        raise typer.BadParameter("name a folder; `.` is the current one")
    return Path(text)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
WatchOption = Annotated[bool, typer.Option("--watch", help="Show it again every two seconds until Ctrl-C.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what the command would do.")]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        callback=_check_address,
        help="Ray cluster that Sluice runs in. Default: the local one.",
    ),
]
RoleTokenOption = Annotated[
    str | None,
    typer.Option(
        "--role-token",
        metavar="TOKEN",
        help="Ask as the role of this token. Default: as the operator of the data folder.",
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file (TOML). Default: ./sluice.toml.")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", parser=_folder, help="Where the data lies. Default: ./sluice-data."),
]
ObjectsOption = Annotated[
    str | None, typer.Option("--objects", metavar="URL", help="Where snapshots go, s3://bucket/prefix.")
]
S3EndpointOption = Annotated[
    str | None, typer.Option("--s3-endpoint", metavar="URL", help="S3 server to use in place of AWS.")
]
EverywhereOption = Annotated[
    bool, typer.Option("--everywhere", help="Also what other machines of the running cluster recorded.")
]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="A setting, see `config show`; can be repeated.")
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", callback=_name("topic"), help="Name of the topic.")]
SubscriptionArgument = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", callback=_name("subscription"), help="Name of the subscription.")
]
SubscriptionOption = Annotated[
    str,
    typer.Option("--subscription", "-s", metavar="NAME", callback=_name("subscription"), help="Subscription to use."),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="A message key.")]

NackOrderOption = Annotated[
    Literal["none", "key"],
    typer.Option("--nack-order", help="key: a message that is given back comes again before later ones of its key."),
]
ConsumerNameOption = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", callback=_name("consumer"), help="Name under which the consumer can come back."
    ),
]
GraceOption = Annotated[
    int | None,
    typer.Option("--grace-ms", min=0, help="How long (ms) the keys of a consumer that left are kept for its name."),
]
