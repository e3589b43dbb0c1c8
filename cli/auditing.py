"""`sluice audit`: who did what, and who was refused."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from sluice.cli.options import ConfigOption, DataDirOption, JsonOption
from sluice.cli.output import say, show, show_json
from sluice.storage.errors import Invalid

MOST_SHOWN = 1_000


def audit(
    since: Annotated[
        str, typer.Option("--since", help="Of the last 10m, 2h, 7d, or since a time like 2026-11-24.")
    ] = "",
    role: Annotated[str | None, typer.Option("--role", help="Of this role alone.")] = None,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show who did what to which topic or subscription, and who was refused, as this machine's gateways wrote it down.

    It is written where `authorization_enabled` is set. In a table the newest lines are shown.
    """
    from sluice.cluster.base.audit import audited_lines
    from sluice.cluster.settings.config import load

    folder = load(config, data_dir=data_dir).values.data_dir
    lines = list(audited_lines(folder, since=_moment(since), role=role))
    if json:
        for line in lines:
            show_json(line)
        return
    if len(lines) > MOST_SHOWN:
        say(f"the newest {MOST_SHOWN} of {len(lines)} lines; --json shows all, and --since and --role choose")
    show([{name: line.get(name, "") for name in _COLUMNS} for line in lines[-MOST_SHOWN:]], False, _COLUMNS)


_COLUMNS = {
    "time": "time", "role": "role", "address": "address", "what": "what", "topic": "topic",
    "subscription": "subscription", "outcome": "outcome", "reason": "reason",
}  # fmt: skip


def _moment(text: str) -> str:
    """A time as the audit has it. Raises Invalid."""
    from sluice.cluster.settings.config import parse_duration

    if not text:
        return ""
    try:
        ago = datetime.timedelta(milliseconds=parse_duration(text))
        at = datetime.datetime.now(datetime.UTC) - ago
    except (ValueError, OverflowError):
        try:
            at = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
        except (ValueError, OverflowError):  # its zone may lie before the calendar begins
            raise Invalid(f"--since is 10m, 2h, 7d or a time like 2026-11-24T10:00, not {text[:40]!r}") from None
    return at.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
