"""A process that may open few files: clients cannot take those that it needs itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice.cluster.launch import standalone
from sluice.cluster.launch.launch import down
from sluice.cluster.settings.connection_limits import limits_of
from tests.cluster.gateway.raw import Raw
from tests.cluster.gateway.test_up import round_trip
from tests.cluster.helpers import PYTHON, SMALL

pytestmark = pytest.mark.timeout(240)
FEW = 192
MANY = 2 * FEW


@pytest.fixture
def said(tmp_path: Path) -> Iterator[str]:
    """Yield the output of `up` for a cluster that may open few files."""
    settings = [f"--set={name}={value}" for name, value in (SMALL | {"pulsar_port": 0, "pulsar_web_port": -1}).items()]
    command = [
        str(Path(PYTHON).with_name("sluice")),
        "up",
        "--embedded",
        "--data-dir",
        str(tmp_path / "data"),
        *settings,
    ]
    limited = ["sh", "-c", f'ulimit -n {FEW} && exec "$@"', "sh", *command]
    yield subprocess.run(limited, check=True, capture_output=True, text=True, timeout=120).stderr
    down(tmp_path / "data")


def test_clients_leave_the_files_that_bookies_need(said: str, tmp_path: Path) -> None:
    url = re.search(r"pulsar://[^ \n]+", said)
    assert url is not None
    with ExitStack() as stack:
        flood = [stack.enter_context(Raw(url[0], f"127.0.0.{2 + number % 4}")) for number in range(MANY)]
        assert 0 < sum(not one.refused() for one in flood) <= FEW / 4
    assert round_trip(said) == b"paid"
    log = (tmp_path / "data" / standalone.LOG_FILE).read_text()
    assert "raise the limit (ulimit -n)" in log
    assert "Too many open files" not in log


@pytest.mark.parametrize(("files", "limits"), [(-1, (1_000, 500)), (4_000, (1_000, 500)), (1_000, (250, 125))])
def test_connections_are_fewer_where_files_are(
    files: int, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert limits_of({}) == limits
