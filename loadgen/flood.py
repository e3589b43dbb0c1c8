"""The flood: publish from Spark, consume, restart consumers under load, drain, and judge.

    cluster up -> Spark and consumer processes up -> publish and consume, faults meanwhile -> drain -> rest -> judge

The main thread only looks and decides: publishing runs in a Spark job (its own thread), consumers in processes of
their own, statistics are sampled by a thread. All that was started is on one stack and ends with it, whatever
happens; a second Ctrl-C does not stop the clean-up half way.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from rich.console import Console

from loadgen.broker import ClusterConnect, Connect
from loadgen.chaos import Chaos, ClusterProcesses, plan
from loadgen.consume import ConsumeJob
from loadgen.display import Display, Progress, make_display
from loadgen.faults import Fault, Fleet, Spawn, processes_needed
from loadgen.history import Clock, write_parquet
from loadgen.memory import MemorySampler, consumers, own
from loadgen.memory import spark as spark_memory
from loadgen.options import FloodOptions
from loadgen.outcome import Report
from loadgen.publish import SUMMARY, PublishJob, publish_generated, publish_rows, read_progress, warm_up
from loadgen.sampling import Sampler, at_rest
from loadgen.session import spark_session
from loadgen.verdict import Judgement, judge_with_spark, span_of
from storage.errors import Invalid, SluiceError, Unavailable

TOPIC, SUBSCRIPTION = "flood", "judge"
_LOOK_EVERY_S = 0.05
_FAULT_EVERY_S = 0.005
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REST_S = 10.0
_PYTHON_ERROR = re.compile(
    r"[A-Za-z_][\w.]*(Error|Exception|Unavailable|Overloaded|Fenced|Conflict|Invalid|NotFound|Corrupt): "
)


def flood_command(**values: Any) -> int:
    """What `sluice flood` and `sluice chaos` do, options by name (FloodOptions). Returns the exit code 0 or 1.

    Raises Invalid or Unavailable with one line for the caller to show, KeyboardInterrupt after everything is ended.
    """
    from loadgen import report as pages

    options = FloodOptions.of(**values)
    if options.input is not None:
        from loadgen.inputs import check_input

        check_input(options)
    # Ray tells on standard output when a worker dies, which here is the plan: only the console writes there.
    console = Console(file=sys.stdout)
    with _data_folder(options) as folder, contextlib.ExitStack() as stack:
        stack.enter_context(_finish_undisturbed())
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(folder / "ray.log", "w"))))
        display = stack.enter_context(make_display(console))
        display.show(Progress(phase="starting the cluster" if options.address is None else "joining the cluster"))
        began = time.monotonic()
        with _own_signals():
            address = options.address or stack.enter_context(_local_cluster(folder, options))
        connect = ClusterConnect(address, os.environ.get("RAY_AUTH_TOKEN_PATH", ""))
        boot = time.monotonic() - began
        report = run_flood(options, connect, folder=folder, display=display)
        report.phases = {"cluster": boot, **report.phases}
        if options.json is not None:
            report.write_json(options.json)
        if options.report is not None:
            pages.write_html(report, options.report)
    console.print(pages.summary(report))
    if options.keep:
        console.print(f"histories and data are in {folder}", highlight=False)
    return report.exit_code


def run_flood(
    options: FloodOptions,
    connect: Connect,
    *,
    folder: Path,
    display: Display | None = None,
    spawn: Spawn | None = None,
    spark: Any = None,
) -> Report:
    """Flood a running broker and judge it. Histories are written under `folder`/histories.

    spawn: how consumer processes are started, Ray actors by default. spark: a session to use and to leave open.
    """
    from loadgen.display import LineDisplay

    return Flood(options, connect, folder, display or LineDisplay(Console(quiet=True)), spawn, spark).run()


class Flood:
    """One run; `run` once."""

    def __init__(
        self,
        options: FloodOptions,
        connect: Connect,
        folder: Path,
        display: Display,
        spawn: Spawn | None = None,
        spark: Any = None,
    ) -> None:
        if spawn is None:
            from loadgen.processes import RayConsumer

            spawn = RayConsumer
        self._options, self._connect, self._display = options, connect, display
        self._folder = folder / "histories"
        self._spark_folder = folder / "spark"
        self._spawn = spawn
        self._session = spark
        self._clock = Clock.start()
        self._progress = Progress()
        self._phases: dict[str, float] = {}
        self._troubles: list[str] = []
        self._failure: BaseException | None = None
        self._start = 0
        # A kept cluster may have been flooded before: the topic and the names of this run are its own.
        self._run = f"{options.seed}-{self._clock.now() // 1000}"
        self._topic = f"{TOPIC}-{self._run}"

    def run(self) -> Report:
        """Everything, from the topic to the verdict."""
        options = self._options
        consume, publish = self._jobs()
        fleet = Fleet(consume, self._spawn)
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(self._connect())
            client.create_topic(self._topic, partitions=options.partitions)
            stack.callback(fleet.close)
            processes = ClusterProcesses(client, getattr(self._connect, "address", None), options.s3_endpoint_url)
            faults = plan(options, processes)
            chaos = stack.enter_context(
                contextlib.closing(Chaos(fleet, processes, client, self._topic, SUBSCRIPTION, options))
            )
            with self._phase("starting Spark and the consumers", "start"):
                spark = self._start_spark(stack)
                fleet.begin(options.consumers, processes_needed(faults))
                frame, total = self._source(spark)
                spark.range(0, options.cores, numPartitions=options.cores).mapInArrow(
                    warm_up(publish), "id long"
                ).collect()
            sampler = Sampler(client, self._topic, SUBSCRIPTION, self._clock)
            sampler.start()
            memory = self._watch_memory(client, fleet, stack)
            with self._phase("flooding", "flood"):
                self._flood(spark, frame, total, publish, chaos, sampler, faults)
                chaos.finish()
            with self._phase("coming to rest", "rest"):
                rest = self._rest(sampler)
                stats, held = sampler.stop(), memory.stop()
                fleet.finish()
                self._look(fleet, sampler)
            write_parquet(stats, self._folder / "stats.parquet")
            write_parquet(held, self._folder / "memory.parquet")
            with self._phase("judging with Spark", "judge"):
                span = span_of(self._folder)
                messages = total or self._progress.sent
                judgement = judge_with_spark(spark, self._folder, span, messages, fleet.history)
        return self._report(judgement, stats, held, rest, chaos)

    def _jobs(self) -> tuple[ConsumeJob, PublishJob]:
        """What consumers and producers are told, and the folders that they write into."""
        options = self._options
        consume = ConsumeJob(
            self._connect,
            self._topic,
            SUBSCRIPTION,
            self._clock,
            self._folder,
            options.policy,
            options.work_us,
            options.receiver_queue_size,
        )
        publish = PublishJob(
            self._connect,
            self._topic,
            f"flood-{self._run}",
            self._clock,
            self._folder,
            rate=options.rate,
            tasks=options.cores,
        )
        consume.prepare()
        publish.prepare()
        return consume, publish

    def _watch_memory(self, client: Any, fleet: Fleet, stack: contextlib.ExitStack) -> MemorySampler:
        from loadgen.processes import BrokerMemory

        memory = MemorySampler([BrokerMemory(client), consumers(fleet), spark_memory, own], self._clock)
        stack.callback(memory.stop)
        memory.start()
        return memory

    def _report(
        self, judgement: Judgement, stats: pa.Table, held: pa.Table, rest: dict[str, int], chaos: Chaos
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
            moves_expected=bool(fleet.history) and options.consumers > 1,
            delays_expected=options.delayed > 0,
            passed_over=chaos.passed_over,
            moves=chaos.moves,
            memory=held,
        )

    def _start_spark(self, stack: contextlib.ExitStack) -> Any:
        if self._session is not None:
            return self._session
        with _own_signals():
            return stack.enter_context(spark_session(self._spark_folder, cores=self._options.cores))

    def _source(self, spark: Any) -> tuple[Any, int]:
        """The rows to publish as a Spark frame, and how many messages they are (0: not known)."""
        options = self._options
        if options.input is not None:
            from loadgen.inputs import load_input

            return load_input(spark, options)
        frame = spark.range(0, options.cores, numPartitions=options.cores)
        known = options.minutes is None or options.rate > 0
        return frame, options.workload().messages if known else 0

    @contextlib.contextmanager
    def _phase(self, text: str, name: str) -> Iterator[None]:
        self._progress.phase = text
        self._display.show(self._progress)
        began = time.monotonic()
        yield
        self._phases[name] = time.monotonic() - began

    def _flood(
        self,
        spark: Any,
        frame: Any,
        total: int,
        job: PublishJob,
        chaos: Chaos,
        sampler: Sampler,
        faults: list[Fault],
    ) -> None:
        options, fleet = self._options, chaos.fleet
        self._start = self._clock.now()
        if options.minutes is not None:
            job = replace(job, lasts_us=int(options.minutes * 60e6))
        task = publish_rows(job) if options.input is not None else publish_generated(job, options.workload())
        publisher = threading.Thread(
            target=self._publish, args=(frame.mapInArrow(task, SUMMARY),), name="publisher", daemon=True
        )
        publisher.start()
        self._progress.total = total
        ended = threading.Event()
        breaker = threading.Thread(target=self._break, args=(chaos, faults, total, ended), name="faults", daemon=True)
        breaker.start()
        watch = _Watch(options)
        finished = 0
        while True:
            alive = publisher.is_alive()
            if not alive and not finished:
                finished = self._clock.now()
            self._look(fleet, sampler)
            if options.scenario and not breaker.is_alive():
                job.enough.touch()
            if not alive and (options.minutes is not None or self._failure is not None):
                ended.set()
            if not alive and not breaker.is_alive() and _drained(sampler, finished):
                break
            trouble = watch.trouble(self._progress, fleet)
            if trouble:
                self._troubles.append(trouble)
                break
            time.sleep(_LOOK_EVERY_S)
        ended.set()
        breaker.join()
        if self._failure is not None:
            self._troubles.append(f"publishing failed: {_cause(self._failure)}")

    def _break(self, chaos: Chaos, faults: list[Fault], total: int, ended: threading.Event) -> None:
        """Inject the faults, each when it is due; in a thread of its own, because a clean leave takes a while."""
        for fault in faults:
            while True:
                share = self._progress.delivered / total if total else 0.0
                if fault.due(share, (self._clock.now() - self._start) / 1e6):
                    break
                if ended.wait(_FAULT_EVERY_S):
                    return
            try:
                chaos.inject(fault)
            except Exception as error:
                self._troubles.append(f"the fault {fault.kind} could not be mended: {error}")
                return

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


class _Watch:
    """Notices that nothing moves any more."""

    def __init__(self, options: FloodOptions) -> None:
        self._patience = options.stall_s + (options.delay_max_ms / 1000 if options.delayed else 0)
        self._seen: tuple[int, ...] = ()
        self._since = time.monotonic()

    def trouble(self, progress: Progress, fleet: Fleet) -> str:
        """A sentence when the run stands still, else nothing."""
        stopped = "; ".join(fleet.troubles())
        if fleet.working and all(member.last.error for member in fleet.working):
            return f"no consumer is left ({stopped})"
        now = (progress.sent, progress.confirmed, progress.delivered, progress.backlog)
        if now != self._seen:
            self._seen, self._since = now, time.monotonic()
        if time.monotonic() - self._since < self._patience:
            return ""
        return f"nothing moved for {self._patience:.0f} s, {progress.backlog:,} messages are left" + (
            f" ({stopped})" if stopped else ""
        )


def _cause(error: BaseException) -> str:
    """The line of a Spark error that names its cause: the last Python error in it, else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if _PYTHON_ERROR.match(line) and not line.startswith(("org.", "java.", "Caused"))]
    return (causes[-1:] or lines or [type(error).__name__])[0]


@contextlib.contextmanager
def _local_cluster(folder: Path, options: FloodOptions) -> Iterator[str]:
    from cluster import launch

    stores = {"objects": options.objects or "", "s3_endpoint_url": options.s3_endpoint_url}
    with launch.local(folder / "broker", bookies=options.bookies, **stores) as running:
        yield running.address


@contextlib.contextmanager
def _data_folder(options: FloodOptions) -> Iterator[Path]:
    """The folder of the run; a temporary one goes away unless it is to be kept, a named one is never removed."""
    if options.data_dir is None:
        folder = Path(tempfile.mkdtemp(prefix="sluice-flood-"))
    else:
        folder = options.data_dir
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A second flood in the same folder must not judge the first one's histories.
            shutil.rmtree(folder / "histories", ignore_errors=True)
            (folder / "histories").mkdir()
        except OSError as error:
            raise Invalid(f"cannot write to --data-dir {folder}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder / "spark", ignore_errors=True)
        (folder / "ray.log").unlink(missing_ok=True)
        if not options.keep:
            if options.data_dir is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                for part in ("histories", "broker"):
                    shutil.rmtree(folder / part, ignore_errors=True)


@contextlib.contextmanager
def _finish_undisturbed() -> Iterator[None]:
    """The first signal interrupts; from then on signals are ignored, so that everything that was started is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for name in _SIGNALS:
            signal.signal(name, signal.SIG_IGN)
        logging.getLogger().addFilter(_not_py4j)
        raise KeyboardInterrupt(number)

    before = [(name, signal.signal(name, interrupt)) for name in _SIGNALS]
    try:
        yield
    finally:
        for name, handler in before:
            signal.signal(name, handler)
        logging.getLogger().removeFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    """The bridge to Java tells the root logger of the interrupt that it passes on; everything else is let through."""
    return "while sending command" not in record.getMessage()


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Spark and Ray install handlers when they start; ours are put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = [(name, signal.getsignal(name)) for name in _SIGNALS]
    yield
    for name, handler in kept:
        signal.signal(name, handler)
