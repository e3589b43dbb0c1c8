"""The surroundings of a flood: its folder, its cluster, the signals that end it, and the check that it moves.

The first signal interrupts; from then on signals are ignored until everything that was started has been ended.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from sluice.cluster.client.alarms import condition
from sluice.cluster.node.environment import SESSION_PREFIX, SHORT_ROOT
from sluice.cluster.node.identity import ID_FILE
from sluice.cluster.node.stale_folders import alone_in, claim, clear
from sluice.loadgen.base.display import FloodProgress
from sluice.loadgen.base.options import PULSAR, FloodOptions
from sluice.loadgen.faults.faults import Fleet
from sluice.loadgen.load import pulsar_client
from sluice.loadgen.report.result import Report
from sluice.storage.errors import Corrupt, Invalid, NotFound, SluiceError

FLOOD_PREFIX = "sluice-flood-"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def clear_leftovers() -> None:
    """Remove what floods that were killed left in the temporary folder."""
    clear(Path(tempfile.gettempdir()), FLOOD_PREFIX)
    clear(Path(SHORT_ROOT), SESSION_PREFIX)


@contextlib.contextmanager
def data_folder(options: FloodOptions) -> Iterator[Path]:
    """The folder of the run; a temporary one goes away unless it is to be kept, a named one is never removed.

    Raises Invalid if a cluster or another run has its data there.
    """
    with contextlib.ExitStack() as stack:
        folder = _temporary(options.keep) if options.data_dir is None else _named(options.data_dir, stack)
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


def _temporary(keep: bool) -> Path:
    clear_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=FLOOD_PREFIX))
    if not keep:
        claim(folder)
    return folder


def _named(folder: Path, stack: contextlib.ExitStack) -> Path:
    """A folder that a person named, for this run alone as long as the stack is open. Raises Invalid."""
    if (folder / ID_FILE).exists():
        raise Invalid(f"{folder} is the data folder of a cluster; name another --data-dir for the data of the run")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(alone_in(folder))
        # A second flood in the same folder must not judge the first one's histories.
        shutil.rmtree(folder / "histories", ignore_errors=True)
        (folder / "histories").mkdir()
    except OSError as error:
        raise Invalid(f"cannot write to --data-dir {folder}: {error.strerror}") from error
    return folder


def broker_folder(options: FloodOptions, folder: Path) -> Path:
    """The data folder of the cluster: the run's own, or the configured one of a cluster that runs already."""
    from sluice.cluster.settings.config import load

    return folder / "broker" if options.address is None else load().values.data_dir


def recorded_violations(data_dir: Path, topic: str, subscription: str) -> list[str]:
    """Return the broken promises with which owners ended: another owner went on, so histories do not show them.

    A recording that cannot be read may name one, and is told as well.
    """
    from sluice.cluster.host.recordings import chunks_in, recorded_files

    found: list[str] = []
    with contextlib.suppress(NotFound):
        for file in recorded_files(data_dir):
            try:
                for chunk in chunks_in(file, topic, subscription):
                    remarks = [str(call.arguments[1]) for call in chunk if call.name == "remark"]
                    found += [text for text in remarks if "InvariantViolation" in text]
            except (Corrupt, OSError) as error:
                found.append(f"what owners recorded is not known: {error}")
    return found


@contextlib.contextmanager
def recorded_everywhere(address: str | None, data_dir: Path) -> Iterator[Path]:
    """A data folder with what was recorded of a run: on `data_dir`, and on all machines of the cluster at `address`."""
    with contextlib.ExitStack() as stack:
        if address is not None:
            from sluice.cluster.launch.everywhere import gathered

            try:
                data_dir = stack.enter_context(gathered(address, data_dir))
            except (SluiceError, OSError) as error:
                logging.getLogger(__name__).warning("recordings of other machines are left out: %s", error)
        yield data_dir


def exported_incident(data_dir: Path, report: Report, subscription: str, folder: Path) -> str:
    """Write what the cluster on `data_dir` recorded of a run into a file in `folder`; return its path.

    Empty if this machine recorded nothing. What is too long is cut at its beginning.
    """
    from sluice.cluster.host.recordings import export_incident

    file, start, end = folder / f"{report.topic}.incident", report.start_us // 1000, time.time_ns() // 1_000_000
    while True:
        try:
            export_incident(data_dir, report.topic, subscription, (start, end), file)
            return str(file)
        except Invalid as error:
            if end - start > 1_000:
                start = (start + end) // 2
                continue
            problem: Exception = error
        except (NotFound, Corrupt, OSError) as error:
            problem = error
        logging.getLogger(__name__).warning("no incident was exported: %s", problem)
        return ""


@contextlib.contextmanager
def local_cluster(folder: Path, options: FloodOptions) -> Iterator[str]:
    """The address of a cluster of the run's own, for the length of a `with` block."""
    from sluice.cluster.launch import launch
    from sluice.cluster.settings.config import load

    recorder_bytes = load().values.recorder_bytes
    more = {
        "objects": options.objects or "",
        "s3_endpoint_url": options.s3_endpoint_url,
        "recorder_bytes": recorder_bytes,
    }
    port = pulsar_client.free_port() if options.client == PULSAR else -1
    with launch.local(folder / "broker", bookies=options.bookies, pulsar_port=port, **more) as running:
        yield running.address


@contextlib.contextmanager
def finish_undisturbed() -> Iterator[None]:
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
def own_signals() -> Iterator[None]:
    """Spark and Ray install handlers when they start; ours are put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = [(name, signal.getsignal(name)) for name in _SIGNALS]
    yield
    for name, handler in kept:
        signal.signal(name, handler)


def given_up(trouble: str, spark: Any) -> list[str]:
    """Give up publishers that hang, so that the judge need not wait; says what is wrong, with the cluster too."""
    spark.cancelAllJobs()
    try:
        return [trouble, *condition()["alarms"]]
    except (SluiceError, OSError):
        return [trouble, "the cluster does not tell what is wrong with it"]


LOOK_S = 1.0
"""The most that counts of the time between two looks."""


class StallGuard:
    """A guard that notices when a flood does not move any more.

    Time between two looks that are far apart does not count: the caller was busy, with processes that it made ready
    between two acts for example, and nothing could move before.
    """

    def __init__(self, options: FloodOptions) -> None:
        self._patience = options.stall_s + (options.delay_max_ms / 1000 if options.delayed else 0)
        self._seen: tuple[int, ...] = ()
        self._still, self._looked = 0.0, time.monotonic()

    def trouble(self, progress: FloodProgress, fleet: Fleet) -> str:
        """A sentence when the run stands still, else nothing."""
        stopped = "; ".join(fleet.troubles())
        if fleet.working and all(member.last.error for member in fleet.working):
            return f"no consumer is left ({stopped})"
        now = (progress.sent, progress.confirmed, progress.delivered, progress.backlog)
        looked = time.monotonic()
        self._still += min(looked - self._looked, LOOK_S)
        self._looked = looked
        if now != self._seen:
            self._seen, self._still = now, 0.0
        if self._still < self._patience:
            return ""
        return f"nothing moved for {self._patience:.0f} s, {progress.backlog:,} messages are left" + (
            f" ({stopped})" if stopped else ""
        )
