"""Programs with Pulsar's Java client: the client by Maven, the program compiled against it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks._peer_servers import Missing

VERSION = "4.0.8"
FETCH_S = 300
_PROJECT = """<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId>
<version>1</version><dependencies><dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-client</artifactId>
<version>{version}</version></dependency></dependencies></project>"""
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


def compiled(source: Path, folder: Path, *options: str) -> list[str]:
    """The command that runs a program of one file; arguments of its own can follow. folder: for what is made.

    options: of the virtual machine. Raises Missing if Java, Maven or the client are not there and cannot be had.
    """
    tools = [shutil.which(tool) for tool in ("java", "javac", "mvn")]
    java, javac, mvn = (tool or "" for tool in tools)
    if not all((java, javac, mvn)):
        raise Missing("needs java, javac and mvn; Debian, Ubuntu: apt install default-jdk maven")
    classes = f"{folder}{os.pathsep}{_client(mvn, folder)}"
    compile_ = [javac, "-nowarn", "-encoding", "UTF-8", "-cp", classes, "-d", str(folder), str(source)]
    done = subprocess.run(compile_, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile: {done.stderr.strip()}")
    return [java, *options, "-cp", classes, source.stem]


def _client(mvn: str, folder: Path) -> str:
    """The class path of the client: what Maven has, or gets."""
    listed = folder / "classpath"
    project = folder / "pom.xml"
    project.write_text(_PROJECT.format(version=VERSION))
    for offline in (["-o"], []):
        fetch = [mvn, *offline, "-B", "-q", "-f", str(project), _GOAL, f"-Dmdep.outputFile={listed}"]
        try:
            got = subprocess.run(fetch, capture_output=True, timeout=FETCH_S, check=False)
        except subprocess.TimeoutExpired:
            continue
        if got.returncode == 0:
            return listed.read_text().strip()
    raise Missing(f"Maven has no pulsar-client {VERSION}, and cannot get it")
