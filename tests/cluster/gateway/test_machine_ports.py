"""Which gateway has the ports of this machine: real sockets and the kernel's locks."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from sluice.cluster.gateway.machine_ports import LOCK_FILE, RealMachinePorts
from sluice.cluster.gateway.ports import PLAIN, forget_ports, port_of, pulsar_of
from sluice.cluster.launch.embedded import ClusterHere
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Unavailable

HOLDS = """
import sys
from pathlib import Path
from sluice.cluster.gateway.machine_ports import RealMachinePorts
machine_ports = RealMachinePorts(Path(sys.argv[1]), {}, {})
print(machine_ports.claim(), flush=True)
sys.stdin.read()
"""


def ports_of(folder: Path) -> RealMachinePorts:
    """Return the ports of one gateway."""
    return RealMachinePorts(folder, {PLAIN: asyncio.Protocol}, {})


def run(work: Coroutine[Any, Any, None]) -> None:
    """On a loop of its own."""
    asyncio.run(work)


def test_one_claims_and_the_next_one_when_it_closes(tmp_path: Path) -> None:
    first, second = ports_of(tmp_path), ports_of(tmp_path)
    assert first.claim()
    assert not second.claim()
    first.close()
    assert second.claim()
    second.close()


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        mine = ports_of(tmp_path)
        assert not mine.claim()
        holder.kill()
        holder.wait()
        assert mine.claim()
        mine.close()


def test_a_port_of_another_program_is_not_shared(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
            machine_ports = ports_of(tmp_path)
            with pytest.raises(Unavailable, match="cannot be used"):
                await machine_ports.listen(PLAIN, other.getsockname()[1])

    run(scenario())


def test_a_number_that_was_told_is_kept_until_a_new_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second = ports_of(tmp_path), ports_of(tmp_path)
        assert first.chosen(PLAIN) == 0
        number = await first.listen(PLAIN, 0)
        first.tell(PLAIN, number)
        first.close()
        assert second.chosen(PLAIN) == number == port_of(tmp_path)
        assert await second.listen(PLAIN, second.chosen(PLAIN)) == number
        second.close()

    run(scenario())
    forget_ports(tmp_path)
    assert ports_of(tmp_path).chosen(PLAIN) == 0


def test_a_gateway_that_never_ran_is_not_called_a_taken_port(tmp_path: Path) -> None:
    said = pulsar_of(tmp_path, {"pulsar_port": 7000})["pulsar"]
    assert "in use" not in said
    assert "status" in said


def test_a_folder_that_takes_no_files_is_no_defect(tmp_path: Path) -> None:
    """A gateway tries again until there is room."""
    machine_ports = ports_of(tmp_path)
    for name in (LOCK_FILE, "pulsar-port.new"):
        (tmp_path / name).mkdir()
    with pytest.raises(Unavailable, match="cannot be locked"):
        machine_ports.claim()
    with pytest.raises(Unavailable, match="cannot be written"):
        machine_ports.tell(PLAIN, 1)


def test_a_start_that_is_broken_off_lets_go(tmp_path: Path) -> None:
    """The next gateway of the same process waited for the first one for ever."""

    async def scenario() -> None:
        cluster = ClusterHere(ClusterOptions(data_dir=tmp_path, pulsar_port=0).settings())
        start = asyncio.create_task(cluster.actors.start("pulsar", "pulsar", {}))
        while not (tmp_path / LOCK_FILE).exists():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not start.done()
        start.cancel()
        await asyncio.wait([start])
        assert start.cancelled()
        machine_ports = ports_of(tmp_path)
        assert machine_ports.claim()
        machine_ports.close()
        await cluster.actors.close()
        cluster.release()

    run(scenario())
