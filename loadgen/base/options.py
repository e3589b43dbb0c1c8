"""The options of a flood, checked before anything is started."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sluice.loadgen.base.acts import FIRST_PART
from sluice.loadgen.base.generate import Workload
from sluice.loadgen.base.kinds import S3_DOWN, check_kinds
from sluice.storage.errors import Invalid

POLICIES = ("draining_hashes", "last_sent_position", "read_position")
NACK_ORDERS = ("none", "key")
ROLLING = "rolling-restart"
SCENARIOS = ("", ROLLING)
SLUICE, PULSAR = CLIENTS = ("sluice", "pulsar")
"""The clients that can publish and consume."""
EVERYTHING = "all"
"""In place of kinds of faults: all that the cluster can stand."""
WORKLOADS: dict[str, dict[str, Any]] = {
    "joins": {
        "messages": 12_000,
        "keys": 40,
        "skew": 0.0,
        "partitions": 1,
        "consumers": 3,
        "restarts": 15,
        "work_us": 4_000.0,
        "receiver_queue_size": 400,
        "acts": False,
    },
}
"""Workloads by name. joins: few keys that always have messages in flight, consumers so slow and with so little room
that much is read and not yet sent, and many who come and go: that is where a policy shows whether it lets a newcomer
in without taking a key from a consumer that still works on it."""


@dataclass(frozen=True, slots=True)
class FloodOptions:
    """The options of `sluice flood`, by the names of the command line.

    size: bytes a message. skew: Zipf exponent. restarts: how many consumers are restarted under load, True means 5.
    delayed: share of messages that is delayed, by delay_min_ms to delay_max_ms. rate: messages per second, 0 = as
    fast as it goes. minutes: how long, in place of messages. faults, fault_every_ms: kinds of faults by time, in
    place of restarts. work_us: simulated work per message in each consumer. input and the columns: real data in place
    of generated messages. address: a running cluster; without one a local cluster is started. cores: Spark tasks at
    once. stall_s: how long nothing may move before the run is given up. scenario: `rolling-restart` restarts every
    consumer in turn, `rounds` times, in place of other faults. objects: where the cluster that is started keeps its
    snapshots. strict: what was not shown counts as a failure. acts: throughput first, then latency and faults
    (loadgen.base.acts). nack: share of the messages that consumers give back once. nack_order: of the subscription;
    with `key` the judge wants repeated deliveries in order too, without it tells how many were not. watch: serve the
    live page, with buttons that break things. topic_settings: of the topic that is made. s3_endpoint_url: where the S3
    server is that it uses, and that may be frozen. client: whose client publishes and consumes; Pulsar's needs a
    gateway. pool: the consumers are workers of a pool on Ray, which keeps each key in order through repeated deliveries
    too.
    """

    partitions: int = 4
    messages: int = 1_000_000
    size: int = 100
    keys: int = 10_000
    skew: float = 1.0
    consumers: int = 4
    restarts: int = 5
    delayed: float = 0.0
    delay_min_ms: int = 1_000
    delay_max_ms: int = 60_000
    rate: float = 0.0
    minutes: float | None = None
    faults: list[str] | None = None
    fault_every_ms: int = 3_000
    seed: int = field(default_factory=lambda: secrets.randbelow(2**31))
    policy: str = "draining_hashes"
    nack: float = 0.0
    nack_order: str = "none"
    data_dir: Path | None = None
    keep: bool = False
    json: Path | None = None
    report: Path | None = None
    input: str | None = None
    key_column: str | None = None
    payload_columns: list[str] | None = None
    time_column: str | None = None
    address: str | None = None
    bookies: int = 3
    cores: int = 2
    work_us: float = 1.0
    receiver_queue_size: int = 20_000
    stall_s: float = 30.0
    scenario: str = ""
    rounds: int = 0
    objects: str | None = None
    s3_endpoint_url: str | None = None
    strict: bool = False
    acts: bool = True
    watch: bool = False
    client: str = SLUICE
    pool: bool = False
    topic_settings: dict[str, Any] = field(default_factory=dict)

    @property
    def in_acts(self) -> bool:
        """Whether each fault waits for the effect of the one before, instead of for a time or a share."""
        return self.acts and self.minutes is None and self.faults is None and not self.scenario

    @property
    def first_part(self) -> float:
        """Part of the messages that goes out as fast as it goes before the others are paced; 0 if all are alike."""
        return FIRST_PART if self.in_acts and not self.rate else 0.0

    @classmethod
    def from_values(cls, **values: Any) -> FloodOptions:
        """Options from loose values: True for restarts, text for paths and lists. Raises Invalid for what is wrong."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known and name != "workload":
                raise Invalid(f"there is no option {name!r}; there are {', '.join(sorted(known))}")
        given = {name: value for name, value in values.items() if value is not None}
        given = cls._preset(given.pop("workload", None)) | given
        if isinstance(given.get("restarts"), bool):
            given["restarts"] = 5 if given["restarts"] else 0
        for name in ("data_dir", "json", "report"):
            if name in given:
                given[name] = Path(given[name]).absolute()
        for name in ("payload_columns", "faults"):
            if isinstance(given.get(name), str):
                given[name] = [part.strip() for part in given[name].split(",") if part.strip()]
        if given.get("pool"):
            given["nack_order"] = "key"
        options = cls(**given)
        options.check()
        return options

    @staticmethod
    def _preset(name: str | None) -> dict[str, Any]:
        if name is None:
            return {}
        if name not in WORKLOADS:
            raise Invalid(f"--workload is one of {', '.join(WORKLOADS)}, not {name!r}")
        return dict(WORKLOADS[name])

    def check(self) -> None:
        """Raises Invalid with one line that says what to change."""
        self._check_pool()
        for name, least in (("partitions", 1), ("consumers", 1), ("bookies", 1), ("cores", 1), ("restarts", 0)):
            if getattr(self, name) < least:
                raise Invalid(f"--{name} must be at least {least}, not {getattr(self, name)}")
        if self.rate < 0:
            raise Invalid(f"--rate must not be negative, not {self.rate}")
        if self.policy not in POLICIES:
            raise Invalid(f"--policy is one of {', '.join(POLICIES)}, not {self.policy!r}")
        if not 0 <= self.nack < 1:
            raise Invalid(f"--nack is a share from 0 to less than 1, not {self.nack}")
        if self.nack_order not in NACK_ORDERS:
            raise Invalid(f"--nack-order is one of {', '.join(NACK_ORDERS)}, not {self.nack_order!r}")
        if self.nack_order == "key" and self.policy != "draining_hashes":
            raise Invalid("--nack-order key needs --policy draining_hashes, which keeps keys in order")
        if self.bookies < 2 and self.address is None:
            raise Invalid("--bookies must be at least 2: every message is stored twice")
        if self.objects is not None and self.address is not None:
            raise Invalid("--objects is for the cluster that is started; the one at --address has its own")
        if self.input is not None and self.key_column is None:
            raise Invalid("--input needs --key-column: the column whose values are the keys")
        if self.input is None and (self.key_column or self.payload_columns or self.time_column):
            raise Invalid("--key-column, --payload-columns and --time-column belong to --input")
        if self.minutes is not None and self.minutes <= 0:
            raise Invalid(f"--minutes must be more than 0, not {self.minutes}")
        if self.faults is not None and self.fault_every_ms < 100:
            raise Invalid("faults come at most ten times a second")
        if self.faults is not None and self.faults != [EVERYTHING]:
            check_kinds(self.faults)
            if S3_DOWN in self.faults and self.s3_endpoint_url is None:
                raise Invalid(f"{S3_DOWN} needs s3_endpoint_url, and metadata or objects at s3://, configured")
        if self.scenario not in SCENARIOS:
            raise Invalid(f"--scenario is {ROLLING}, not {self.scenario!r}")
        if self.scenario and self.rounds < 1:
            raise Invalid(f"--rounds must be at least 1, not {self.rounds}")
        self._check_client()
        self.workload().check()

    def _check_client(self) -> None:
        if self.client not in CLIENTS:
            raise Invalid(f"--client is one of {', '.join(CLIENTS)}, not {self.client!r}")
        if self.client == PULSAR:
            for name, wrong in (("--input", self.input is not None), ("--strict", self.strict), ("--nack", self.nack)):
                if wrong:
                    raise Invalid(f"{name} does not go with --client pulsar; leave one of them out")
            if self.policy != POLICIES[0] or self.nack_order != "none":
                raise Invalid("--client pulsar has no --policy and no --nack-order: its subscriptions name none")

    def _check_pool(self) -> None:
        if not self.pool:
            return
        for name, wrong in (
            ("--client pulsar", self.client == PULSAR),
            ("--nack", self.nack),
            (f"--policy {self.policy}", self.policy != POLICIES[0]),
            ("--scenario", self.scenario),
        ):
            if wrong:
                raise Invalid(f"{name} does not go with --consumers ray; leave one of them out")

    def workload(self) -> Workload:
        """The messages that the tasks generate. With minutes, as many messages as the rate gives in that time."""
        messages = self.messages
        if self.minutes is not None:
            messages = int(self.minutes * 60 * (self.rate or UNPACED))
        return Workload(
            messages=messages,
            size=self.size,
            keys=self.keys,
            skew=self.skew,
            tasks=self.cores,
            seed=self.seed,
            delayed=self.delayed,
            delay_min_ms=self.delay_min_ms,
            delay_max_ms=self.delay_max_ms,
        )

    def describe(self) -> dict[str, Any]:
        """Plain values for the report."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


UNPACED = 1_000_000
"""Messages per second to plan for when the time is given and the rate is not; the time then ends the run."""
