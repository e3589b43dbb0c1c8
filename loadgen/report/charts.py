"""The charts of a report: the course of a run over one time axis, with the faults marked in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sluice.loadgen.base.kinds import KINDS
from sluice.loadgen.judge.measures import Counts, Measures
from sluice.loadgen.report.result import Report
from sluice.loadgen.samples.memory import ROLES, lines

INK, MUTED, GRID = "#1b2733", "#66788a", "#e6ebf0"
PUBLISHED, DELIVERED, DRAINING, BACKLOG = "#2f6fde", "#0f9d76", "#a23ec2", "#9aa7b4"
P50, P99 = "#f2a33a", "#d9483b"
PALETTE = ("#2f6fde", "#0f9d76", "#f2a33a", "#a23ec2", "#d9483b", "#17a2b8", "#7a6ff0", "#8a9a2e", "#e0679d", "#5b7083")
MOST_SHARES = 40
"""Lives of consumers that have an area of their own each in the picture of who got what."""
_LEAST_RATE = 10
"""Messages per second at the foot of a throughput that is drawn by powers of ten."""
MOST_MARKS = 60
"""Lines of faults that do not hide the picture behind them."""
_KILLED, _FROZEN = "#d9483b", "#17a2b8"
FAULT_COLOURS = {
    **{name: _KILLED if name.startswith("kill") else _FROZEN for name in KINDS},
    "restart-consumer": "#b7791f",
    "join-consumer": "#0f9d76",
    "kill-node": "#7d1d14",
}
ACT_COLOURS = ("rgba(47,111,222,0.06)", "rgba(242,163,58,0.08)", "rgba(102,120,138,0.10)")
_FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def timeline(report: Report) -> Any:
    """Throughput, latency and draining hashes, one above the other."""
    measures = report.judgement.measures
    figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.075,
        row_heights=[0.4, 0.3, 0.3],
        subplot_titles=(
            "Throughput",
            "Latency, from being sent (or due) to the first delivery",
            "Draining hashes and backlog",
        ),
        specs=[[{}], [{}], [{"secondary_y": True}]],
    )
    _throughput(figure, measures, _seconds(report))
    _latency(figure, measures, _seconds(report))
    _draining(figure, report)
    for row in (1, 2, 3):
        _mark_faults(figure, report, row)
    _name_faults(figure, report)
    _dress(figure, height=780)
    _mark_acts(figure, report)
    # Room above the curves for the names of the faults.
    busiest = max(int(measures.confirmed.max()), int(measures.delivered.max()), 1) / (measures.span.width / 1e6)
    figure.update_yaxes(title_text="messages/s", range=[0, 1.25 * busiest], row=1, col=1)
    if report.two_acts:
        # As fast as it goes is many times the fixed rate, under which everything else happens.
        decades = np.log10([_LEAST_RATE, 6 * busiest]).tolist()
        figure.update_yaxes(type="log", range=decades, row=1, col=1)
    figure.update_yaxes(title_text="ms", type="log", row=2, col=1)
    figure.update_yaxes(title_text="hashes", rangemode="tozero", row=3, col=1, secondary_y=False)
    figure.update_yaxes(
        title_text="messages", rangemode="tozero", showgrid=False, nticks=4, row=3, col=1, secondary_y=True
    )
    figure.update_xaxes(range=_shown(report))
    figure.update_xaxes(title_text="seconds since the first message", row=3, col=1)
    return figure


def shares(report: Report) -> Any:
    """Deliveries per second by consumer, stacked: which consumer took over when another left, died or joined.

    In two acts their parts of all deliveries, whose number differs too much between the acts. Each life of a consumer
    is one, unless there are more than MOST_SHARES.
    """
    measures = report.judgement.measures
    figure = go.Figure()
    seconds = _seconds(report)
    received = measures.shares if len(measures.shares) <= MOST_SHARES else _by_consumer(measures.shares)
    for index, name in enumerate(sorted(received, key=_by_number)):
        colour = PALETTE[index % len(PALETTE)]
        rates = received[name] / (measures.span.width / 1e6)
        stacked = {"stackgroup": "all", "groupnorm": "percent" if report.two_acts else ""}
        figure.add_trace(_curve(seconds, rates, name, colour, width=0.6, fillcolor=_faded(colour, 0.72), **stacked))
    _mark_faults(figure, report, None)
    _dress(figure, height=340)
    # Upwards from the picture, for however many consumers there are.
    figure.update_layout(legend={"yanchor": "bottom", "y": 1.02})
    figure.update_yaxes(title_text="% of all" if report.two_acts else "messages/s", rangemode="tozero")
    figure.update_xaxes(title_text="seconds since the first message", range=_shown(report))
    return figure


def distribution(report: Report) -> Any:
    """Latency by percentile, on the scale where each step right is ten times rarer."""
    figure = go.Figure()
    percents = np.concatenate([np.linspace(0, 90, 46), 100 - np.logspace(1, -3, 80)])
    colours = (DELIVERED, PUBLISHED, DRAINING)
    for (name, histogram), colour in zip(report.latencies().items(), colours, strict=True):
        count = histogram.get_total_count()
        if count == 0:
            continue
        shown = percents[percents <= 100 * (1 - 1 / count)]
        values = [histogram.get_value_at_percentile(float(p)) / 1000 for p in shown]
        told = "p%{customdata:.3f}: %{y:,.1f} ms"
        figure.add_trace(_curve(100 / (100 - shown), values, name, colour, told, width=2.2, customdata=shown))
    _dress(figure, height=340, hover="closest")
    ticks = [1, 2, 10, 100, 1_000, 10_000, 100_000]
    labels = ["p0", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999"]
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=labels, title_text="percentile")
    figure.update_yaxes(title_text="ms", rangemode="tozero")
    return figure


def memory(report: Report) -> Any:
    """Resident memory of every process, one line each, coloured by what it is."""
    figure = go.Figure()
    known: set[str] = set()
    for line in lines(report.memory):
        colour = PALETTE[ROLES.index(line.role) % len(PALETTE)] if line.role in ROLES else MUTED
        seconds, told = (line.at - _origin(report)) / 1e6, "%{y:,.0f} MB at %{x:.0f} s"
        curve = _curve(seconds, line.size / 1e6, f"{line.role} {line.process}", colour, told, width=1.6)
        figure.add_trace(curve.update(name=line.role, legendgroup=line.role, showlegend=line.role not in known))
        known.add(line.role)
    _mark_faults(figure, report, None)
    _dress(figure, height=340, hover="closest")
    figure.update_yaxes(title_text="MB", rangemode="tozero")
    figure.update_xaxes(title_text="seconds since the first message", range=_shown(report))
    return figure


def _curve(x: Any, y: Any, name: str, colour: str, told: str = "%{y:,.0f}/s", *, width: float = 2, **more: Any) -> Any:
    """A line. told: what is shown of a point under the pointer. more: of plotly's Scatter."""
    line, hover = {"line_color": colour, "line_width": width}, f"{told}<extra>{name}</extra>"
    return go.Scatter(x=x, y=y, name=name, mode="lines", hovertemplate=hover, **line, **more)


def _throughput(figure: Any, measures: Measures, seconds: npt.NDArray[np.float64]) -> None:
    width = measures.span.width / 1e6
    for name, counts, colour in (
        ("published", measures.confirmed, PUBLISHED),
        ("delivered", measures.delivered, DELIVERED),
    ):
        filled: dict[str, Any] = {"fill": "tozeroy", "fillcolor": _faded(colour, 0.13)}
        figure.add_trace(_curve(seconds, counts / width, name, colour, **filled), row=1, col=1)


def _latency(figure: Any, measures: Measures, seconds: npt.NDArray[np.float64]) -> None:
    for percent, colour in ((50.0, P50), (99.0, P99)):
        times, told = measures.percentile_over_time(percent), "%{y:,.1f} ms"
        curve = _curve(seconds, times, f"p{percent:.0f}", colour, told, connectgaps=True)
        figure.add_trace(curve, row=2, col=1)


def _draining(figure: Any, report: Report) -> None:
    if report.stats.num_rows == 0:
        return
    sums = report.stats.group_by("at").aggregate([("draining", "sum"), ("backlog", "sum")]).sort_by("at")
    seconds = (sums.column("at").to_numpy() - _origin(report)) / 1e6
    inside = (seconds >= 0) & (seconds <= _seconds(report)[-1] + 0.5)
    for column, name, colour, width, alpha in (
        ("backlog", "backlog", BACKLOG, 1.2, 0.14),
        ("draining", "draining hashes", DRAINING, 2.0, 0.22),
    ):
        counts = sums.column(f"{column}_sum").to_numpy()[inside]
        filled: dict[str, Any] = {"fill": "tozeroy", "fillcolor": _faded(colour, alpha), "line_shape": "hv"}
        curve = _curve(seconds[inside], counts, name, colour, "%{y:,.0f}", width=width, **filled)
        figure.add_trace(curve, row=3, col=1, secondary_y=column == "backlog")


def _mark_faults(figure: Any, report: Report, row: int | None) -> None:
    """A line down a picture for each fault; all at once, because plotly looks through all of them at each addition."""
    axes = figure.layout if row is None else figure.get_subplot(row, 1)
    across, up = (axis.plotly_name.replace("axis", "") for axis in (axes.xaxis, axes.yaxis))
    # Many lines hide the curves, so they are faint then.
    opacity = 1.0 if len(report.faults) <= MOST_MARKS else 0.25
    lines = [
        {
            "type": "line",
            "opacity": opacity,
            "xref": across,
            "yref": f"{up} domain",
            "x0": at,
            "x1": at,
            "y0": 0,
            "y1": 1,
            "line": {"color": FAULT_COLOURS.get(fault["kind"], MUTED), "width": 1.3, "dash": "dot"},
        }
        for fault in report.faults
        for at in [_fault_second(report, fault)]
    ]
    figure.update_layout(shapes=[*figure.layout.shapes, *lines])


def _mark_acts(figure: Any, report: Report) -> None:
    """Each act is a strip behind all pictures, with its name above them."""
    if not report.two_acts:
        return
    strips = []
    for act, colour in zip(report.acts_shown(), ACT_COLOURS, strict=False):
        end = min(act["to_s"], _shown(report)[1]) if "at_rest" not in act else _shown(report)[1]
        strips.append(
            {
                "type": "rect", "layer": "below", "xref": "x", "yref": "paper", "x0": act["from_s"], "x1": end,
                "y0": 0, "y1": 1, "fillcolor": colour, "line": {"width": 0},
            }
        )  # fmt: skip
        if end - act["from_s"] > _shown(report)[1] * 0.06:
            figure.add_annotation(
                x=(act["from_s"] + end) / 2, xref="x", y=-0.125, yref="paper", text=act["name"], showarrow=False,
                font={"size": 12, "color": MUTED},
            )  # fmt: skip
    figure.layout.shapes = [*strips, *figure.layout.shapes]
    figure.layout.margin.b = 84


def _name_faults(figure: Any, report: Report) -> None:
    """The faults' names, above the first picture, in turn on two heights so that neighbours do not touch."""
    if len(report.faults) > 12:
        return
    for index, fault in enumerate(report.faults):
        figure.add_annotation(
            x=_fault_second(report, fault),
            xref="x",
            y=1.0,
            yref="y domain",
            yshift=-9 - 16 * (index % 2),
            text=f"{fault['kind'].removesuffix('-consumer')} {fault['target'].removeprefix('consumer-')}",
            showarrow=False,
            xanchor="left",
            xshift=3,
            font={"size": 11, "color": FAULT_COLOURS.get(fault["kind"], MUTED)},
            bgcolor="rgba(255,255,255,0.75)",
        )


def _dress(figure: Any, height: int, hover: str = "x unified") -> None:
    figure.update_layout(
        height=height,
        margin={"l": 70, "r": 60, "t": 48, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": _FONT, "size": 13, "color": INK},
        hovermode=hover,
        legend={"orientation": "h", "y": 1.07, "x": 1, "xanchor": "right", "font": {"color": MUTED}},
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False, linecolor=GRID, tickfont={"color": MUTED})
    figure.update_yaxes(gridcolor=GRID, zeroline=False, tickfont={"color": MUTED}, title_font={"color": MUTED})
    for note in figure.layout.annotations:
        if note.font.size == 16:
            note.update(x=0, xanchor="left", font={"size": 14, "color": INK})


def _seconds(report: Report) -> npt.NDArray[np.float64]:
    """The middle of each time step, in seconds since the first message."""
    span = report.judgement.measures.span
    middle = span.start + (np.arange(span.count) + 0.5) * span.width
    return np.asarray((middle - _origin(report)) / 1e6, np.float64)


def _shown(report: Report) -> list[float]:
    """The stretch of time in which something happened, and a little more."""
    measures = report.judgement.measures
    busy = np.flatnonzero(measures.confirmed + measures.delivered)
    end = float(_seconds(report)[busy[-1]]) if len(busy) else 1.0
    end = max([end, *(_fault_second(report, fault) for fault in report.faults)])
    return [0.0, end * 1.03]


def _origin(report: Report) -> int:
    return report.judgement.measures.first_sent or report.judgement.measures.span.start


def _fault_second(report: Report, fault: dict[str, Any]) -> float:
    return float(fault["at_s"]) + (report.start_us - _origin(report)) / 1e6


def _faded(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _by_consumer(shares: dict[str, Counts]) -> dict[str, Counts]:
    """The lives of each consumer (`consumer-2.1`, `consumer-2.2`) added up."""
    whole: dict[str, Counts] = {}
    for life, counts in shares.items():
        name = life.rpartition(".")[0] or life
        whole[name] = whole.get(name, 0) + counts
    return whole


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    """consumer-2.1 before consumer-10.1."""
    return tuple((int(part) if part.isdigit() else 0, part) for part in name.replace(".", "-").split("-"))
