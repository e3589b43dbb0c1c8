"""The outcome of a flood: one report, its fixed JSON form, and the verdict.

The verdict is `ok` only if no promise was seen broken, everything was at rest at the end, and every check had
something to look at. A judge that looked at nothing has proven nothing, so that is a failure like any other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.loadgen.base.acts import Act
from sluice.loadgen.base.kinds import JOIN
from sluice.loadgen.faults.rolling import HOLD_LIMIT_MS, MOST_MOVES, Moves
from sluice.loadgen.judge.checkers import VIOLATIONS, nothing_checked
from sluice.loadgen.judge.recovery import tell, tell_faults
from sluice.loadgen.judge.verdict import Judgement
from sluice.loadgen.report.waits import WaitSamples, waits_shown
from sluice.loadgen.samples.memory import MEMORY, summarise

DRAINING = "draining_hashes"
OK, BROKEN, NOTHING_CHECKED = "ok", "broken", "nothing_checked"
CUT_OFF = {"unexpected": "publishing was cut off, and with it the list of what was sent"}
_PERCENTILES = (("p50", 50.0), ("p99", 99.0), ("p999", 99.9), ("max", 100.0))


@dataclass
class Report:
    """All findings of a flood.

    stats: samples of the dispatchers (schema STATS). memory: of all processes (schema MEMORY). at_rest: the last
    statistics, summed over partitions. troubles: sentences about what went wrong outside of the promises (a consumer
    that stopped, a drain that ended too soon). faults: at_s (seconds since the first message), kind, target.
    start_us: when the first message was sent. phases: seconds spent in each phase. acts: in order, the rest last.
    planned: kinds of faults that were to come. drains: what each owner told of finished drains. hot_keys: the heaviest
    keys (loadgen.samples.hot_keys). strict: what was not shown counts. untold: promises that this run could not judge,
    and why; what was counted of them is left out. cut_off: publishing ended too soon; what was sent is not all written
    down. waits: how long messages had waited until each sample, by reason. topic: the one that was flooded. incident:
    the file with the recorded decisions of a run that is not ok.
    """

    seed: int
    config: dict[str, Any]
    judgement: Judgement
    stats: pa.Table
    at_rest: dict[str, int]
    faults: list[dict[str, Any]]
    start_us: int
    troubles: list[str] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    moves_expected: bool = False
    delays_expected: bool = False
    passed_over: list[str] = field(default_factory=list)
    moves: Moves | None = None
    memory: pa.Table = field(default_factory=MEMORY.empty_table)
    acts: list[Act] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)
    drains: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    hot_keys: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strict: bool = False
    rolling_restart: bool = False
    untold: dict[str, str] = field(default_factory=dict)
    cut_off: bool = False
    waits: WaitSamples = ()
    topic: str = ""
    incident: str = ""

    def __post_init__(self) -> None:
        if self.cut_off:
            self.untold = self.untold | CUT_OFF
        self.judgement.findings.leave_out(self.untold)

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not ok, one sentence each; empty if it is."""
        findings = self.judgement.findings
        reasons = [f"{kind}: {count:,}" for kind, count in findings.violations.items() if count]
        reasons += [f"{name} at rest: {count:,}" for name, count in self.at_rest.items() if count]
        reasons += self.sentinel
        reasons += self.troubles
        reasons += self.rolling
        if not self.cut_off:
            expected = {"moves_expected": self.moves_expected, "delays_expected": self.delays_expected}
            reasons += nothing_checked(findings, **expected)
        reasons += self.unloaded
        return reasons

    @property
    def sentinel(self) -> list[str]:
        """The violations that the broker's own order sentinel reports, if any."""
        seen = _ever(self.stats, "order_violations")
        return [f"{seen:,} order violations counted by the broker itself"] if seen else []

    @property
    def rolling(self) -> list[str]:
        """The rules that a rolling restart broke."""
        if self.moves is None or not self.rolling_restart:
            return []
        reasons = []
        if not 0 < self.moves.ratio <= MOST_MOVES:
            reasons.append(f"hashes moved {self.moves.ratio:.2f} times the minimum, {MOST_MOVES} is allowed")
        longest = max((int(wait["unexplained_us"]) for wait in self.judgement.recovery.worst), default=0)
        if longest > HOLD_LIMIT_MS * 1000:
            reasons.append(f"a key waited {longest / 1000:,.0f} ms longer than its own messages explain")
        return reasons

    @property
    def unloaded(self) -> list[str]:
        """Restarts of a rolling restart that came when the load was over: they have shown nothing."""
        late = [fault for fault in self.faults if fault["at_us"] > self.judgement.measures.last_confirmed]
        if not self.rolling_restart or not late:
            return []
        return [f"{len(late)} of {len(self.faults)} restarts came after the last message; give it more --minutes"]

    @property
    def not_shown(self) -> list[str]:
        """The tests that this run should have made and did not, one sentence each; empty if nothing is missing."""
        return not_shown(self)

    def acts_shown(self) -> list[dict[str, Any]]:
        """The acts with their figures; the last one, at rest, has none but the counters at rest."""
        measured = self.judgement.measures.acts
        rows = []
        for act, figures in zip(self.acts[:-1], measured, strict=False):
            latencies = {
                "latency_ms": percentiles(figures.histogram),
                "publish_latency_ms": percentiles(figures.publish),
            }
            rows.append(act.to_dict(self.start_us) | {"messages": figures.confirmed} | figures.rates() | latencies)
        return [*rows, *(act.to_dict(self.start_us) | {"at_rest": self.at_rest} for act in self.acts[-1:])]

    def waits_shown(self) -> list[dict[str, Any]]:
        """Return the waits of messages by reason, a row for each act and fault (loadgen.report.waits)."""
        return waits_shown(self.waits, self.acts, self.faults, self.start_us)

    def drains_shown(self) -> dict[str, dict[str, int]]:
        """How long hashes drained and how many attempts they blocked, by the consumer that had to finish.

        Medians of several partitions are the largest of them.
        """
        whole: dict[str, dict[str, int]] = {}
        for of_owner in self.drains.values():
            for name, row in of_owner.items():
                mine = whole.setdefault(name, dict.fromkeys(row, 0))
                for what, value in row.items():
                    mine[what] = mine[what] + value if what == "hashes" else max(mine[what], value)
        return dict(sorted(whole.items()))

    def faults_shown(self) -> list[dict[str, Any]]:
        """The injected faults, and how long each took to mend: see tell_faults."""
        return tell_faults(self.judgement.recovery, self.faults)

    def recovery(self) -> dict[str, Any]:
        """How long the broker needed after the faults, for the report."""
        recovered = tell(self.judgement.recovery, self.faults, self.judgement.measures.span, self.start_us)
        moves = self.moves.to_dict() if self.moves is not None else None
        return recovered | {"moves": moves, "passed_over": self.passed_over}

    @property
    def verdict(self) -> str:
        """ok, broken or nothing_checked."""
        findings = self.judgement.findings
        if not self.reasons:
            return OK
        broken = not findings.clean or any(self.at_rest.values()) or self.troubles or self.sentinel or self.rolling
        return BROKEN if broken else NOTHING_CHECKED

    @property
    def exit_code(self) -> int:
        """0 when every promise held, else 1; 1 as well if something was not shown and that counts."""
        return 1 if self.verdict != OK or (self.strict and self.not_shown) else 0

    def draining(self) -> dict[str, int]:
        """Draining hashes: the most at once, all that began and were cleared, refusals because of them, those left.

        The peak is what the dispatchers saw themselves, summed over partitions: samples would miss a short drain.
        """
        return {
            "peak": max(_peak_of_sums(self.stats, "draining"), _peak_of_sums(self.stats, "draining_peak")),
            "begun_total": _ever(self.stats, "begun"),
            "cleared_total": _ever(self.stats, "cleared"),
            "blocked_attempts": _ever(self.stats, "blocked"),
            "at_end": self.at_rest["draining"],
        }

    @property
    def two_acts(self) -> bool:
        """Whether throughput and latency were measured in acts of their own."""
        return len(self.acts) == 3

    def latency(self) -> Any:
        """The histogram of latencies (us); in acts the one of the act at a fixed rate."""
        measures = self.judgement.measures
        return measures.acts[1].histogram if self.two_acts else measures.histogram

    def publish_latency(self) -> Any:
        """The histogram of times (us) until a publish was confirmed; in acts that of the same act."""
        measures = self.judgement.measures
        return measures.acts[1].publish if self.two_acts else measures.publish

    def latencies(self) -> dict[str, Any]:
        """The histograms of these and of delayed messages, which no other act has, in words."""
        return {
            "published to delivered": self.latency(),
            "published to confirmed": self.publish_latency(),
            "due to delivered (delayed)": self.judgement.measures.lateness,
        }

    def rates(self) -> dict[str, float]:
        """Messages per second from the first send to the last confirmation, and to the last acknowledgement.

        In acts these are the first one's.
        """
        measures, messages = self.judgement.measures, self.judgement.findings.messages
        if self.two_acts:
            first = measures.acts[0]
            mb = measures.bytes / max(messages["delivered"], 1) / 1e6
            rates = first.rates()
            return rates | {"end_to_end_mb_per_s": round(rates["end_to_end_msgs_per_s"] * mb, 3)}
        publish = max(measures.last_confirmed - measures.first_sent, 1) / 1e6
        whole = max(measures.last_acked - measures.first_sent, 1) / 1e6
        return {
            "publish_msgs_per_s": round(messages["confirmed"] / publish, 1) if messages["confirmed"] else 0.0,
            "end_to_end_msgs_per_s": round(messages["acked"] / whole, 1) if messages["acked"] else 0.0,
            "end_to_end_mb_per_s": round(measures.bytes / whole / 1e6, 3) if messages["acked"] else 0.0,
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; names and nesting are fixed."""
        findings, measures = self.judgement.findings, self.judgement.measures
        checked = {k: findings.checked[k] for k in ("messages", "keys", "keys_in_flight_together", "hashes_moved")}
        return {
            "seed": self.seed,
            "config": self.config,
            "messages": findings.messages,
            "violations": {kind: findings.violations.get(kind) for kind in VIOLATIONS},
            "information": findings.information,
            "checked": checked,
            "draining": self.draining(),
            "at_rest": self.at_rest,
            "not_shown": self.not_shown,
            "acts": self.acts_shown(),
            "waits": self.waits_shown(),
            "drains_by_consumer": self.drains_shown(),
            "hot_keys": self.hot_keys,
            "moves": self.moves.to_dict() if self.moves is not None else None,
            "rates": self.rates(),
            "latency_ms": percentiles(self.latency()),
            "lateness_ms": percentiles(measures.lateness),
            "publish_latency_ms": percentiles(self.publish_latency()),
            "faults": self.faults_shown(),
            "recovery": self.recovery(),
            "memory": summarise(self.memory),
            "examples": findings.examples,
            "reasons": self.reasons,
            "phases_s": {name: round(seconds, 3) for name, seconds in self.phases.items()},
            "verdict": self.verdict,
            "incident": self.incident,
        }

    def write_json(self, path: Path) -> None:
        """Write `to_dict` as a JSON file."""
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n")


def percentiles(histogram: Any) -> dict[str, float]:
    """p50, p99, p999 and max of an HDR histogram of microseconds, in milliseconds; zeros if it is empty."""
    if histogram.get_total_count() == 0:
        return {name: 0.0 for name, _ in _PERCENTILES}
    return {name: round(histogram.get_value_at_percentile(percent) / 1000, 3) for name, percent in _PERCENTILES}


def not_shown(report: Report) -> list[str]:
    """Promises that a run should have tested and did not. Only planned ones count."""
    missing = [f"{kind}: {why}" for kind, why in report.untold.items()]
    for fault in report.faults:
        if fault.get("effect") == "":
            missing.append(f"{fault['kind']} {fault['target']}: no effect was seen")
    kinds = [fault["kind"] for fault in report.faults]
    for kind in dict.fromkeys(report.planned):
        planned = report.planned.count(kind)
        if planned > kinds.count(kind):
            missing.append(f"{kind}: {kinds.count(kind)} of {planned} came before everything was delivered")
    if report.passed_over and not report.faults:
        missing.append(
            f"no fault came; {len(report.passed_over):,} were passed over, the first {report.passed_over[0]}"
        )
    checked = report.judgement.findings.checked
    if checked["keys"] and not checked["ordered"]:
        missing.append("order: every message with a key was delayed, and of those none is promised")
    received = report.judgement.measures.shares
    newcomers = [fault["target"] if fault["kind"] == JOIN else fault.get("helper", "") for fault in report.faults]
    for newcomer in filter(None, newcomers):
        if not any(counts.any() for name, counts in received.items() if name.rpartition(".")[0] == newcomer):
            missing.append(f"{newcomer} joined and received nothing")
    if not report.moves_expected:
        return missing
    if report.config.get("policy", DRAINING) != DRAINING:
        if not _ever(report.stats, "held_back"):
            missing.append(f"the policy {report.config['policy']} never held a message back")
    elif not report.draining()["begun_total"]:
        missing.append("no hash ever drained")
    if report.moves is not None and not report.moves.moved and not report.moves.changes:
        missing.append("no hash was given to another consumer while messages flowed")
    return missing


def _ever(stats: pa.Table, name: str) -> int:
    """Return the sum of a counter over all owners of all partitions: the counter of a new owner begins at zero."""
    if stats.num_rows == 0:
        return 0
    counted = stats.group_by(["partition", "epoch"]).aggregate([(name, "max")])
    return int(pc.sum(counted.column(f"{name}_max")).as_py())


def _peak_of_sums(stats: pa.Table, name: str) -> int:
    """The highest sum over partitions of one column in any sample."""
    if stats.num_rows == 0:
        return 0
    sums = stats.group_by("at").aggregate([(name, "sum")])
    return int(pc.max(sums.column(f"{name}_sum")).as_py())
