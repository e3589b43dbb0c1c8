"""A Ray cluster that others started without a token: Sluice in it, whichever was imported first."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cluster.launch.launch import leave_nothing
from sluice.cluster.node.environment import short_folder
from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

ASK = """
import sys
try:
    sluice.connect(sys.argv[1])
except sluice.NotFound as error:
    print(error)
"""
USE = """
queue = sluice.KeyedQueue("jobs")
queue.put("work", key="a")
item = queue.get(timeout=60)
queue.ack(item)
print(item.value)
"""
INIT = "import sys\nray.init(sys.argv[1], log_to_driver=False)\n"
ORDERS = {
    "ray_first": f"import ray\nimport sluice\n{INIT}",
    "sluice_first": f"import sluice\nimport ray\n{INIT}",
    "attached_first": f"import ray\n{INIT}import sluice\n",
}


class Machine:
    """A Ray head without a token, and programs that know its address alone."""

    def __init__(self, folder: Path, session: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._environ = plain | {"HOME": str(folder), "PYTHONPATH": str(ROOT / "src")}
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--node-ip-address=127.0.0.1"]
        command += [f"--port={self.address.partition(':')[2]}", "--include-dashboard=false", "--num-cpus=2"]
        self._ran([*command, f"--temp-dir={session}/ray"], {"RAY_AUTH_MODE": "disabled"})

    def run(self, program: str) -> str:
        """The last line that a program prints that ends well."""
        return self._ran([PYTHON, "-c", program, self.address], {}).splitlines()[-1]

    def _ran(self, command: list[str], environ: dict[str, str]) -> str:
        ran = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environ | environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 2,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return ran.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    sessions: list[str] = []
    try:
        yield Machine(tmp_path_factory.mktemp("home"), short_folder(sessions))
    finally:
        leave_nothing(sessions)


def test_a_ray_without_sluice_is_said_with_the_command(machine: Machine) -> None:
    said = machine.run(f"import sluice\n{ASK}")
    assert said == (
        f"no Sluice runs in the Ray cluster at {machine.address}; start it: ./sluice up --address {machine.address}"
    )


@pytest.mark.parametrize("order", ORDERS)
def test_a_ray_without_token_serves_a_queue(machine: Machine, order: str) -> None:
    assert machine.run(ORDERS[order] + USE) == "work"


def test_a_client_joins_sluice_in_a_ray_without_token(machine: Machine) -> None:
    """From another folder, by the address alone."""
    ask = "import os, sys, sluice\nos.chdir('/')\nprint(sluice.connect(sys.argv[1]).topics()[0]['topic'])"
    assert machine.run(ask) == "jobs"


LOCAL = """
import ray, sluice
from sluice.cluster.node.sessions import processes_of
import os
with sluice.connect(data_dir="data") as client:
    client.create_topic("t")
    client.create_producer("t").send(b"x")
    listening = [at.laddr.ip for one in processes_of(os.environ["RAY_TMPDIR"]) for at in one.net_connections("inet")
                 if at.status == "LISTEN"]
    assert listening
    print({ip.removeprefix("::ffff:").partition(".")[0] for ip in listening}, os.environ["RAY_AUTH_MODE"])
"""


def test_a_ray_imported_first_is_closed_to_others(machine: Machine) -> None:
    """The Ray that Sluice starts has a token and stays on the loopback."""
    assert machine.run(LOCAL) == "{'127'} token"
