"""Prometheus' text format: the series of all owners, each with its help and its type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sluice.cluster.host.metrics import Metric, distributions, series


def text_of(owners: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The text of all series. owners: the kind of each owner, dispatcher or topic, and its statistics."""
    lines: dict[str, list[str]] = {}
    for kind, stats in owners:
        labels = {name: str(stats[name]) for name in ("topic", "partition") if name in stats}
        if kind == "dispatcher":
            labels["subscription"] = str(stats["subscription"])
        for metric, extra, value in series(kind, stats):
            known = lines.setdefault(metric.name, _head(metric, "gauge"))
            known.append(f"{metric.name}{_labels({**labels, **extra})} {_number(value)}")
        for seen in distributions(stats):
            known = lines.setdefault(seen.metric.name, _head(seen.metric, "histogram"))
            known += [
                f"{seen.metric.name}{suffix}{_labels({**labels, **seen.labels, **extra})} {_number(value)}"
                for suffix, extra, value in seen.cumulative()
            ]
    return "".join(f"{line}\n" for name in sorted(lines) for line in lines[name])


def _head(metric: Metric, kind: str) -> list[str]:
    return [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {kind}"]


def _number(value: float) -> str:
    """All its digits: of a counter that is rounded the rise cannot be seen."""
    return str(int(value)) if value.is_integer() else repr(value)


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(label)}"' for name, label in labels.items()) + "}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
