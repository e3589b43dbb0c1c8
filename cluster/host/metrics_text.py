"""Prometheus' text format: the series of all owners, each with its help and its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.cluster.host.metrics import Metric, distributions, series


class MetricsText:
    """The text of all series, owner by owner."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, kind: str, stats: Mapping[str, Any]) -> None:
        """kind: of the owner, dispatcher or topic. stats: its statistics."""
        labels = {name: str(stats[name]) for name in ("topic", "partition") if name in stats}
        if kind == "dispatcher":
            labels["subscription"] = str(stats["subscription"])
        for metric, extra, value in series(kind, stats):
            known = self._lines.setdefault(metric.name, _head(metric, "gauge"))
            known.append(f"{metric.name}{_labels({**labels, **extra})} {_number(value)}")
        for seen in distributions(stats):
            known = self._lines.setdefault(seen.metric.name, _head(seen.metric, "histogram"))
            known += [
                f"{seen.metric.name}{suffix}{_labels({**labels, **seen.labels, **extra})} {_number(value)}"
                for suffix, extra, value in seen.cumulative()
            ]

    def text(self) -> str:
        return "".join(f"{line}\n" for name in sorted(self._lines) for line in self._lines[name])


def _head(metric: Metric, kind: str) -> list[str]:
    return [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {kind}"]


def _number(value: float) -> str:
    """All its digits: of a counter that is rounded the rise cannot be seen."""
    return str(int(value)) if value.is_integer() else repr(value)


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(label)}"' for name, label in labels.items()) + "}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
