"""What `latency.py` measured, for people: a table in Markdown, and a picture in SVG that any browser shows."""

from __future__ import annotations

import math
from html import escape
from typing import Any

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 58, 62
INK, MUTED, GRID = "#1b2733", "#66788a", "#e6ebf0"
KINDS = (("confirmed_ms", "confirmed", "#2f6fde"), ("delivered_ms", "delivered", "#0f9d76"))
QUANTILES = ("p50", "p99", "p99.9")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def table(result: dict[str, Any]) -> str:
    """One line a load: milliseconds until confirmed and until delivered, and the processor time of a message."""
    lines = [
        "| load | confirmed, p50 / p99 / p99.9 | delivered, p50 / p99 / p99.9 | processor time of a message |",
        "|---|---|---|---|",
    ]
    for load in result["loads"]:
        cells = [" / ".join(_short(load[kind][quantile]) for quantile in QUANTILES) + " ms" for kind, _, _ in KINDS]
        lines.append(f"| {_named(load, result)} | {cells[0]} | {cells[1]} | {_short(load['cpu_us_per_message'])} µs |")
    return "\n".join(lines)


def picture(result: dict[str, Any]) -> str:
    """For each load two bars, from the median to p99.9 on a scale of powers of ten, with a mark at p99."""
    loads = result["loads"]
    values = [load[kind][quantile] for load in loads for kind, _, _ in KINDS for quantile in QUANTILES]
    low, high = _decades(values)
    step = (WIDTH - LEFT - RIGHT) / len(loads)
    drawn = [_legend(), *_axis(low, high)]
    for number, load in enumerate(loads):
        middle = LEFT + step * (number + 0.5)
        for place, (kind, _, colour) in enumerate(KINDS):
            at = [_height(load[kind][quantile], low, high) for quantile in QUANTILES]
            drawn += _bar(middle + (place - 0.5) * min(step * 0.36, 70), at, load[kind], colour)
        drawn.append(text_at(middle, HEIGHT - BOTTOM + 24, _named(load, result), "middle", INK))
    drawn.append(text_at(WIDTH / 2, HEIGHT - 12, "load", "middle", MUTED))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="{escape(FONT)}" font-size="13"><rect width="100%" height="100%" fill="#ffffff"/>'
        + "".join(drawn)
        + "</svg>\n"
    )


def _bar(x: float, at: list[float], shown: dict[str, float], colour: str) -> list[str]:
    median, most, rare = at
    return [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{median:.1f}" y2="{rare:.1f}" stroke="{colour}" stroke-width="16" '
        f'stroke-opacity="0.25"/>',
        f'<line x1="{x - 12:.1f}" x2="{x + 12:.1f}" y1="{most:.1f}" y2="{most:.1f}" stroke="{colour}" '
        f'stroke-width="3"/>',
        f'<circle cx="{x:.1f}" cy="{median:.1f}" r="5" fill="{colour}"/>',
        text_at(x + 15, median + 4, _short(shown["p50"]), "start", colour),
        text_at(x + 15, most + 4, _short(shown["p99"]), "start", colour),
    ]


def _axis(low: int, high: int) -> list[str]:
    drawn = [text_at(14, TOP - 14, "ms", "start", MUTED)]
    for power in range(low, high + 1):
        y = _height(10.0**power, low, high)
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        drawn.append(text_at(LEFT - 8, y + 4, f"{10.0**power:,g}", "end", MUTED))
    return drawn


def _legend() -> str:
    drawn, x = [], float(LEFT)
    for _, name, colour in KINDS:
        drawn.append(f'<circle cx="{x + 6}" cy="22" r="5" fill="{colour}"/>' + text_at(x + 18, 26, name, "start", INK))
        x += 110
    drawn.append(text_at(x, 26, "dot: median, line: p99, end of the bar: p99.9", "start", MUTED))
    return "".join(drawn)


def text_at(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    """Of SVG. anchor: start, middle or end, which is the side of the text that stands at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _height(milliseconds: float, low: int, high: int) -> float:
    """Where a time stands: higher up for more."""
    part = (math.log10(max(milliseconds, 10.0**low)) - low) / (high - low)
    return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


def _decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten that hold all values; at least one decade."""
    low = math.floor(math.log10(max(min(values), 0.01)))
    return low, max(math.ceil(math.log10(max(max(values), 0.01))), low + 1)


def _named(load: dict[str, Any], result: dict[str, Any]) -> str:
    peak = result.get("peak_msgs_per_s")
    share = f" ({100 * load['rate'] / peak:.0f} % of the peak)" if peak and load["rate"] > peak // 100 else ""
    return f"{load['rate']:,}/s{share}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
