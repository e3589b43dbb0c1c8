"""Workers as actors of Ray: order of each key through the death of a process, and a handler that hangs."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from sluice.cluster.launch.launch import leave_nothing
from sluice.cluster.node.environment import short_folder
from sluice.cluster.node.nodes import SLOW_START, START_TRIES
from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT

PROGRAM = """
import os, signal, sys, time
import sluice, ray

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1", _temp_dir=sys.argv[2])
client = sluice.connect(data_dir=sys.argv[1])
client.create_topic("orders", 2)
folder = sys.argv[3]

def handle(message):
    import os, signal, threading
    key, number = message.key().decode(), int(message.data())
    with open(f"{folder}/{key}", "a") as calls:
        print(number, os.getpid(), message.redelivery_count(), file=calls)
    for fault in ("kill", "hang"):
        try:
            os.unlink(f"{folder}/{fault}-{number}")
        except FileNotFoundError:
            continue
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

for fault in ("kill-13", "hang-26"):
    open(f"{folder}/{fault}", "w").close()
with client.create_producer("orders") as producer:
    for number in range(60):
        producer.send_async(b"%d" % number, partition_key=f"key-{number % 6}")
    producer.flush()
options = dict(ray_actor_options={"num_cpus": 0.1}, connect={"data_dir": sys.argv[1]}, handler_timeout_ms=1_000)
with sluice.Workers("orders", "billing", handle, min_workers=2, max_workers=2, **options) as workers:
    end = time.monotonic() + float(sys.argv[4])
    while workers.status().replaced < 2 or sum(row["msgBacklog"] for row in client.stats("orders", "billing")):
        assert time.monotonic() < end, workers.status()
        time.sleep(0.1)
    status = workers.status()
    spares = []
    for _ in range(2):  # a spare process that dies is replaced as well, though nobody needs it
        while not workers.status().spares:
            assert time.monotonic() < end, workers.status()
            time.sleep(0.1)
        places = workers._keeper._places
        spares.append(int(places._spare.where.split()[0]))
        if len(spares) == 1:
            os.kill(spares[0], signal.SIGKILL)
            while workers.status().spares:
                time.sleep(0.01)
    assert spares[0] != spares[1], spares
    assert workers.status().replaced == status.replaced, workers.status()
print("replaced", status.replaced, *status.workers)
client.close()
ray.shutdown()
"""


@pytest.mark.ray
def test_keys_stay_in_order_when_workers_die(tmp_path: Path) -> None:
    """One is killed while it handles message 13, one hangs with message 26 and is ended by the pool."""
    sessions: list[str] = []
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    calls = tmp_path / "calls"
    calls.mkdir()
    try:
        for _ in range(START_TRIES):  # on a busy machine Ray gives its own start up, before the broker is asked for
            command = [PYTHON, "-c", PROGRAM, str(tmp_path / "data"), short_folder(sessions), str(calls), "150"]
            ran = subprocess.run(
                command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            if SLOW_START not in ran.stderr:
                break
    finally:
        leave_nothing(sessions)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "replaced 2 billing-workers-0 billing-workers-1"
    for key in range(6):
        handled = [[int(word) for word in line.split()] for line in (calls / f"key-{key}").read_text().splitlines()]
        assert list(dict.fromkeys(number for number, _, _ in handled)) == list(range(key, 60, 6))
        for before, after in itertools.pairwise(handled):
            # What was not acknowledged comes again, and always in order from there on.
            assert after[0] > before[0] or after[1] != before[1], f"key {key} went back in one worker: {handled}"
        processes = [process for process, _ in itertools.groupby(process for _, process, _ in handled)]
        assert len(processes) == len(set(processes)), f"two workers had key {key} at once: {handled}"
