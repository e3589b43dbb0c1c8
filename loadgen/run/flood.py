"""The flood: publish from Spark, consume, restart consumers under load, drain, and judge.

    cluster up -> Spark and consumer processes up -> publish and consume, faults meanwhile -> drain -> rest -> judge

The main thread only looks and decides: publishing runs in a Spark job (its own thread), consumers in processes of
their own, statistics are sampled by a thread. All that was started is on one stack and ends with it, whatever
happens; a second Ctrl-C does not stop the clean-up half way.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from sluice.cluster.base.arrow import with_pandas, without_pandas
from sluice.cluster.launch.attach import join
from sluice.cluster.node.environment import TOKEN_PATH
from sluice.loadgen.base.acts import FAST, LOADED, REST, Act, Pace, Reserve, second_rate
from sluice.loadgen.base.broker import ClusterConnect, Connect
from sluice.loadgen.base.display import Display, FloodProgress, make_display
from sluice.loadgen.base.history import HistoryClock, write_parquet
from sluice.loadgen.base.options import PULSAR, FloodOptions
from sluice.loadgen.faults.chaos import Chaos, ClusterProcesses, plan
from sluice.loadgen.faults.effects import PATIENCE_S
from sluice.loadgen.faults.fault_injector import FaultInjector
from sluice.loadgen.faults.faults import Fleet, Spawn, processes_needed
from sluice.loadgen.judge.verdict import Judgement, judge_with_spark, span_of
from sluice.loadgen.load import pulsar_client
from sluice.loadgen.load.consume import ConsumeJob
from sluice.loadgen.load.fork_server import ForkServer
from sluice.loadgen.load.publish import (
    SUMMARY,
    PublishJob,
    publish_generated,
    publish_rows,
    read_progress,
    spread,
    warm_up,
)
from sluice.loadgen.report.result import OK, Report
from sluice.loadgen.run.fault_buttons import FaultButtons, Page
from sluice.loadgen.run.guard import (
    StallGuard,
    broker_folder,
    data_folder,
    exported_incident,
    finish_undisturbed,
    given_up,
    local_cluster,
    own_signals,
    recorded_everywhere,
    recorded_violations,
)
from sluice.loadgen.run.pool_fleet import pool_of
from sluice.loadgen.samples.hot_keys import merged
from sluice.loadgen.samples.memory import MemorySampler, consumers, own
from sluice.loadgen.samples.memory import spark as spark_memory
from sluice.loadgen.samples.sampling import Sampler, at_rest
from sluice.loadgen.spark.session import SparkStart, cause_of, session_of
from sluice.storage.errors import SluiceError, Unavailable

TOPIC, SUBSCRIPTION = "flood", "judge"
_LOOK_EVERY_S = 0.05
_REST_S = 10.0
_LEAST_QUEUE = 25
"""Messages of each partition that the queue of one who joins under a fixed rate has room for, at least."""
READY_FOR_A_PERSON = 3
"""Spare consumers beside those that the plan takes, where faults can be pressed: what hangs takes two."""
_NEARLY = 0.999
"""The share of the first act to be delivered before owners are asked for the rest: tasks round their parts."""


def flood_command(**values: Any) -> int:
    """Run `sluice flood` or `sluice chaos`, with options by name (FloodOptions). Returns the exit code 0 or 1.

    Raises Invalid or Unavailable with one line for the caller to show, KeyboardInterrupt after everything is ended.
    """
    from sluice.loadgen.report import report as pages

    options = FloodOptions.from_values(**values)
    if options.client == PULSAR:
        pulsar_client.check_installed()
    if options.input is None:
        without_pandas()
    else:
        from sluice.loadgen.spark.inputs import check_input

        with_pandas()  # Spark's frames want it
        check_input(options)
    # Ray tells on standard output when a worker dies, which here is the plan: only the console writes there.
    console = Console(file=sys.stdout)
    with data_folder(options) as folder, contextlib.ExitStack() as stack:
        stack.enter_context(finish_undisturbed())
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(folder / "ray.log", "w"))))
        display = stack.enter_context(make_display(console))
        helpers = stack.enter_context(Helpers(folder, options))
        display.show(FloodProgress(phase="starting the cluster" if options.address is None else "joining the cluster"))
        began = time.monotonic()
        with own_signals():
            address = options.address or stack.enter_context(local_cluster(folder, options))
            join(address)  # this process looks at the cluster's processes, which Ray knows
        home = broker_folder(options, folder).resolve()
        connect = ClusterConnect(address, os.environ.get(TOKEN_PATH, ""), str(home))
        clients = pulsar_client.connect_to(broker_folder(options, folder)) if options.client == PULSAR else None
        boot = time.monotonic() - began
        page = None
        if options.watch:
            page = Page(
                broker_folder(options, folder), lambda url: console.print(f"the live page: {url}", soft_wrap=True)
            )
        report = Flood(options, connect, folder, display, helpers, page, clients).run()
        report.phases = {"cluster": boot, **report.phases}
        with recorded_everywhere(options.address, home) as recorded:
            report.troubles += recorded_violations(recorded, report.topic, SUBSCRIPTION)
            if report.verdict != OK:
                report.incident = exported_incident(recorded, report, SUBSCRIPTION, options.data_dir or Path())
        if options.json is not None:
            report.write_json(options.json)
        if options.report is not None:
            pages.write_html(report, options.report)
    console.print(pages.summary(report))
    if options.keep:
        console.print(f"histories and data are in {folder}", highlight=False, markup=False)
    return report.exit_code


def run_flood(
    options: FloodOptions,
    connect: Connect,
    *,
    folder: Path,
    display: Display | None = None,
    spawn: Spawn | None = None,
    spark: Any = None,
    page: Page | None = None,
    clients: Connect | None = None,
) -> Report:
    """Flood a running broker and judge it. Histories are written under `folder`/histories.

    spawn: how consumer processes are started, by default as forks. spark: a SparkContext to use and to leave open.
    page: serve the live page with its buttons meanwhile. clients: what tasks and consumers connect with instead.
    """
    from sluice.loadgen.base.display import LineDisplay

    with Helpers(folder, options, spawn=spawn, spark=spark) as helpers:
        shown = display or LineDisplay(Console(quiet=True))
        return Flood(options, connect, folder, shown, helpers, page, clients).run()


class Helpers:
    """The slow starters beside the broker: Spark, and the process from which consumers are forked.

    Both start at once when this is made, while the cluster starts, and end with the `with` block.
    """

    def __init__(self, folder: Path, options: FloodOptions, *, spawn: Spawn | None = None, spark: Any = None) -> None:
        self._spark = spark
        self._start = None if spark else SparkStart(folder / "spark", cores=options.cores)
        self._fork_server = None if spawn else ForkServer()
        self.spawn: Spawn = spawn or self._fork_server  # type: ignore[assignment]

    @property
    def spark(self) -> Any:
        """The SparkContext, which is waited for."""
        return self._spark or self._start.context()  # type: ignore[union-attr]

    def __enter__(self) -> Helpers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._start is not None:
            self._start.close()
        if self._fork_server is not None:
            self._fork_server.close()


class Flood:
    """One run; `run` once."""

    def __init__(
        self,
        options: FloodOptions,
        connect: Connect,
        folder: Path,
        display: Display,
        helpers: Helpers,
        page: Page | None = None,
        clients: Connect | None = None,
    ) -> None:
        self._options, self._connect, self._display = options, connect, display
        self._clients = clients or connect
        self._folder = folder / "histories"
        self._helpers, self._page = helpers, page
        self._clock = HistoryClock.start()
        self._progress = FloodProgress()
        self._phases: dict[str, float] = {}
        self._troubles: list[str] = []
        self._failure: BaseException | None = None
        self._start = 0
        self._acts: list[Act] = []
        self._planned: list[str] = []
        self._needed = 0
        self._reserve: Reserve | None = None
        self._first_done, self._throughput = 0, 0.0
        # A kept cluster may have been flooded before: the topic and the names of this run are its own.
        self._run = f"{options.seed}-{self._clock.now() // 1000}"
        self._topic = f"{TOPIC}-{self._run}"

    def run(self) -> Report:
        """Run the flood, from the topic to the verdict."""
        options = self._options
        consume, publish = self._jobs()
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(self._connect())
            pool = self._options.pool
            fleet = pool_of(consume, client, self._connect) if pool else Fleet(consume, self._helpers.spawn)
            client.create_topic(self._topic, partitions=options.partitions, **self._settings)
            stack.callback(fleet.close)
            # The first client makes the brokers start: not the consumers, which are only just being made.
            threading.Thread(target=self._wake_brokers, args=(client,), name="wake-brokers", daemon=True).start()
            processes = ClusterProcesses(client, getattr(self._connect, "address", None), options.s3_endpoint_url)
            faults = plan(options, processes)
            self._planned = [fault.kind for fault in faults] if options.in_acts else []
            chaos = Chaos(fleet, processes, client, self._topic, SUBSCRIPTION, options)
            stack.callback(chaos.close)
            sampler = Sampler(client, self._topic, SUBSCRIPTION, self._clock)
            breaker = FaultInjector(chaos, faults, lambda: sampler.latest, in_acts=options.in_acts)
            self._show_page(stack, breaker, chaos, publish)
            with self._phase("starting consumers", "consumers"):
                fleet.start(options.consumers, 0, READY_FOR_A_PERSON if self._page else 0)
            with self._phase("starting Spark", "spark"):
                spark = self._helpers.spark
                job, total = self._source(spark, publish)
                spread(spark, warm_up(publish), options.cores).collect()
                self._needed = processes_needed(faults)
                if not options.first_part:
                    fleet.prepare(self._needed, self._queue(options.rate))
            sampler.start()
            memory = self._watch_memory(client, fleet, stack)
            with self._phase("flooding", "flood"):
                self._flood(job, total, publish, breaker, fleet, sampler)
                chaos.finish()
            with self._phase("coming to rest", "rest"):
                rest = self._rest(sampler)
                self._acts[-1].end = self._clock.now()
                stats, held = sampler.stop(), memory.stop()
                fleet.finish()
                self._look(fleet, sampler)
            write_parquet(stats, self._folder / "stats.parquet")
            write_parquet(held, self._folder / "memory.parquet")
            with self._phase("judging with Spark", "judge"):
                span = span_of(self._folder, [act.start for act in self._acts[1:-1]])
                messages = total or self._progress.sent
                judgement = judge_with_spark(
                    spark, self._folder, span, messages, fleet.history, nack_order=self._options.nack_order
                )
        self._troubles += breaker.troubles
        return self._report(judgement, stats, held, rest, chaos, sampler)

    def _queue(self, rate: float) -> int:
        """receiver_queue_size of one that joins under a fixed rate: its share of half a second, at most a flood's."""
        options = self._options
        share = int(rate / options.consumers / 2) if rate and options.in_acts else options.receiver_queue_size
        return max(min(share, options.receiver_queue_size), options.partitions * _LEAST_QUEUE)

    def _show_page(self, stack: contextlib.ExitStack, breaker: FaultInjector, chaos: Chaos, job: PublishJob) -> None:
        if self._page is None:
            return
        from sluice.cluster.watch.panel import Admin, Panel

        pressing = FaultButtons(breaker, chaos, lambda: self._progress.phase, job.enough.touch)
        panel = Panel(Admin(self._page.data_dir), pressing, topic=self._topic, subscription=SUBSCRIPTION)
        self._page.announce(stack.enter_context(panel).address)

    def _wake_brokers(self, client: Any) -> None:
        with contextlib.suppress(SluiceError):
            client.create_producer(self._topic).close()

    def _jobs(self) -> tuple[ConsumeJob, PublishJob]:
        """The jobs of consumers and producers, and the folders that they write into."""
        options = self._options
        consume = ConsumeJob(
            self._clients,
            self._topic,
            SUBSCRIPTION,
            self._clock,
            self._folder,
            options.policy,
            options.work_us,
            options.receiver_queue_size,
            options.nack,
            options.nack_order,
        )
        publish = PublishJob(
            self._clients,
            self._topic,
            f"flood-{self._run}",
            self._clock,
            self._folder,
            rate=options.rate,
            tasks=options.cores,
            first_part=options.first_part,
            lasts_us=int(options.minutes * 60e6) if options.minutes is not None else 0,
        )
        consume.prepare()
        publish.prepare()
        return consume, publish

    def _watch_memory(self, client: Any, fleet: Fleet, stack: contextlib.ExitStack) -> MemorySampler:
        from sluice.loadgen.samples.processes import BrokerMemory

        memory = MemorySampler([BrokerMemory(client), consumers(fleet), spark_memory, own], self._clock)
        stack.callback(memory.stop)
        memory.start()
        return memory

    def _report(
        self,
        judgement: Judgement,
        stats: pa.Table,
        held: pa.Table,
        rest: dict[str, int],
        chaos: Chaos,
        sampler: Sampler,
    ) -> Report:
        options, fleet = self._options, chaos.fleet
        first = judgement.measures.first_sent or self._start
        return Report(
            seed=options.seed,
            config=options.describe(),
            judgement=judgement,
            stats=stats,
            at_rest=rest,
            faults=[fault | {"at_s": round((fault["at_us"] - first) / 1e6, 3)} for fault in fleet.history],
            start_us=first,
            troubles=self._troubles + chaos.troubles + fleet.troubles(),
            phases=self._phases,
            moves_expected=chaos.moves_expected and options.consumers > 1,
            acts=self._acts,
            planned=self._planned,
            drains=sampler.drains,
            hot_keys=merged(sampler.hot_keys),
            waits=sampler.waits,
            strict=options.strict,
            rolling_restart=bool(options.scenario),
            delays_expected=options.delayed > 0,
            passed_over=chaos.passed_over,
            moves=chaos.moves,
            memory=held,
            untold=pulsar_client.untold([f["kind"] for f in fleet.history]) if options.client == PULSAR else {},
            cut_off=self._failure is not None,
            topic=self._topic,
        )

    @property
    def _settings(self) -> dict[str, Any]:
        return (pulsar_client.TOPIC_SETTINGS if self._options.client == PULSAR else {}) | self._options.topic_settings

    def _source(self, spark: Any, job: PublishJob) -> tuple[Callable[[PublishJob], Any], int]:
        """A maker of the Spark job that publishes, and the number of messages (0: not known)."""
        options = self._options
        if options.input is not None:
            from sluice.loadgen.spark.inputs import load_input

            frame, total = load_input(session_of(spark), options)
            return lambda job: frame.mapInArrow(publish_rows(replace(job, total=total)), SUMMARY), total
        workload = options.workload()
        known = options.minutes is None or options.rate > 0
        return (
            lambda job: spread(spark, publish_generated(job, workload), options.cores),
            workload.messages if known else 0,
        )

    @contextlib.contextmanager
    def _phase(self, text: str, name: str) -> Iterator[None]:
        self._progress.phase = text
        self._display.show(self._progress)
        began = time.monotonic()
        yield
        self._phases[name] = time.monotonic() - began

    def _flood(
        self,
        make: Callable[[PublishJob], Any],
        total: int,
        job: PublishJob,
        breaker: FaultInjector,
        fleet: Fleet,
        sampler: Sampler,
    ) -> None:
        options, progress = self._options, self._progress
        self._start = self._clock.now()
        publisher = threading.Thread(target=self._publish, args=(make(job),), name="publisher", daemon=True)
        publisher.start()
        progress.total = total
        breaker.start(
            lambda: progress.delivered,
            lambda: progress.delivered / total if total else 0.0,
            lambda: (self._clock.now() - self._start) / 1e6,
        )
        self._begin_act(FAST if options.first_part else LOADED, options.rate)
        if not options.first_part:
            breaker.loaded.set()
        watch = StallGuard(options)
        finished = 0
        while True:
            alive = publisher.is_alive()
            if not alive and not finished:
                finished = self._clock.now()
            self._look(fleet, sampler)
            if options.scenario and not breaker.busy:
                job.enough.touch()
            if total and options.in_acts:
                self._turn(job, int(total * options.first_part), breaker, fleet, sampler)
            drained = not alive and _drained(sampler, finished)
            if (not alive and (options.minutes is not None or self._failure is not None)) or (
                drained and options.in_acts
            ):
                breaker.ended.set()
            if drained and not breaker.busy:
                break
            trouble = watch.trouble(self._progress, fleet)
            if trouble:
                self._troubles += given_up(trouble, self._helpers.spark)
                break
            time.sleep(_LOOK_EVERY_S)
        breaker.end()
        self._begin_act(REST, 0.0)
        if self._failure is not None and not self._troubles:
            self._troubles.append(f"publishing failed: {cause_of(self._failure)}")

    def _begin_act(self, name: str, rate: float) -> None:
        """The one before ends now."""
        now = self._clock.now()
        if self._acts:
            self._acts[-1].end = now
        self._acts.append(Act(name, now, rate=rate))
        if self._options.in_acts:
            self._progress.phase = f"act {len(self._acts)}: {name}" + (f", {rate:,.0f}/s" if rate else "")

    def _turn(self, job: PublishJob, first: int, breaker: FaultInjector, fleet: Fleet, sampler: Sampler) -> None:
        """When what the first act sent is delivered and acknowledged, tell the pace of the second, which follows."""
        now, total = self._clock.now(), self._progress.total
        if breaker.loaded.is_set():
            if self._reserve is None:
                self._reserve = Reserve(job.pace, self._acts[-1].rate, total - first)
            self._reserve.adjust(total - self._progress.sent, breaker.pending * PATIENCE_S, now)
            return
        delivered = fleet.received - fleet.redelivered
        if not self._first_done and delivered >= first * _NEARLY:
            self._first_done = now
            self._throughput = delivered / max(now - self._start, 1) * 1e6
        if self._first_done and delivered >= first * _NEARLY and _drained(sampler, self._first_done):
            rate = second_rate(self._throughput, total - first)
            self._progress.phase = "between the acts: spare consumers connect"
            self._display.show(self._progress)
            fleet.prepare(self._needed, self._queue(rate))
            self._begin_act(LOADED, rate)
            breaker.loaded.set()
            Pace(rate, self._acts[-1].start).write(job.pace)

    def _publish(self, job: Any) -> None:
        try:
            job.collect()
        except BaseException as error:
            # Spark's errors are Java's; what matters is told by the main thread.
            self._failure = error

    def _look(self, fleet: Fleet, sampler: Sampler) -> None:
        progress = self._progress
        fleet.poll()
        progress.sent, progress.confirmed = read_progress(self._folder)
        if not progress.sent:
            self._start = self._clock.now()  # faults come under load: their time begins with the first message
        progress.delivered, progress.redelivered = fleet.received, fleet.redelivered
        latest = sampler.latest
        progress.backlog, progress.unacked = latest.get("backlog", 0), latest.get("unacked", 0)
        progress.draining, progress.replay = latest.get("draining", 0), latest.get("replay", 0)
        progress.draining_history = sampler.draining
        progress.consumers = [(member.incarnation, member.last.received) for member in fleet.working]
        progress.faults = [
            f"{(f['at_us'] - self._start) / 1e6:6.1f} s  {f['kind']} {f['target']}" for f in fleet.history
        ]
        self._display.show(progress)

    def _rest(self, sampler: Sampler) -> dict[str, int]:
        """The counters that must be zero; waits for them as long as a slow acknowledgement may take."""
        deadline = time.monotonic() + _REST_S
        while True:
            rest = None
            with contextlib.suppress(SluiceError):
                rest = at_rest(sampler.sample())
            if rest is not None and (not any(rest.values()) or time.monotonic() > deadline):
                return rest
            if time.monotonic() > deadline:
                raise Unavailable(
                    "; ".join(
                        [*self._troubles, "the dispatchers do not tell their statistics; is the cluster running?"]
                    )
                )
            time.sleep(_LOOK_EVERY_S)


def _drained(sampler: Sampler, since: int) -> bool:
    """A sample that was begun after publishing ended says that nothing is left."""
    return sampler.taken_at >= since and sampler.latest.get("backlog") == 0
