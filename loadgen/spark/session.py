"""A Spark session for load and judgement: local, quiet, on the loopback, and gone when it is closed.

Spark's Java process outlives `stop()`; `spark_session` ends it too, so that a flood leaves nothing behind. Workers
must run this Python, not the first `python3` on PATH, and they find the packages of this checkout through
PYTHONPATH even if it is not installed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import sluice
from sluice.cluster.client.bulk import BATCH_ROWS

ATTEMPTS = 3
_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java's way for processes that live for a minute: half of the processor time of Spark's start went into compiling."""

_PYTHON_ERROR = re.compile(
    r"[A-Za-z_][\w.]*(Error|Exception|Unavailable|Overloaded|Fenced|Conflict|Invalid|NotFound|Corrupt): "
)

_PROJECT = Path(sluice.__file__).resolve().parents[1]
"""The folder that has the package, for workers of Spark that are not started from it."""


class SparkStart:
    """Starts Spark in a thread of its own, while the caller starts other things. Close it in any case.

    There is a context first and no session: one takes as much processor time again, and who publishes generated
    messages and judges histories needs none.
    """

    def __init__(self, folder: Path, *, cores: int = 2) -> None:
        """Begin at once. folder: where Spark may keep its shuffle files, its warehouse and its log."""
        self._settings = _settings(folder, cores)
        self._others = {process.pid for process in launched()}
        self._log = folder / "spark.log"
        self._context: Any = None
        self._failure: BaseException | None = None
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-start", daemon=True)
        self._thread.start()

    def context(self) -> Any:
        """Wait for the SparkContext. Raises the errors of its start."""
        self._thread.join()
        if self._failure is not None:
            sys.stderr.write(self._log.read_text(errors="replace")[-2000:])
            raise self._failure
        return self._context

    @property
    def up(self) -> bool:
        """Whether it has started, or failed."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop Spark and end its Java process, also one that is still starting. Safe to repeat."""
        self._given_up.set()
        while self._thread.is_alive():
            self._end_launched()
            self._thread.join(0.1)
        if self._context is not None:
            close_spark(self._context)
            self._context = None

    def _end_launched(self) -> None:
        """Kill a Java process whose start was interrupted: PySpark does not know it yet, so nobody else would.

        It is not waited for here: PySpark polls it, and takes a child that somebody else has reaped for one that runs.
        """
        for process in launched():
            if process.pid not in self._others:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def _run(self) -> None:
        try:
            self._context = self._start()
        except BaseException as error:
            # Whatever it was, it is raised to who asks for the context.
            self._failure = error
            self._end_launched()

    def _start(self) -> Any:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        conf = SparkConf().setAll(list(self._settings.items())).setAppName("sluice")
        gateway = None
        if SparkContext._gateway is None:
            # The standard error of the Java process would tear the display.
            with open(self._log, "wb") as log:
                gateway = launch_gateway(conf, {"stderr": log})
        if self._given_up.is_set():
            raise KeyboardInterrupt
        return SparkContext(conf=conf, gateway=gateway)


@contextlib.contextmanager
def spark_session(folder: Path, *, cores: int = 2) -> Iterator[Any]:
    """A local Spark session with `cores` workers; each task is tried up to ATTEMPTS times. See SparkStart."""
    start = SparkStart(folder, cores=cores)
    try:
        yield session_of(start.context())
    finally:
        start.close()


def session_of(context: Any) -> Any:
    """The SparkSession over a SparkContext, for work with frames."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.config(conf=context.getConf()).getOrCreate()


def use_own_python() -> None:
    """Let the workers of a Spark on this machine run this Python, unless PYSPARK_PYTHON names another one.

    Spark's own choice is the first `python3` on PATH. Without an activated environment that one lacks the packages.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def _settings(folder: Path, cores: int) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    _environment()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # PySpark writes 6 KB of JSON for a query that is wrong, beside the error that it raises.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    return {
        # Spark's ports are open to every user of the machine, so a client must know the session's secret.
        "spark.authenticate": "true",
        "spark.master": f"local[{cores},{ATTEMPTS}]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={folder} -Dderby.system.home={folder} {_quiet(folder)} {_SHORT_LIVED}"
        ),
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "sluice.loadgen.spark.workers",
        "spark.log.level": "ERROR",
    }


def close_spark(context: Any) -> None:
    """Stop a context and its session, and end the Java process. Safe while jobs are running and after an interrupt."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    with contextlib.suppress(Exception):
        context.cancelAllJobs()
    with contextlib.suppress(Exception):
        context.stop()
    if gateway is None:
        return
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    if process is None:
        return
    if process.stdin is not None:
        # The Java process ends when its standard input does.
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def launched() -> list[psutil.Process]:
    """The Java processes of Spark that this process has launched."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("SparkSubmit" in word or "spark-submit" in word for word in process.cmdline()):
                found.append(process)
    return found


def _environment() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark warns on every session that pandas' old timestamps behaviour needs this.
    os.environ.setdefault("PYARROW_IGNORE_TIMEZONE", "1")
    paths = [str(_PROJECT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def _quiet(folder: Path) -> str:
    """Options that make Spark's logging say errors only, from its first line on."""
    settings = folder / "log4j2.properties"
    settings.write_text(
        "rootLogger.level = error\n"
        "rootLogger.appenderRef.console.ref = console\n"
        "appender.console.type = Console\n"
        "appender.console.name = console\n"
        "appender.console.target = SYSTEM_ERR\n"
        "appender.console.layout.type = PatternLayout\n"
        "appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n\n"
    )
    return f"-Dlog4j2.configurationFile={settings}"


def cause_of(error: BaseException) -> str:
    """The line of a Spark error that names its cause: the last Python error in it, else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if _PYTHON_ERROR.match(line) and not line.startswith(("org.", "java.", "Caused"))]
    return (causes[-1:] or lines or [type(error).__name__])[0]
