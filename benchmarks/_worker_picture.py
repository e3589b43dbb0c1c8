"""How many workers a pool had over time, and how old the oldest message was, as a picture in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks._latency_picture import FONT, GRID, INK, MUTED, text_at

WIDTH, HEIGHT = 860, 340
LEFT, RIGHT, TOP, BOTTOM = 48, 56, 48, 44
WORKERS, AGE = "#2f6fde", "#d97706"

Look = tuple[float, int, int]
"""Seconds since the beginning, workers, and the age of the oldest message in ms."""


def picture(course: Sequence[Look], marks: Sequence[tuple[float, str]] = (), target_ms: int = 0) -> str:
    """course: in order of time, not empty. marks: when something happened, and what. target_ms: of the age; 0: none."""
    seconds = max(course[-1][0], 1.0)
    most = max(max(workers for _, workers, _ in course), 1)
    oldest = max(max(age for _, _, age in course), target_ms, 1) / 1000

    def across(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / seconds

    def up(part: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part

    drawn = [
        text_at(LEFT, 24, "workers", "start", WORKERS),
        text_at(WIDTH - RIGHT, 24, "age of the oldest message, s", "end", AGE),
        text_at(WIDTH / 2, HEIGHT - 8, "seconds", "middle", MUTED),
    ]
    for number in range(most + 1):
        y = up(number / most)
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        drawn.append(text_at(LEFT - 8, y + 4, str(number), "end", WORKERS))
    for part in (0.0, 0.5, 1.0):
        drawn.append(text_at(WIDTH - RIGHT + 8, up(part) + 4, f"{oldest * part:.1f}", "start", AGE))
        drawn.append(text_at(across(seconds * part), HEIGHT - BOTTOM + 18, f"{seconds * part:.0f}", "middle", MUTED))
    for at, what in marks:
        x = across(at)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{HEIGHT - BOTTOM}" stroke="{MUTED}"/>')
        drawn.append(text_at(x + 4, TOP - 2, what, "start", INK))
    if target_ms:
        y = up(target_ms / 1000 / oldest)
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        drawn.append(f'<line {ends} stroke="{AGE}" stroke-dasharray="4 4"/>')
    aged = [(across(at), up(age / 1000 / oldest)) for at, _, age in course]
    steps: list[tuple[float, float]] = []
    for at, workers, _ in course:
        steps += [(across(at), steps[-1][1])] if steps else []
        steps.append((across(at), up(workers / most)))
    drawn += [_line(aged, AGE, 1.5), _line(steps, WORKERS, 2.5)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="{escape(FONT)}" font-size="13"><rect width="100%" height="100%" fill="#ffffff"/>'
        + "".join(drawn)
        + "</svg>\n"
    )


def _line(points: list[tuple[float, float]], colour: str, width: float) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
