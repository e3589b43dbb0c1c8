"""A flood's report for people: a table in the terminal, and one HTML page without other files.

The page carries plotly's script inside, so it opens from a mail attachment or a build's artefacts, without a network.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sluice.cluster.base.version import COMMAND
from sluice.loadgen.judge.checkers import INFORMATION
from sluice.loadgen.report import charts, waits
from sluice.loadgen.report.result import BROKEN, OK, Report, percentiles
from sluice.loadgen.samples import hot_keys
from sluice.loadgen.samples.memory import WARM_US, by_role, summarise

FEW_FAULTS = 6
_PAUSES = ("p50", "p99", "max")
_MEANINGS = {
    "lost": ("Lost", "confirmed, and nobody ever finished it"),
    "stored_twice": ("Stored twice", "one message at two places"),
    "unexpected": ("Unexpected", "delivered, and nobody sent it"),
    "order": ("Out of order", "first delivered behind a newer message of its key"),
    "overlap": ("Two holders", "two consumers held one key at the same time"),
    "unexplained_redelivery": ("Redelivered for no reason", "nobody gave it back, left or died"),
    "acked_redelivered": ("Redelivered after its ack", "its acknowledgement was confirmed before"),
    "early": ("Early", "delayed, and delivered before its time"),
    "redelivery_order": ("Overtaken redelivery", "given back, and a later message of its key went before it"),
}
_REST = {
    "pending_acks": "pending acknowledgements",
    "replay": "waiting for replay",
    "draining": "draining hashes",
    "backlog": "backlog",
}


def write_html(report: Report, path: Path) -> None:
    """Write the page. It appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(render(report), encoding="utf-8")
    partial.replace(path)


def render(report: Report) -> str:
    """The whole page as text."""
    body = "".join(
        (
            _banner(report),
            _tiles(report),
            _card("What happened when", _figure(charts.timeline(report), "timeline")),
            _card("Acts", _acts_table(report)) if report.two_acts else "",
            _card(
                "Who got what",
                _figure(charts.shares(report), "shares"),
                "Each consumer's part of the deliveries." if report.two_acts else "Deliveries per second by consumer.",
            ),
            _card("Latency", *_latency(report)),
            _card("Promises", _verdict_table(report), _checked(report)),
            _card("Faults", _fault_table(report) + waits.table(report.waits_shown())),
            _card(
                "At rest",
                _rest_table(report) + _drains_table(report),
                "What the dispatchers said when everything was done.",
            ),
            _card(
                "Heaviest keys", hot_keys.table(report.hot_keys), "What the dispatchers told; the share of all keys."
            ),
            _card("Recovery", _recovery_table(report), "Measured from the histories of producers and consumers."),
            _memory_card(report),
            _card("Settings", _settings(report)),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Sluice flood: {escape(_WORDS[report.verdict])}</title><style>{_CSS}</style>"
        f"<script>{get_plotlyjs()}</script></head><body><main>{body}</main></body></html>"
    )


def _numbers(values: Iterable[str], tag: str = "td") -> str:
    """Cells of a table, or with `th` their headings."""
    return "".join(f'<{tag} class="number">{value}</{tag}>' for value in values)


_WORDS = {
    OK: "every promise held",
    BROKEN: "a promise was broken",
    "nothing_checked": "nothing was proven",
}


def _title(report: Report) -> str:
    words = _WORDS[report.verdict]
    return f"{words}, not everything was shown" if report.not_shown else words


def _acts_table(report: Report) -> str:
    """One row an act."""
    head = _numbers(("messages", "published/s", "end to end/s", "p50", "p99", "p99.9", "max"), "th")
    rows = ""
    for act in report.acts_shown():
        name = f'<td><b>{escape(act["name"])}</b><br><span class="note">{act["from_s"]:.1f} to {act["to_s"]:.1f} s'
        name += f", {act['intended_msgs_per_s']:,.0f}/s</span></td>" if act["intended_msgs_per_s"] else "</span></td>"
        if "at_rest" in act:
            left = sum(act["at_rest"].values())
            cells = f'<td colspan="7">{"nothing is left" if not left else f"{left:,} left"}</td>'
        else:
            values = [f"{act[what]:,.0f}" for what in ("messages", "publish_msgs_per_s", "end_to_end_msgs_per_s")]
            values += [_short_ms(ms) for ms in act["latency_ms"].values()]
            cells = _numbers(values)
        rows += f"<tr>{name}{cells}</tr>"
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def _drains_table(report: Report) -> str:
    """How long hashes drained, by the consumer that had to finish."""
    figures = report.drains_shown()
    if not figures:
        return ""
    head = _numbers(("hashes", "drained for, p50", "max", "blocked attempts, p50", "max"), "th")
    rows = ""
    for name, row in figures.items():
        cells = _numbers(f"{row[what]:,}{unit}" for what, unit in _DRAIN.items())
        rows += f"<tr><td>{escape(name)}</td>{cells}</tr>"
    note = '<p class="note">Hashes that drained, by the consumer that had to finish:</p>'
    return f"{note}<table><tr><th></th>{head}</tr>{rows}</table>"


_DRAIN = {
    "hashes": "",
    "millisMedian": " ms",
    "millisMax": " ms",
    "blockedAttemptsMedian": "",
    "blockedAttemptsMax": "",
}
"""The columns of a consumer's drains, with units."""


def _banner(report: Report) -> str:
    good = report.verdict == OK
    tone = ("part" if report.not_shown else "good") if good else "bad"
    messages = report.judgement.findings.messages
    lead = (
        f"{messages['confirmed']:,} messages published, {messages['acked']:,} acknowledged, "
        f"{len(report.faults)} fault{'' if len(report.faults) == 1 else 's'} under load."
    )
    lines = ([] if good else report.reasons[:8]) + [f"not shown: {line}" for line in report.not_shown[:8]]
    reasons = "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.start_us / 1e6))
    return (
        f'<header class="{tone}"><div class="mark">{"✓" if good else "✕"}</div><div>'
        f"<h1>{escape(_title(report)).capitalize()}</h1><p>{escape(lead)}</p>{reasons}</div>"
        f'<div class="when"><b>Sluice flood</b><br>{when}<br>seed {report.seed}</div></header>'
    )


def _tiles(report: Report) -> str:
    rates, findings = report.rates(), report.judgement.findings
    latency = percentiles(report.latency())
    tiles = (
        (f"{rates['end_to_end_msgs_per_s']:,.0f}", "messages/s end to end"),
        (f"{rates['publish_msgs_per_s']:,.0f}", "messages/s published, durable"),
        (_short_ms(latency["p99"]), "latency p99"),
        (f"{findings.checked['keys']:,}", "keys judged"),
        (f"{findings.checked['keys_in_flight_together']:,}", "keys with messages in flight together"),
        (_moved(report), "hashes moved between consumers under load"),
    )
    inside = "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
    return f'<section class="tiles">{inside}</section>'


def _moved(report: Report) -> str:
    """How many hashes were given to another consumer while messages flowed, and why; else what the histories show."""
    moves = report.moves
    if moves is None or not moves.moved:
        return f"{report.judgement.findings.checked['hashes_moved']:,}"
    return f"{moves.moved:,}"


def _moved_in_words(report: Report) -> str:
    if report.moves is None or not report.moves.by_cause:
        return _moved(report)
    causes = ", ".join(f"{count:,} as somebody {cause}" for cause, count in sorted(report.moves.by_cause.items()))
    return f"{_moved(report)} under load ({causes})"


def _card(title: str, inside: str, note: str = "") -> str:
    lead = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{lead}{inside}</section>'


def _figure(figure: Any, name: str) -> str:
    """Return a figure that keeps its width and scrolls on a narrow screen: squeezed, its names lie upon its curves."""
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        config={"displayModeBar": False, "responsive": True},
    )
    return f'<div class="wide">{html}</div>'


NOT_SHOWN = "not shown"


def _verdict_table(report: Report) -> str:
    rows = []
    for kind, (title, meaning) in _MEANINGS.items():
        count = report.judgement.findings.violations.get(kind)
        marks = {None: "<td>–</td>", 0: '<td class="ok">✓</td>'}
        mark = marks.get(count, '<td class="no">✕</td>')
        examples = "".join(f"<div>{escape(line)}</div>" for line in report.judgement.findings.examples.get(kind, []))
        detail = f'<div class="examples">{examples}</div>' if examples else ""
        rows.append(
            f"<tr>{mark}<td><b>{escape(title)}</b></td><td>{escape(meaning)}{detail}</td>"
            f'<td class="number">{NOT_SHOWN if count is None else f"{count:,}"}</td></tr>'
        )
    return f"<table>{''.join(rows)}</table>"


def _checked(report: Report) -> str:
    checked = report.judgement.findings.checked
    return (
        f"Judged from the histories of producers and consumers: {checked['messages']:,} messages of "
        f"{checked['keys']:,} keys, {checked['keys_in_flight_together']:,} of which had two or more messages in flight "
        f"at once. Hashes that moved between consumers: {_moved_in_words(report)}."
    )


def _latency(report: Report) -> tuple[str, str]:
    """A picture and a table, and of what they are."""
    rows = []
    for name, histogram in report.latencies().items():
        if histogram.get_total_count():
            rows.append(f"<tr><td>{name}</td>{_numbers(map(_short_ms, percentiles(histogram).values()))}</tr>")
    head = _numbers(("p50", "p99", "p99.9", "max"), "th")
    table = f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"
    of = "Of the act at a fixed rate." if report.two_acts else ""
    return _figure(charts.distribution(report), "latency") + table, of


def _fault_table(report: Report) -> str:
    if not report.faults:
        return '<p class="note">None.</p>'
    rows = "".join(
        f'<tr><td class="number">{fault["at_s"]:.2f} s</td>'
        f'<td><span class="dot" style="background:{charts.FAULT_COLOURS.get(fault["kind"], charts.MUTED)}"></span>'
        f"{escape(fault['kind'])}</td><td>{escape(fault['target'])}</td>"
        f'<td class="number">{_next_delivery(fault)}</td>'
        f'<td class="note">{escape(_effect(fault))}</td></tr>'
        for fault in report.faults_shown()
    )
    return f"<table>{rows}</table>"


def _effect(fault: dict[str, Any]) -> str:
    """The effect of a fault; empty if none was expected."""
    return str(fault["effect"] or "no effect was seen") if "effect" in fault else ""


def _next_delivery(fault: dict[str, Any]) -> str:
    """How long it was until every partition that lost its owner was served again; empty if none did."""
    times = [ms for partitions in fault.get("next_delivery_ms", {}).values() for ms in partitions.values()]
    return f"next delivery after {_short_ms(max(times))}" if times else ""


def _recovery_rows(report: Report) -> list[tuple[str, str]]:
    """The recovery times, as (what, how long) in words."""
    figures = report.recovery()
    rows = []
    again = "the same, where neither its successor nor the controller was hit as well"
    for what, times in (
        ("SIGKILL of a consumer to the first redelivery of its keys", figures["redelivery_ms"]),
        ("the same, while all owners worked", figures["redelivery_alone_ms"]),
        ("the same, of each key that waited there", figures["redelivered_keys_ms"]),
        ("SIGKILL of a dispatcher to the next delivery", figures["next_delivery_ms"]["dispatchers"]),
        (again, figures["next_delivery_alone_ms"]["dispatchers"]),
        ("SIGKILL of a partition's owner to the next delivery", figures["next_delivery_ms"]["topics"]),
        (again, figures["next_delivery_alone_ms"]["topics"]),
        ("a key that changed hands waited, beyond its own messages", figures["unexplained_hold_ms"]),
    ):
        if times["count"]:
            text = "  ".join(f"{name} {_short_ms(times[name])}" for name in ("p50", "p99", "max"))
            rows.append((what, f"{text}  ({times['count']:,} times)"))
    stall = figures["longest_stall"]
    if stall["ms"]:
        after = f", after {stall['after']}" if stall["after"] else ""
        text = f"{_short_ms(stall['ms'])} in partition {stall['partition']} at {stall['at_s']:.1f} s{after}"
        rows.append(("longest time without a delivery", text))
    if figures["moves"] is not None:
        moves = figures["moves"]
        text = f"{moves['moved']:,} in {moves['changes']:,} changes, {moves['ratio']:.2f} times the minimum"
        rows.append(("hashes moved", text))
    if figures["passed_over"]:
        rows.append(("faults passed over", f"{len(figures['passed_over'])}: {figures['passed_over'][0]}"))
    return rows


def _pause_rows(report: Report) -> list[tuple[str, ...]]:
    pauses = report.recovery()["pauses_ms"].items()
    return [(kind, f"{of['count']:,}", *(_short_ms(of[name]) for name in _PAUSES)) for kind, of in pauses]


def _pause_table(report: Report) -> str:
    rows = "".join(f"<tr><td>{escape(kind)}</td>{_numbers(values)}</tr>" for kind, *values in _pause_rows(report))
    head = _numbers(("faults and partitions", *_PAUSES), "th")
    told = '<p class="note">How long a partition delivered nothing, although it could have:</p>'
    return f"{told}<table><tr><th>after</th>{head}</tr>{rows}</table>" if rows else ""


def _recovery_table(report: Report) -> str:
    rows = "".join(
        f'<tr><td>{escape(what)}</td><td class="number">{escape(text)}</td></tr>'
        for what, text in _recovery_rows(report)
    )
    holds = "".join(f"<li>{escape(line)}</li>" for line in report.recovery()["longest_holds"])
    longest = f'<p class="note">The longest waits of keys that changed hands:</p><ul>{holds}</ul>' if holds else ""
    return f"<table>{rows}</table>{longest}{_pause_table(report)}"


def _rest_table(report: Report) -> str:
    rows = "".join(
        f'<tr><td class="{"no" if report.at_rest[name] else "ok"}">{"✕" if report.at_rest[name] else "✓"}</td>'
        f'<td>{words}</td><td class="number">{report.at_rest[name]:,}</td></tr>'
        for name, words in _REST.items()
    )
    draining = report.draining()
    more = f"Draining hashes: {draining['peak']:,} at the peak, {draining['cleared_total']:,} cleared in all."
    return f'<table>{rows}</table><p class="note">{more}</p>'


def _memory_card(report: Report) -> str:
    figures = by_role(summarise(report.memory))
    if not figures:
        return ""
    rows = "".join(
        f'<tr><td>{escape(entry["role"])}</td><td class="number">{entry["processes"]}</td>'
        + "".join(f'<td class="number">{entry[name]:,.0f} MB</td>' for name in ("warm_mb", "end_mb", "peak_mb"))
        + f'<td class="number">{entry["growth_mb"]:+,.0f} MB</td></tr>'
        for entry in figures
    )
    head = _numbers(("processes", "warm", "at the end", "peak", "growth"), "th")
    note = (
        "Resident memory that is a process's own, sampled once a second; the highest of each kind. Warm is after "
        f"{WARM_US // 1_000_000} s, or after half of its time if that is sooner. Growth is from there to the end."
    )
    picture = _figure(charts.memory(report), "memory")
    return _card("Memory", f"{picture}<table><tr><th></th>{head}</tr>{rows}</table>", note)


def _settings(report: Report) -> str:
    pairs = [(name, value) for name, value in report.config.items() if value is not None]
    pairs += [(f"seconds: {name}", f"{seconds:.1f}") for name, seconds in report.phases.items()]
    inside = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in pairs)
    return f"<dl>{inside}</dl>"


def summary(report: Report) -> RenderableType:
    """The result as a table for the terminal."""
    findings, rates = report.judgement.findings, report.rates()
    table = Table.grid(padding=(0, 2))
    for kind, (title, meaning) in _MEANINGS.items():
        count = findings.violations.get(kind)
        if count is None:
            table.add_row(Text("–", style="dim"), title, Text(meaning, style="dim"), Text(NOT_SHOWN, style="dim"))
            continue
        mark = Text("✓", style="green") if count == 0 else Text("✕", style="bold red")
        table.add_row(mark, title, Text(meaning, style="dim"), Text(f"{count:,}", style="" if count == 0 else "red"))
    messages, checked = findings.messages, findings.checked
    latency, draining = percentiles(report.latency()), report.draining()
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("messages", f"{messages['published']:,} published, {messages['confirmed']:,} confirmed, "
                     f"{messages['acked']:,} acknowledged, {messages['redelivered']:,} redelivered"),
        ("checked", f"{checked['keys']:,} keys, {checked['keys_in_flight_together']:,} with messages in flight "
                    "together"),
        ("hashes moved", _moved_in_words(report)),
        *_acts_in_words(report),
        ("rates", f"{rates['publish_msgs_per_s']:,.0f} msg/s published, {rates['end_to_end_msgs_per_s']:,.0f} msg/s "
                  f"({rates['end_to_end_mb_per_s']:,.1f} MB/s) end to end"),
        ("latency", "  ".join(f"{name} {_short_ms(value)}" for name, value in latency.items())),
        ("draining", f"peak {draining['peak']:,}, cleared {draining['cleared_total']:,}, "
                     f"{draining['blocked_attempts']:,} attempts blocked, at the end {draining['at_end']:,}"),
        *_information_in_words(report),
        *hot_keys.in_words(report.hot_keys),
        ("faults", _faults_in_words(report)),
        ("seed", str(report.seed)),
    ):  # fmt: skip
        facts.add_row(Text(name, style="bold"), Text(value))
    recovery = Table.grid(padding=(0, 2))
    for what, text in _recovery_rows(report) if report.faults else ():
        recovery.add_row(Text(what, style="dim"), text)
    parts: list[RenderableType] = [table, Text(), facts]
    if report.faults:
        parts += [Text(), recovery]
    if len(report.faults) > FEW_FAULTS and (rows := _pause_rows(report)):
        parts += [Text(), Table("pauses after", "times", *_PAUSES, box=None, padding=(0, 2))]
        for row in rows:
            parts[-1].add_row(*row)  # type: ignore[union-attr]
    if report.verdict != OK:
        parts += [Text(), *(Text(f"✕ {line}", style="red") for line in report.reasons)]
        parts += [Text(f"  {line}", style="dim") for lines in findings.examples.values() for line in lines[:2]]
    parts += [Text(f"decisions: {COMMAND} incident replay {report.incident}")] if report.incident else []
    if report.not_shown:
        parts += [Text(), *(Text(f"! not shown: {line}", style="yellow") for line in report.not_shown)]
    colour = ("yellow" if report.not_shown else "green") if report.verdict == OK else "red"
    return Panel(Group(*parts), title=f"[bold {colour}]{_title(report)}", border_style=colour, padding=(1, 2))


def _information_in_words(report: Report) -> list[tuple[str, str]]:
    """Observations that the subscription, with its settings, does not promise to prevent."""
    found = report.judgement.findings.information
    return [("not promised", words.format(found[kind])) for kind, words in INFORMATION.items() if found.get(kind)]


def _acts_in_words(report: Report) -> list[tuple[str, str]]:
    """A line an act, if there are acts."""
    rows = []
    for number, act in enumerate(report.acts_shown() if report.two_acts else (), 1):
        if "at_rest" in act:
            text = "nothing is left" if not any(act["at_rest"].values()) else f"left: {sum(act['at_rest'].values()):,}"
        elif act["intended_msgs_per_s"]:
            times = "  ".join(f"{name} {_short_ms(ms)}" for name, ms in act["latency_ms"].items())
            text = f"{act['messages']:,} messages at {act['intended_msgs_per_s']:,.0f}/s: {times}"
        else:
            text = f"{act['messages']:,} messages, {act['end_to_end_msgs_per_s']:,.0f}/s end to end"
        rows.append((f"act {number}", f"{act['name']}: {text}"))
    return [*rows, *waits.rows(report.waits_shown()[:3])]


def _faults_in_words(report: Report) -> str:
    """Each fault, or how many of each kind if there are many."""
    if len(report.faults) <= FEW_FAULTS:
        lines = (f"{f['kind']} {f['target']} at {f['at_s']:.1f} s" for f in report.faults)
        effects = [f" ({f['effect'] or 'no effect seen'})" if "effect" in f else "" for f in report.faults]
        return "\n".join(line + effect for line, effect in zip(lines, effects, strict=True)) or "none"
    counts = Counter(str(fault["kind"]) for fault in report.faults)
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def _short_ms(value: float) -> str:
    """Format milliseconds; 0 is "none", since every measured time is longer."""
    if not value:
        return "none"
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.2g} ms" if value < 10 else f"{value:.0f} ms"


_CSS = """
:root{--ink:#1b2733;--muted:#66788a;--line:#e6ebf0;--good:#0f9d76;--bad:#d9483b}
*{box-sizing:border-box}
body{margin:0;background:#f4f6f9;color:var(--ink);
 font:15px/1.5 Inter,system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
header{display:flex;gap:22px;align-items:center;padding:26px 30px;border-radius:16px;color:#fff;
 box-shadow:0 10px 30px rgba(27,39,51,.14)}
header.good{background:linear-gradient(120deg,#0b7f60,#12a87e 60%,#2fbf97)}
header.part{background:linear-gradient(120deg,#8a6200,#b7860b 60%,#d9a62e)}
header.bad{background:linear-gradient(120deg,#a92c22,#d9483b 60%,#e8735f)}
header h1{margin:0;font-size:27px;letter-spacing:-.01em}header p{margin:4px 0 0;opacity:.93}
header ul{margin:8px 0 0;padding-left:18px}
.mark{font-size:34px;width:64px;height:64px;flex:none;border-radius:50%;display:grid;place-items:center;
 background:rgba(255,255,255,.18)}
.when{margin-left:auto;text-align:right;font-size:13px;opacity:.93;white-space:nowrap}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:14px;margin:18px 0}
.tile,.card{background:#fff;border:1px solid var(--line);border-radius:14px}
.tile{padding:16px 18px}.tile b{display:block;font-size:24px;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:13px;line-height:1.3;display:block;margin-top:2px}
.card{padding:20px 24px;margin:16px 0;min-width:0}
.wide{overflow-x:auto}.wide>div{min-width:640px}
.card h2{margin:0 0 6px;font-size:17px}.note{color:var(--muted);margin:2px 0 10px;font-size:14px}
@media(max-width:760px){header{flex-wrap:wrap}.when{margin-left:0;text-align:left}}
table{width:100%;border-collapse:collapse}td,th{padding:8px 10px 8px 0;border-top:1px solid var(--line);
 text-align:left;vertical-align:top}tr:first-child td,tr:first-child th{border-top:0}
th{color:var(--muted);font-weight:500;font-size:13px}.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.ok,td.no{width:28px;font-weight:700}td.ok{color:var(--good)}td.no{color:var(--bad)}
.examples{color:var(--bad);font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;margin-top:4px}
.dot{display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:8px}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(210px,1fr));gap:6px 24px;margin:6px 0 0}
dt{color:var(--muted);font-size:12px}dd{margin:0 0 6px;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
"""
