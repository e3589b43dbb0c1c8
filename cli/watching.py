"""`sluice watch`: where the live page is, or the same in this terminal."""

from __future__ import annotations

import contextlib
import http.client
import json as json_module
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.cli.options import ConfigOption, DataDirOption
from sluice.cli.output import PIPE_WIDTH, say
from sluice.cluster.base.printable import printable
from sluice.cluster.base.version import COMMAND
from sluice.storage.errors import NotFound, Unavailable

EVENTS_SHOWN = 12
PRINT_EVERY_MS = 5_000
"""Between two pictures in a pipe, a file, or a terminal that cannot go back."""


def watch(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Which topic to show first.")] = "",
    subscription: Annotated[str, typer.Argument(metavar="[SUBSCRIPTION]", help="Default: the first one.")] = "",
    text: Annotated[bool, typer.Option("--text", help="Show it here instead of in a browser.")] = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> int:
    """Show live which consumer owns which keys, what drains, what waits and why, and what happens in the cluster.

    Prints the address of a page for a browser on this machine. The part after # is its secret: do not pass it on.
    """
    from sluice.cluster.settings.config import load

    folder = load(config, data_dir=data_dir).values.data_dir
    server = Server(folder)
    server.subscriptions()  # the files of a cluster that was killed lead nowhere
    if topic or text:
        topic, subscription = server.choose(topic, subscription)
    if not text:
        say(f"the live page: {server.page(topic, subscription)}")
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        show_text(server, topic, subscription)
    return 0


class Server:
    """The admin HTTP server of the cluster on a data folder. Raises NotFound if there is none."""

    def __init__(self, data_dir: Path) -> None:
        from sluice.cluster.http.admin_client import AdminClient

        self._http = AdminClient(data_dir)

    def page(self, topic: str, subscription: str) -> str:
        from urllib.parse import urlencode

        chosen = {key: value for key, value in (("topic", topic), ("subscription", subscription)) if value}
        where = f"http://127.0.0.1:{self._http.port}/watch{'?' if chosen else ''}{urlencode(chosen)}"
        return f"{where}#token={self._http.token}"

    def subscriptions(self) -> dict[str, list[str]]:
        """Return the subscriptions of every topic. Raises Unavailable if the cluster does not answer."""
        return dict(self._http.ask("GET", "/watch/subscriptions"))

    def choose(self, topic: str, subscription: str) -> tuple[str, str]:
        """A topic and a subscription of it, those that are wanted if they are given. Raises NotFound without them."""
        known = self.subscriptions()
        for name, subscriptions in known.items():
            if topic in ("", name) and subscriptions and (not subscription or subscription in subscriptions):
                return name, subscription or subscriptions[0]
        if topic and topic not in known:
            raise NotFound(f"there is no topic {printable(topic)}")
        if subscription:
            raise NotFound(f"there is no subscription {printable(subscription)} of {printable(topic)}")
        raise NotFound(f"there is no subscription{f' of {topic}' if topic else ''} yet; `{COMMAND} consume` makes one")

    def events(self, topic: str, subscription: str) -> Iterator[tuple[str, Any]]:
        """The server-sent events, each as (name, data). Raises Unavailable when they end."""
        from urllib.parse import urlencode

        answer = self._http.open("/watch/events?" + urlencode({"topic": topic, "subscription": subscription}))
        name = ""
        try:
            for line in answer:
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json_module.loads(value)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the cluster does not answer any more: {error}") from None
        raise Unavailable("the cluster has ended")


def show_text(server: Server, topic: str, subscription: str) -> None:
    """Draw what comes until it ends. Raises Unavailable then."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    title, events = f"{topic} / {subscription}", _once(server.events(topic, subscription))
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        _print_text(Console(width=PIPE_WIDTH), title, events)
        return
    happened: deque[str] = deque(maxlen=EVENTS_SHOWN)
    latest: dict[str, Any] | None = None
    with Live(console=console, auto_refresh=False) as live:
        for name, data in events:
            if name == "picture":
                latest = data
            else:
                happened.extend(_lines(name, data))
            shown = Group(*map(Text, happened)) if latest is None else draw(title, latest, list(happened))
            live.update(shown, refresh=True)


def _print_text(console: Any, title: str, events: Iterable[tuple[str, Any]]) -> None:
    """Print events at once, and a picture every few seconds, to an output that cannot be redrawn."""
    shown: int | None = None
    for name, data in events:
        if name != "picture":
            for line in _lines(name, data):
                console.print(line, markup=False, highlight=False)
        elif shown is None or data["at"] >= shown + PRINT_EVERY_MS:
            shown = data["at"]
            console.print(draw(title, data, []))


def _once(events: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the events without repeated trouble, which comes with every round."""
    trouble = None
    for name, data in events:
        if name == "trouble" and data == trouble:
            continue
        trouble = {"trouble": data, "picture": None}.get(name, trouble)
        yield name, data


def _lines(name: str, data: Any) -> list[str]:
    """Trouble or events in words."""
    return [printable(one) for one in ([data["reason"]] if name == "trouble" else [event["text"] for event in data])]


def draw(title: str, picture: dict[str, Any], happened: list[str]) -> Any:
    """One picture as a rich renderable."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    totals = picture["totals"]
    line = Text(f"{printable(title)}   ", style="bold")
    for name in ("published", "delivered", "acknowledged"):
        line.append(f"{name} {picture['rates'].get(name, 0.0):,.0f}/s   ", style="not bold")
    counts = Text(
        "   ".join(f"{name} {totals[name]:,}" for name in ("backlog", "unacked", "delayed", "draining", "moved"))
    )
    broken = totals["violations"]
    counts.append(
        f"   order checks {totals['checked']:,}, violations {broken:,}", style="bold red" if broken else "green"
    )
    table = Table("partition", "consumer", "hashes", "delivered", "held", "permits", box=None, header_style="dim")
    for part in picture["partitions"]:
        if not part["answers"]:
            table.add_row(str(part["partition"]), "waits for an owner", style="yellow")
        for consumer in part.get("consumers", []):
            hashes = sum(last - first + 1 for first, last in consumer["ranges"])
            numbers = (hashes, consumer["delivered"], consumer["unacked"], consumer["permits"])
            table.add_row(str(part["partition"]), printable(consumer["name"]), *(f"{number:,}" for number in numbers))
    return Group(line, counts, table, *(Text(f"  {text}", style="dim") for text in happened))
