"""The display of a running flood: a live view on a terminal, and single lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_LINE_EVERY_S = 5.0
_SPARK = "▁▂▃▄▅▆▇█"


@dataclass
class FloodProgress:
    """The progress of a flood. total: messages that will be published, 0 if that is not known."""

    phase: str = "starting"
    total: int = 0
    sent: int = 0
    confirmed: int = 0
    delivered: int = 0
    redelivered: int = 0
    backlog: int = 0
    unacked: int = 0
    draining: int = 0
    replay: int = 0
    consumers: list[tuple[str, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    draining_history: list[int] = field(default_factory=list)


class Display(Protocol):
    """Shows progress; every call is cheap."""

    def show(self, progress: FloodProgress) -> None:
        """The state changed."""

    def __enter__(self) -> Display:
        """Start to show."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop to show."""


def make_display(console: Console) -> Display:
    """A live view if the console is a terminal that can be redrawn, else lines."""
    return LiveDisplay(console) if console.is_terminal and not console.is_dumb_terminal else LineDisplay(console)


class LineDisplay:
    """One line when the phase changes, and one every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._shown_at = 0.0
        self._faults = 0

    def show(self, progress: FloodProgress) -> None:
        """Show news, if it is time."""
        for line in progress.faults[self._faults :]:
            self._console.print(f"  {line}", highlight=False)
        self._faults = len(progress.faults)
        now = time.monotonic()
        if progress.phase == self._phase and now - self._shown_at < _LINE_EVERY_S:
            return
        if progress.phase != self._phase:
            self._console.print(progress.phase, highlight=False)
        if progress.sent:
            again = f" ({progress.redelivered:,} again)" if progress.redelivered else ""
            self._console.print(
                f"  published {progress.confirmed:,}, delivered {progress.delivered:,}{again}, "
                f"backlog {progress.backlog:,}, draining hashes {progress.draining:,}",
                highlight=False,
            )
        self._phase, self._shown_at = progress.phase, now

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


class LiveDisplay:
    """Bars, rates, consumers and faults, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._started = time.monotonic()
        self._before: tuple[float, int, int] = (self._started, 0, 0)
        self._rates = (0.0, 0.0)

    def show(self, progress: FloodProgress) -> None:
        now = time.monotonic()
        at, confirmed, delivered = self._before
        if now - at >= 0.5:
            new = progress.delivered - progress.redelivered
            self._rates = ((progress.confirmed - confirmed) / (now - at), max(new - delivered, 0) / (now - at))
            self._before = (now, progress.confirmed, new)
        self._live.update(self._draw(progress, now - self._started))

    def _draw(self, progress: FloodProgress, seconds: float) -> RenderableType:
        parts: list[RenderableType] = [Text.assemble((progress.phase, "bold"), (f"   {seconds:.0f} s", "dim"))]
        if progress.sent or progress.delivered:
            parts += [self._bars(progress), self._consumers(progress)]
        parts += [Text(f"  {line}", style="yellow") for line in progress.faults[-5:]]
        return Panel(Group(*parts), title="sluice flood", border_style="blue", padding=(0, 1))

    def _bars(self, progress: FloodProgress) -> Table:
        table = Table.grid(padding=(0, 2))
        total = progress.total or max(progress.confirmed, 1)
        rows = (
            ("published", progress.confirmed, self._rates[0], "cyan"),
            ("delivered", progress.delivered - progress.redelivered, self._rates[1], "green"),
        )
        for name, count, rate, colour in rows:
            bar = ProgressBar(total=total, completed=min(count, total), width=36, complete_style=colour)
            table.add_row(name, bar, f"{count:>12,}", Text(f"{rate:>10,.0f}/s", style="dim"))
        spark = "".join(_sparks(progress.draining_history[-36:]))
        table.add_row(
            "draining", Text(spark, style="magenta"), f"{progress.draining:>12,}", Text("hashes", style="dim")
        )
        waiting = f"backlog {progress.backlog:,}   unacked {progress.unacked:,}   replay {progress.replay:,}"
        table.add_row("", Text(waiting, style="dim"), "", "")
        return table

    def _consumers(self, progress: FloodProgress) -> Table:
        table = Table.grid(padding=(0, 2))
        most = max((count for _, count in progress.consumers), default=1) or 1
        for name, count in progress.consumers[:12]:
            bar = ProgressBar(total=most, completed=count, width=24, complete_style="blue")
            table.add_row(Text(name, style="dim"), bar, f"{count:>12,}")
        return table

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()


def _sparks(values: list[int]) -> list[str]:
    most = max(values, default=0)
    return [_SPARK[min(value * len(_SPARK) // (most + 1), len(_SPARK) - 1)] if most else " " for value in values]
