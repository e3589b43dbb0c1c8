"""By which address a process attaches itself to a Ray cluster."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from sluice.cluster.launch.attach import choose_own, keep_ray_off_stdout, own_addresses
from tests.cluster.helpers import PYTHON, ROOT

AT_ONCE = """
import shutil, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from sluice.cluster.launch.attach import join
from sluice.cluster.node.environment import prepare, short_folder
from sluice.cluster.node.nodes import start_head
from sluice.cluster.node.sessions import stop_session
token, session = Path(sys.argv[1]), short_folder()
prepare(token)
try:
    address = start_head(session, cpus=1, object_store_bytes=80 << 20)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: join(address, token), range(3)))
    import ray
    print(len(ray.nodes()))
    ray.shutdown()
finally:
    stop_session(session)
    shutil.rmtree(session, ignore_errors=True)
"""


def test_a_node_of_this_machine_is_chosen() -> None:
    """Not the first that answers, which is another machine; and those elsewhere have a loopback as well."""
    assert choose_own(["192.0.2.1", "192.0.2.2"], {"127.0.0.1", "192.0.2.2"}) == "192.0.2.2"
    assert choose_own(["127.0.0.1", "192.0.2.2"], {"127.0.0.1", "192.0.2.2"}) == "192.0.2.2"
    assert choose_own(["127.0.0.1", "127.0.0.1"], {"127.0.0.1", "192.0.2.2"}) == "127.0.0.1"
    assert choose_own(["192.0.2.1"], {"127.0.0.1", "192.0.2.2"}) is None
    assert choose_own([], {"127.0.0.1"}) is None


def test_every_machine_has_the_loopback() -> None:
    assert "127.0.0.1" in own_addresses()


def test_ray_says_nothing_between_the_lines_of_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray's lines on a lost node came between the JSON of `./sluice status --json`."""
    worker = import_module("ray._private.worker")
    monkeypatch.setattr(worker, "_worker_logs_enabled", True)

    def says(line: str) -> str:
        # As the thread does that every process has which is attached to Ray.
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
        return capsys.readouterr().out

    assert "node 1 is lost" in says("node 1 is lost")
    keep_ray_off_stdout()
    assert says("node 2 is lost") == ""


@pytest.mark.ray
def test_threads_attach_their_process_once(tmp_path: Path) -> None:
    """Each of several that connected at once began for itself: one of them attached, and the others failed."""
    done = subprocess.run(
        [PYTHON, "-c", AT_ONCE, tmp_path / "token"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
