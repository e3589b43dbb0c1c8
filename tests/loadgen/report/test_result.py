"""The report: its verdict, its fixed JSON names, its page."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from sluice.loadgen.base.acts import FAST, LOADED, Act
from sluice.loadgen.base.acts import REST as AT_REST
from sluice.loadgen.base.history import STATS
from sluice.loadgen.base.options import FloodOptions
from sluice.loadgen.faults.rolling import Moves
from sluice.loadgen.judge.checkers import VIOLATIONS, Findings
from sluice.loadgen.judge.measures import Measures, Span, record
from sluice.loadgen.judge.verdict import Judgement
from sluice.loadgen.report import charts
from sluice.loadgen.report.report import render, summary, write_html
from sluice.loadgen.report.result import Report
from sluice.loadgen.samples.memory import MEMORY

START = 1_700_000_000_000_000
REST = {"pending_acks": 0, "replay": 0, "draining": 0, "backlog": 0}


def sample(at: int, partition: int, **counters: int) -> dict[str, int]:
    return dict.fromkeys(STATS.names, 0) | {"at": at, "partition": partition} | counters


def make_report(**changes: Any) -> Report:
    findings = Findings()
    findings.checked |= {"messages": 1_000, "keys": 90, "keys_in_flight_together": 40, "hashes_moved": 7}
    findings.checked["ordered"] = 1_000
    findings.messages |= {"published": 1_000, "confirmed": 1_000, "delivered": 1_000, "acked": 1_000}
    measures = Measures(Span(START, 500_000, 20))
    measures.confirmed[:8] = 125
    measures.delivered[1:9] = 125
    measures.shares = {f"consumer-{n}.1": np.full(20, n, np.int64) for n in (1, 2, 10)}
    measures.bytes, measures.first_sent = 100_000, START
    measures.last_confirmed, measures.last_acked = START + 4_000_000, START + 5_000_000
    record(measures.histogram, np.arange(1, 1_001) * 100)
    stats = [
        sample(START, 0, draining=3),
        sample(START, 1, draining=4),
        sample(START + 1, 0, draining=5, cleared=9, begun=9, blocked=4),
    ]
    given: dict[str, Any] = {
        "seed": 11,
        "config": FloodOptions.from_values(seed=11).describe(),
        "judgement": Judgement(findings, measures),
        "stats": pa.Table.from_pylist(stats, STATS),
        "at_rest": dict(REST),
        "faults": [{"at_us": START + 1_500_000, "at_s": 1.5, "kind": "kill-consumer", "target": "consumer-2"}],
        "start_us": START,
        "moves_expected": True,
    }
    return Report(**(given | changes))


def test_restarts_after_the_load_have_shown_nothing() -> None:
    moves = Moves(moved=100, minimum=90.0)
    under_load = {"at_us": START + 1_000_000, "at_s": 1.0, "kind": "restart-consumer", "target": "consumer-1"}
    late = under_load | {"at_us": START + 4_500_000, "at_s": 4.5}
    assert make_report(moves=moves, rolling_restart=True, faults=[under_load]).verdict == "ok"
    told = make_report(moves=moves, rolling_restart=True, faults=[under_load, late])
    assert told.verdict == "nothing_checked"
    assert told.reasons == ["1 of 2 restarts came after the last message; give it more --minutes"]


def test_waits_are_split_by_act_and_by_fault() -> None:
    acts = [Act("fast", START, START + 1_000_000), Act("loaded", START + 1_000_000, START + 3_000_000)]
    waits = [
        (START, {"no_permits": 500}),
        (START + 900_000, {"no_permits": 2_500}),
        (START + 1_400_000, {"no_permits": 2_500, "draining": 1_000}),
        (START + 2_900_000, {"no_permits": 2_600, "draining": 5_000}),
    ]
    report = make_report(acts=acts, waits=waits)
    first, second, fault = report.waits_shown()
    assert first["message_seconds"] == {"no_permits": 2.0}
    assert list(second["message_seconds"].items()) == [("draining", 5.0), ("no_permits", 0.1)]
    assert (fault["what"], fault["at_s"], fault["message_seconds"]) == (
        "kill-consumer consumer-2",
        1.5,
        {"draining": 4.0, "no_permits": 0.1},
    )
    assert "act: loaded: 5.1 message-seconds: draining 98 %, no_permits 2 %" in shown(report)
    assert "4.1 message-seconds: draining 98 %" in render(report)
    assert report.to_dict()["waits"][1]["message_seconds"]["draining"] == 5.0


def shown(report: Report) -> str:
    """The terminal's summary as text."""
    console = Console(width=120, record=True, file=StringIO())
    console.print(summary(report))
    return console.export_text()


def test_everything_that_was_planned_and_seen_is_shown() -> None:
    fault = {"at_us": START + 1_000_000, "at_s": 1.0, "kind": "join-consumer", "target": "consumer-10"}
    report = make_report(faults=[fault | {"effect": "it received"}], planned=["join-consumer"])
    assert (report.not_shown, report.exit_code) == ([], 0)


def test_the_page_tells_of_each_fault_what_was_seen() -> None:
    fault = {"at_us": START + 1_000_000, "at_s": 1.0, "kind": "kill-consumer", "target": "consumer-10"}
    page = render(make_report(faults=[fault | {"effect": "it held 7; consumer-10.2 went on"}, fault | {"effect": ""}]))
    assert "it held 7; consumer-10.2 went on" in page
    assert '<td class="note">no effect was seen</td>' in page


def test_missing_effects_are_named_and_count_when_strict() -> None:
    """The run has a joiner without a message, a fault without effect, one that never came, and no draining."""
    fault = {"at_us": START + 1_000_000, "at_s": 1.0, "kind": "join-consumer", "target": "consumer-11", "effect": ""}
    no_draining = pa.Table.from_pylist([sample(START, 0)], STATS)
    report = make_report(faults=[fault], planned=["join-consumer", "kill-consumer"], stats=no_draining)
    assert report.not_shown == [
        "join-consumer consumer-11: no effect was seen",
        "kill-consumer: 0 of 1 came before everything was delivered",
        "consumer-11 joined and received nothing",
        "no hash ever drained",
    ]
    assert (report.verdict, report.exit_code) == ("ok", 0)
    assert report.to_dict()["not_shown"] == report.not_shown
    text = shown(report)
    assert all(f"! not shown: {line}" in text for line in report.not_shown)
    assert "not everything was shown" in text
    page = render(report)
    assert '<header class="part">' in page
    assert "not shown: no hash ever drained" in page
    strict = make_report(faults=[fault], planned=[], stats=no_draining, strict=True)
    assert (strict.verdict, strict.exit_code) == ("ok", 1)


def test_helper_that_received_nothing_is_named() -> None:
    fault = {"at_us": START + 1, "at_s": 1.0, "kind": "hang-consumer", "target": "consumer-2", "helper": "consumer-11"}
    report = make_report(faults=[fault | {"effect": "it held 9; consumer-2.2 went on"}], planned=["hang-consumer"])
    assert report.not_shown == ["consumer-11 joined and received nothing"]


def test_a_run_whose_faults_were_all_passed_over_says_so() -> None:
    """A chaos that broke nothing ended with "every promise held", and a word of it nowhere in the terminal."""
    idle = make_report(faults=[], passed_over=["kill-bookie: bookie-1 is on another machine"] * 2, moves_expected=False)
    expected = "no fault came; 2 were passed over, the first kill-bookie: bookie-1 is on another machine"
    assert (idle.not_shown, idle.exit_code) == ([expected], 0)
    assert f"! not shown: {expected}" in shown(idle)
    assert make_report(faults=[], passed_over=["kill-bookie: x"], strict=True, moves_expected=False).exit_code == 1


def test_run_with_only_delayed_messages_shows_no_order() -> None:
    """The line of the order has no tick, because no message was checked."""
    report = make_report()
    report.judgement.findings.checked["ordered"] = 0
    assert report.not_shown == ["order: every message with a key was delayed, and of those none is promised"]


def test_another_policy_must_have_held_something_back() -> None:
    config = FloodOptions.from_values(policy="read_position").describe()
    idle = make_report(config=config, faults=[])
    assert idle.not_shown == ["the policy read_position never held a message back"]
    busy = pa.Table.from_pylist([sample(START, 0, held_back=3)], STATS)
    assert make_report(config=config, faults=[], stats=busy).not_shown == []


def test_each_act_has_its_figures() -> None:
    cut = START + 2_000_000
    measures = Measures(Span(START, 500_000, 20, (cut,)))
    for act, rate, latency in zip(measures.acts, (900, 450), (80_000, 4_000), strict=True):
        act.confirmed = act.acked = rate
        act.first_sent, act.last_confirmed, act.last_acked = START, START + 500_000, START + 1_000_000
        record(act.histogram, np.full(rate, latency))
        record(act.publish, np.full(rate, latency // 4))
        measures.histogram.add(act.histogram)
        measures.publish.add(act.publish)
    acts = [Act(FAST, START, cut), Act(LOADED, cut, START + 5_000_000, 450.0), Act(AT_REST, START + 5_000_000)]
    report = make_report(acts=acts, judgement=Judgement(make_report().judgement.findings, measures))
    fast, loaded, rest = report.acts_shown()
    assert (fast["end_to_end_msgs_per_s"], loaded["intended_msgs_per_s"], rest["at_rest"]) == (900.0, 450.0, REST)
    assert loaded["latency_ms"]["p50"] == pytest.approx(4, rel=0.01)
    told = report.to_dict()
    assert (told["rates"]["end_to_end_msgs_per_s"], told["latency_ms"]["p50"]) == (900.0, loaded["latency_ms"]["p50"])
    assert told["publish_latency_ms"]["p50"] == pytest.approx(1, rel=0.01)
    page = " ".join(read(report).text)
    assert "published to delivered 4 ms 4 ms 4 ms 4 ms" in page, "as in the tile and in the terminal"
    assert "published to confirmed 1 ms 1 ms 1 ms 1 ms" in page
    text = shown(report)
    assert "act 1" in text
    assert "at rest: nothing is left" in text
    assert "<h2>Acts</h2>" in render(report)
    strips = [shape for shape in charts.timeline(report).layout.shapes if shape.type == "rect"]
    assert [strip.x0 for strip in strips] == [0.0, 2.0, 5.0]


def test_counters_go_on_when_an_owner_is_replaced() -> None:
    """Counters of a partition whose dispatcher was killed are the sum over its owners, not those of the busier one."""
    stats = [
        sample(START, 0, epoch=1, begun=6, cleared=5, blocked=9, order_violations=1),
        sample(START, 1, epoch=1, begun=2, cleared=2),
        sample(START + 1, 0, epoch=2, begun=3, cleared=4, blocked=1, order_violations=2),
        sample(START + 1, 1, epoch=1, begun=2, cleared=2),
    ]
    report = make_report(stats=pa.Table.from_pylist(stats, STATS))
    told = report.draining()
    assert (told["begun_total"], told["cleared_total"], told["blocked_attempts"]) == (11, 11, 10)
    assert report.sentinel == ["3 order violations counted by the broker itself"]


def test_clean_report_is_ok() -> None:
    report = make_report()
    assert (report.verdict, report.exit_code, report.reasons) == ("ok", 0, [])


@pytest.mark.parametrize("kind", VIOLATIONS)
def test_any_violation_breaks_it(kind: str) -> None:
    report = make_report()
    report.judgement.findings.violations[kind] = 2
    assert (report.verdict, report.exit_code) == ("broken", 1)
    assert report.reasons[0] == f"{kind}: 2"


@pytest.mark.parametrize("name", REST)
def test_anything_left_at_rest_breaks_it(name: str) -> None:
    report = make_report(at_rest=REST | {name: 3})
    assert report.verdict == "broken"
    assert report.reasons == [f"{name} at rest: 3"]


def test_trouble_and_the_brokers_own_sentinel_break_it() -> None:
    assert make_report(troubles=["consumer-1.1 stopped"]).verdict == "broken"
    seen = pa.Table.from_pylist([sample(START, 0, order_violations=1)], STATS)
    assert make_report(stats=seen).verdict == "broken"


def test_a_check_that_checked_nothing_is_a_failure() -> None:
    empty = make_report(judgement=Judgement(Findings(), Measures(Span.over(0, 1))))
    assert (empty.verdict, empty.exit_code) == ("nothing_checked", 1)
    still = make_report()
    still.judgement.findings.checked["hashes_moved"] = 0
    assert still.verdict == "nothing_checked"
    assert "restarts tested nothing" in still.reasons[0]


def test_publishing_that_was_cut_off_accuses_nobody() -> None:
    """A run that was given up lost the list of what was sent: its reason is why it was given up, and nothing else."""
    empty = Judgement(Findings(), Measures(Span.over(0, 1)))
    empty.findings.found("unexpected", 5_588_100, ["message 0 of key b'k' was delivered, nobody sent it"])
    report = make_report(judgement=empty, troubles=["nothing moved for 30 s, 0 messages are left"], cut_off=True)
    assert (report.verdict, report.reasons) == ("broken", ["nothing moved for 30 s, 0 messages are left"])
    assert report.not_shown[0].startswith("unexpected: publishing was cut off")


def test_json_has_the_fixed_names(tmp_path: Path) -> None:
    make_report().write_json(tmp_path / "r.json")
    told = json.loads((tmp_path / "r.json").read_text())
    for name, fields in {
        "messages": "published confirmed unknown delivered redelivered acked",
        "violations": " ".join(VIOLATIONS),
        "checked": "messages keys keys_in_flight_together hashes_moved",
        "draining": "peak begun_total cleared_total blocked_attempts at_end",
        "at_rest": "pending_acks replay draining backlog",
        "rates": "publish_msgs_per_s end_to_end_msgs_per_s end_to_end_mb_per_s",
        "latency_ms": "p50 p99 p999 max",
    }.items():
        assert sorted(told[name]) == sorted(fields.split())
    assert {"seed", "config", "faults", "verdict"} <= set(told)
    assert sorted(told["faults"][0]) == ["at_s", "kind", "target"]
    assert told["draining"] == {
        "peak": 7,
        "begun_total": 9,
        "cleared_total": 9,
        "blocked_attempts": 4,
        "at_end": 0,
    }
    assert told["rates"] == {
        "publish_msgs_per_s": 250.0,
        "end_to_end_msgs_per_s": 200.0,
        "end_to_end_mb_per_s": 0.02,
    }
    assert told["latency_ms"]["p50"] == pytest.approx(50, rel=0.01)
    assert told["latency_ms"]["max"] == pytest.approx(100, rel=0.01)


class Page(HTMLParser):
    """Collects what a page would load, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.loads += [str(v) for k, v in attrs if k in ("src", "href") and v and not v.startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text.append(data)


def read(report: Report) -> Page:
    page = Page()
    page.feed(render(report))
    return page


def test_page_is_self_contained_and_says_what_happened(tmp_path: Path) -> None:
    write_html(make_report(), tmp_path / "r.html")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    page = read(make_report())
    text = " ".join(page.text)
    assert page.loads == []
    assert "Every promise held" in text
    assert "kill-consumer" in text
    assert "seed 11" in text


def test_a_broken_runs_page_shows_reasons_and_escapes_text() -> None:
    report = make_report(config={"input": "<script>alert(1)</script>"})
    report.judgement.findings.found("order", 3, ["message 2 of key b'<b>' came late"])
    html = render(report)
    assert "<script>alert(1)" not in html
    assert "b&#x27;&lt;b&gt;&#x27;" in html
    text = " ".join(read(report).text)
    assert "A promise was broken" in text
    assert "order: 3" in text


def test_a_page_of_many_restarts_shows_each_consumer_once() -> None:
    base = make_report()
    base.judgement.measures.shares = {f"consumer-{n % 12}.{n // 12}": np.full(20, n, np.int64) for n in range(240)}
    faults = [
        {"at_us": START, "at_s": n / 100, "kind": "restart-consumer", "target": f"consumer-{n % 12}"}
        for n in range(240)
    ]
    report = make_report(judgement=base.judgement, faults=faults)
    pictures = [charts.timeline(report), charts.shares(report)]
    assert [len(picture.layout.shapes) for picture in pictures] == [720, 240]
    rows = Counter((shape.xref, shape.yref) for shape in pictures[0].layout.shapes)
    assert rows == {("x", "y domain"): 240, ("x2", "y2 domain"): 240, ("x3", "y3 domain"): 240}
    areas = {trace.name: int(trace.y.sum() * 0.5) for trace in pictures[1].data}
    assert list(areas) == [f"consumer-{n}" for n in range(12)]
    assert sum(areas.values()) == 20 * sum(range(240))


def test_page_shows_the_memory_of_each_kind_of_process() -> None:
    rows = [
        {"at": START + second * 1_000_000, "role": "bookie", "process": f"bookie-{n}", "bytes": (90 + n) * 1_000_000}
        for n in range(3)
        for second in range(9)
    ]
    report = make_report(memory=pa.Table.from_pylist(rows, MEMORY))
    assert [entry["process"] for entry in report.to_dict()["memory"]] == ["bookie-0", "bookie-1", "bookie-2"]
    text = " ".join(read(report).text)
    assert "Memory" in text
    assert "92 MB" in text
    assert "+0 MB" in text
    assert 'id="memory"' not in render(make_report())


def test_run_without_deliveries_has_no_latency() -> None:
    """A latency of 0 ms would look like the best of all."""
    empty = make_report(
        judgement=Judgement(Findings(), Measures(Span.over(0, 1))), stats=STATS.empty_table(), faults=[]
    )
    assert "p50 none  p99 none" in shown(empty)
    page = read(empty).text
    assert page[page.index("latency p99") - 1] == "none"


def test_page_of_an_empty_run_can_be_made() -> None:
    empty = make_report(
        judgement=Judgement(Findings(), Measures(Span.over(0, 1))), stats=STATS.empty_table(), faults=[]
    )
    assert "Nothing was proven" in " ".join(read(empty).text)


def test_terminal_shows_the_same() -> None:
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    report = make_report()
    report.judgement.findings.found("overlap", 1, ["message 9 of key b'a' went to two"])
    console.print(summary(report))
    text = console.export_text()
    assert "a promise was broken" in text
    assert "message 9 of key b'a' went to two" in text
    assert "consumer-2 at 1.5 s" in text
