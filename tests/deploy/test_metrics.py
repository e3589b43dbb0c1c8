"""The dashboard and the alarms, compared with what a real cluster in one process answers to Prometheus."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

import sluice
from tests.cluster.helpers import eventually

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "running-a-cluster.md"

Answered = dict[str, set[str]]
"""The labels of each series that was answered, by its name."""

_SERIES = re.compile(r"(\w+)(?:\{(.*)\})? \S+")
_LABEL = re.compile(r'(\w+)="')
_MATCHER = re.compile(r'\{__name__=~"([^"]+)"\}')
_BY = re.compile(r"\bby \(([^)]*)\)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_KNOWN = {
    "sum",
    "by",
    "rate",
    "increase",
    "deriv",
    "delta",
    "min_over_time",
    "and",
    "or",
    "vector",
    "up",
    "job",
    "histogram_quantile",
}
"""Words of Prometheus' language in the files, with the one series that Prometheus makes itself."""


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answered]:
    """The answer at the fixed address, once there are messages, consumers and delayed messages."""
    folder = tmp_path_factory.mktemp("measured")
    with sluice.connect(embedded=True, data_dir=folder, admin_port=0) as client:
        client.create_topic("orders")
        consumer = client.subscribe("orders", "billing", initial_position="earliest")
        with client.create_producer("orders") as producer:
            producer.send(b"now", partition_key="a")
            producer.send(b"later", partition_key="a", deliver_after=timedelta(hours=1))
        consumer.acknowledge(consumer.receive(60_000))
        found: Answered = {}
        wanted = "pulsar_delayed_message_index_bucket_op_count"
        eventually(lambda: found.update(_scraped(folder)) or wanted in found, lambda: f"{wanted} is not in {found}")
        yield found


def _scraped(folder: Path) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", int((folder / "admin-port").read_text()), timeout=60)
    token = (folder / "admin-token").read_text()
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
    text = connection.getresponse().read().decode()
    connection.close()
    found: Answered = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series = _SERIES.fullmatch(line)
            assert series, line
            found.setdefault(series[1], set()).update(_LABEL.findall(series[2] or ""))
    return found


def _panels() -> list[tuple[str, str]]:
    board = json.loads((DEPLOY / "grafana" / "sluice.json").read_text())
    return [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]


def _groups() -> list[dict[str, Any]]:
    return list(yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())["groups"])


def _alarms() -> list[dict[str, Any]]:
    return [rule for group in _groups() for rule in group["rules"]]


EXPRESSIONS = [*_panels(), *((alarm["alert"], alarm["expr"]) for alarm in _alarms())]


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_expression_finds_what_a_cluster_answers(answered: Answered, name: str, expression: str) -> None:
    """Under its own name, and under the one that Ray's agent gives it."""
    patterns = _MATCHER.findall(expression)
    assert patterns or "up{" in expression
    labels = set()
    for pattern in patterns:
        (series,) = (each for each in answered if re.fullmatch(pattern, each))
        assert re.fullmatch(pattern, f"ray_{series}"), name
        labels |= answered[series]
    for group in _BY.findall(expression):
        assert set(group.split(", ")) <= labels


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_expression_has_no_other_word(name: str, expression: str) -> None:
    """A series that is named in another way would escape the comparison."""
    bare = _BY.sub("", _MATCHER.sub("", re.sub(r"\[\d+[smh]\]", "", expression)))
    assert set(_WORD.findall(re.sub(r'"[^"]*"', "", bare))) <= _KNOWN, name
    assert [expression.count(mark) for mark in "({["] == [expression.count(mark) for mark in ")}]"]


def test_rules_have_the_form_that_prometheus_reads() -> None:
    assert set(yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())) == {"groups"}
    assert all(set(group) == {"name", "rules"} for group in _groups())
    names = [alarm["alert"] for alarm in _alarms()]
    assert len(set(names)) == len(names) > 8
    for alarm in _alarms():
        assert set(alarm) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"Sluice[A-Za-z]+", alarm["alert"])
        assert re.fullmatch(r"\d+[mh]", alarm.get("for", "1m"))
        assert alarm["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("alarm", _alarms(), ids=lambda alarm: alarm["alert"])
def test_summary_names_only_labels_that_are_there(answered: Answered, alarm: dict[str, Any]) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", alarm["annotations"]["summary"]))
    groups = [set(group.split(", ")) for group in _BY.findall(alarm["expr"])]
    series = [answered[name] for name in answered for one in _MATCHER.findall(alarm["expr"]) if re.fullmatch(one, name)]
    for labels in groups or series or [{"instance"}]:
        assert named <= labels


def test_page_explains_every_alarm_and_no_other() -> None:
    rows = re.findall(r"^\| `(Sluice\w+)` \| \S.* \| \S.* \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [alarm["alert"] for alarm in _alarms()]


def test_prometheus_loads_the_rules_that_compose_mounts() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    mounts = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["prometheus"]["volumes"]
    inside = {mount.split(":")[1]: mount.split(":")[0] for mount in mounts if mount.startswith("./")}
    assert [inside[f"/etc/prometheus/{name}"] for name in config["rule_files"]] == ["./prometheus-rules.yml"]
    assert f'job="{config["scrape_configs"][0]["job_name"]}"' in _alarms()[0]["expr"]
