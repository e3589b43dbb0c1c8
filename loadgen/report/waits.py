"""The waits of a flood's messages until their first delivery, by reason, for each act and fault."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from typing import Any

from sluice.loadgen.base.acts import Act

WaitSamples = Sequence[tuple[int, dict[str, int]]]
"""Moments (us) with the message-milliseconds of each reason until then, ascending."""
_SHOWN = 3


def waits_shown(
    samples: WaitSamples, acts: Sequence[Act], faults: Sequence[dict[str, Any]], origin: int
) -> list[dict[str, Any]]:
    """Return a row an act, and one a fault, which counts until the next fault; reasons in message-seconds."""
    if not samples:
        return []
    spans = [(f"act: {act.name}", act.start, act.end or samples[-1][0]) for act in acts]
    ends = [*(fault["at_us"] for fault in faults[1:]), samples[-1][0]]
    spans += [
        (f"{fault['kind']} {fault['target']}", fault["at_us"], end) for fault, end in zip(faults, ends, strict=False)
    ]
    return [
        {"what": what, "at_s": round((start - origin) / 1e6, 3), "message_seconds": _between(samples, start, end)}
        for what, start, end in spans or [("the whole run", origin, samples[-1][0])]
    ]


def _between(samples: WaitSamples, start: int, end: int) -> dict[str, float]:
    """Message-seconds by reason, the largest first."""
    before, after = _until(samples, start), _until(samples, end)
    waited = {reason: (ms - before.get(reason, 0)) / 1000 for reason, ms in after.items()}
    return dict(sorted(((why, s) for why, s in waited.items() if s > 0), key=lambda item: -item[1]))


def _until(samples: WaitSamples, at: int) -> dict[str, int]:
    number = bisect_right(samples, at, key=lambda sample: sample[0])
    return samples[number - 1][1] if number else {}


def in_words(reasons: dict[str, float]) -> str:
    """The largest parts of a wait."""
    whole = sum(reasons.values())
    shown = [f"{why} {100 * seconds / whole:.0f} %" for why, seconds in list(reasons.items())[:_SHOWN]]
    return f"{whole:,.1f} message-seconds: {', '.join(shown)}" if shown else "nothing"


def rows(shown: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [("waits", f"{row['what']}: {in_words(row['message_seconds'])}") for row in shown]


def table(shown: list[dict[str, Any]]) -> str:
    """The rows for the page; empty if there are none."""
    note = '<p class="note">Waits until the first delivery; a fault counts until the next one.</p>'
    cells = "".join(
        f'<tr><td class="number">{row["at_s"]:.2f} s</td><td>{escape(row["what"])}</td>'
        f"<td>{escape(in_words(row['message_seconds']))}</td></tr>"
        for row in shown
    )
    return f"{note}<table>{cells}</table>" if shown else ""
