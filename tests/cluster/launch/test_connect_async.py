"""`connect_async` in a program without a cluster: Ray starts beside the loop, and ends with the client."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sluice.cluster.launch.launch import leave_nothing
from sluice.cluster.node.environment import short_folder
from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

STARTS = """
import asyncio, threading
import sluice

async def main():
    turns = 0
    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)
    counting = asyncio.create_task(count())
    async with await sluice.connect_async(data_dir="data") as client:
        while_starting = turns
        await client.create_topic("orders", 2)
        async with (
            await client.create_producer("orders") as producer,
            await client.subscribe("orders", "billing", initial_position="earliest") as consumer,
        ):
            await producer.send(b"paid", partition_key="k")
            message = await consumer.receive(200_000)
            await consumer.acknowledge(message, ack_receipt=True)
        where = {row["kind"] for row in (await client.status())["actors"]}
    counting.cancel()
    import ray
    left = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} - {counting}
    print(while_starting > 20, message.data().decode(), "bookie" in where, ray.is_initialized(), len(left))

asyncio.run(main())
"""
GIVES_UP = """
import asyncio
import sluice

async def main():
    starting = asyncio.create_task(sluice.connect_async(data_dir="data"))
    await asyncio.sleep(1)
    starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        pass
    import ray
    print("given up", ray.is_initialized())

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [(STARTS, "True paid True False 0"), (GIVES_UP, "given up False")],
    ids=["starts", "given_up"],
)
def test_a_task_starts_ray_and_leaves_none_behind(tmp_path: Path, program: str, printed: str) -> None:
    sessions: list[str] = []
    session = short_folder(sessions)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLUICE_"))}
    environ = plain | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "RAY_TMPDIR": session}
    try:
        ran = subprocess.run(
            [PYTHON, "-c", program],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert ran.stdout.splitlines()[-1] == printed
    finally:
        leave_nothing(sessions)
