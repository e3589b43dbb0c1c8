"""A Spark session for load and judgement: local, quiet, on loopback, and really gone when it is closed.

Spark's Java process outlives `stop()`; `spark_session` ends it too, so that a flood leaves nothing behind. Workers
must run this Python, not the first `python3` on PATH, and they find the packages of this checkout through
PYTHONPATH even if it is not installed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

BATCH_ROWS = 10_000
"""Rows of an Arrow batch between Spark and Python; larger ones were measured to be slower."""

_PROJECT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def spark_session(folder: Path, *, cores: int = 2, attempts: int = 3, memory: str = "1g") -> Iterator[Any]:
    """A local Spark session with `cores` workers; each task is tried up to `attempts` times.

    folder: where Spark may keep its shuffle files and its warehouse.
    """
    from pyspark.sql import SparkSession

    folder.mkdir(parents=True, exist_ok=True)
    _environment()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -Dderby.system.home={folder} {_quiet(folder)}",
        "spark.python.worker.reuse": "true",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{cores},{attempts}]").appName("sluice")
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _stderr_to(folder / "spark.log"):
            spark = builder.getOrCreate()
    except BaseException:
        _end_launched()
        raise
    try:
        yield spark
    finally:
        close_spark(spark)


def close_spark(spark: Any) -> None:
    """Stop the session and end its Java process. Safe to call while jobs are running and after an interrupt."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    with contextlib.suppress(Exception):
        spark.sparkContext.cancelAllJobs()
    with contextlib.suppress(Exception):
        spark.stop()
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


def _end_launched() -> None:
    """End a Java process whose start was interrupted: PySpark does not know it yet, so nobody else would."""
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("SparkSubmit" in word or "spark-submit" in word for word in process.cmdline()):
                process.kill()
                process.wait(5)


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


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send what the Java process will write to standard error into a file, so that it does not tear the display.

    The Java process inherits the descriptor when it is started and keeps it; ours is put back at once. If it cannot
    be started, what it wrote is shown.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.dup2(target, 2)
        yield
    except BaseException:
        os.dup2(kept, 2)
        sys.stderr.write(path.read_text(errors="replace")[-2000:])
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
