"""What a pool of workers costs beside a loop written by hand, Ray's ActorPool, and Celery, with a handler that does
nothing; and what becomes of keys when a worker is killed, when a pool rolls to another version, and when load steps up.

    .venv/bin/python benchmarks/workers.py [--messages N] [--keys N] [--rounds N] [--scenes NAME ...] [--small]

Scenes:

* `empty`: threads of one process against a cluster in the same process; a pool and a loop over `Consumer` in turn, with
  messages and with columns. Messages a second from the first call to the last acknowledgement, and microseconds of
  processor time of the whole process for each.
* `ray`: the same on Ray: a pool of one worker, an actor written by hand over `Consumer`, `ray.util.ActorPool` over a
  `ray.util.queue.Queue`, and Celery with Redis if both are there (`pip install celery redis`, and a `redis-server`).
* `kill`: a worker of a pool on Ray gets SIGKILL, again and again; milliseconds until one of its keys is handled again.
* `roll`: a detached pool of 12 gets another version under load: hashes that moved, and the longest wait of a message.
* `step`: the load steps from 100 to 5,000 messages a second with a handler of 1 ms: seconds until the oldest message is
  younger than the target again, and workers over time.

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks._arguments import count
from benchmarks._worker_scenes import PATIENCE_S, kill, roll, step, wait_for
from cluster import Workers, connect
from cluster.bootstrap import launch
from cluster.client import Client

SCENES = ("empty", "ray", "kill", "roll", "step")
AT_ONCE = 10_000
CPUS = 32
"""What Ray is told it has, so that it places all workers."""


def nothing(_: Any) -> None:
    """The empty handler."""


def send(client: Client, topic: str, messages: int, keys: int) -> None:
    """Messages of 100 bytes, key after key."""
    client.create_topic(topic, 4)
    with client.create_producer(topic) as producer:
        for start in range(0, messages, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, messages))
            columns = {"key": [b"key-%d" % (one % keys) for one in numbers], "payload": [b"x" * 100] * len(numbers)}
            producer.send_batch(pa.record_batch(columns)).result(PATIENCE_S)


def timed(work: Callable[[], float | None], messages: int) -> dict[str, float]:
    """work: returns when it really began, if not at once."""
    wall, cpu = time.perf_counter(), time.process_time()
    began = work() or wall
    return {
        "messages_per_s": round(messages / (time.perf_counter() - began)),
        "cpu_us": round((time.process_time() - cpu) * 1e6 / messages, 2),
    }


# -- an empty handler, in one process ---------------------------------------------------------------------------------


def by_hand(client: Client, messages: int, subscription: str, *, columns: bool) -> None:
    """The loop that a user would write."""
    consumer = client.subscribe("empty", subscription, initial_position="earliest", nack_order="key")
    done = 0
    while done < messages:
        if columns:
            batch = consumer.receive_batch(30_000)
            assert batch is not None
            nothing(batch.rows)
            consumer.acknowledge(batch)
            done += len(batch)
        else:
            message = consumer.receive(30_000)
            nothing(message)
            consumer.acknowledge(message)
            done += 1
    consumer.wait_acknowledged()
    consumer.close()


def by_pool(client: Client, messages: int, subscription: str, *, columns: bool, concurrency: int) -> None:
    """The same with a pool."""
    options: dict[str, Any] = {"batch_size": 1_000} if columns else {"concurrency": concurrency}
    with Workers("empty", subscription, nothing, client=client, **options) as workers:
        wait_for(lambda: workers.status().handled >= messages)


def empty(client: Client, messages: int, keys: int, rounds: int) -> dict[str, Any]:
    """Loop and pool in turn, so that what else the machine does meets both."""
    send(client, "empty", messages, keys)
    ways: dict[str, Callable[[str], None]] = {}
    for name, columns in (("messages", False), ("columns", True)):
        ways[f"loop, {name}"] = partial(by_hand, client, messages, columns=columns)
        ways[f"pool, {name}"] = partial(by_pool, client, messages, columns=columns, concurrency=1)
    ways["pool, 8 keys at once"] = partial(by_pool, client, messages, columns=False, concurrency=8)
    took: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name, way in ways.items():
            subscription = f"{name}-{turn}".replace(", ", "-").replace(" ", "-")
            took[name].append(timed(partial(way, subscription), messages))
    told: dict[str, Any] = {
        name: {what: statistics.median(one[what] for one in each) for what in each[0]} for name, each in took.items()
    }
    for name in ("messages", "columns"):
        pairs = zip(took[f"pool, {name}"], took[f"loop, {name}"], strict=True)
        ratios = [pool["messages_per_s"] / loop["messages_per_s"] for pool, loop in pairs]
        told[f"pool by loop, {name}"] = round(statistics.median(ratios), 3)
    return told


# -- on Ray -----------------------------------------------------------------------------------------------------------


@contextmanager
def on_ray(folder: Path) -> Iterator[Client]:
    """A cluster on Ray, to which this process is attached."""
    with launch.local(folder, cpus=CPUS, brokers=1), connect() as client:
        yield client


def hand_written() -> Any:
    """An actor class as a user would write it."""
    import ray

    class Loop:
        def __init__(self, folder: str, topic: str) -> None:
            self._client = connect(data_dir=folder)
            self._consumer = self._client.subscribe(topic, "hand", initial_position="earliest", nack_order="key")

        def work(self, messages: int, columns: bool) -> float:
            """Returns when the first message was there."""
            done, began = 0, 0.0
            while done < messages:
                if columns:
                    batch = self._consumer.receive_batch(60_000)
                    assert batch is not None
                    began = began or time.perf_counter()
                    nothing(batch.rows)
                    self._consumer.acknowledge(batch)
                    done += len(batch)
                else:
                    message = self._consumer.receive(60_000)
                    began = began or time.perf_counter()
                    nothing(message)
                    self._consumer.acknowledge(message)
                    done += 1
            self._consumer.wait_acknowledged()
            return began

    return ray.remote(num_cpus=1)(Loop)


def ray_scene(client: Client, folder: Path, messages: int, keys: int) -> dict[str, Any]:
    """One worker each."""
    import ray

    told: dict[str, Any] = {}
    for name, columns in (("messages", False), ("columns", True)):
        topic = f"ray-{name}"
        send(client, topic, messages, keys)
        loop = hand_written().remote(str(folder), topic)
        told[f"actor by hand, {name}"] = timed(partial(_work, loop, messages, columns), messages)
        ray.kill(loop)
        options: dict[str, Any] = {"batch_size": 1_000} if columns else {}
        pool = Workers(
            topic, "pool", nothing, client=client, ray_actor_options={"num_cpus": 1}, spare_workers=0,
            connect={"data_dir": str(folder)}, **options,
        )  # fmt: skip
        told[f"pool, {name}"] = timed(partial(_until_handled, pool, messages), messages)
        pool.stop()
        told[f"pool by actor, {name}"] = round(
            told[f"pool, {name}"]["messages_per_s"] / told[f"actor by hand, {name}"]["messages_per_s"], 3
        )
    few = max(messages // 20, 100)
    told["ray.util.ActorPool over ray.util.queue"] = {"messages": few, **timed(lambda: _actor_pool(few), few)}
    told["celery with redis"] = celery(few)
    return told


def _work(actor: Any, messages: int, columns: bool) -> float:
    """Until the actor has done all. Its clock is this machine's."""
    import ray

    return float(ray.get(actor.work.remote(messages, columns)))


def _until_handled(pool: Workers, messages: int) -> float:
    """From the first report of a message, less what was handled by then."""
    pool.start()
    wait_for(lambda: pool.status().handled > 0, 0.005)
    began, first = time.perf_counter(), pool.status().handled
    wait_for(lambda: pool.status().handled >= messages, 0.005)
    took = (time.perf_counter() - began) * messages / max(messages - first, 1)
    return time.perf_counter() - took


def _actor_pool(messages: int) -> float:
    """What Ray has by itself: a queue, and actors that are given its items; no order of keys, and nothing durable."""
    import ray
    from ray.util import ActorPool
    from ray.util.queue import Queue

    class Handler:
        def handle(self, item: bytes) -> None:
            nothing(item)

    queue = Queue()
    queue.put_nowait_batch([b"x" * 100] * messages)
    pool = ActorPool([ray.remote(num_cpus=1)(Handler).remote()])
    began = time.perf_counter()
    items = (queue.get() for _ in range(messages))
    for _ in pool.map(lambda actor, item: actor.handle.remote(item), items):
        pass
    queue.shutdown()
    return began


CELERY = """
import sys
from celery import Celery
app = Celery("bench", broker=sys.argv[1], backend=None)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=100, broker_connection_retry_on_startup=True)
@app.task(acks_late=True)
def handle(payload):
    pass
if len(sys.argv) > 2:
    for _ in range(int(sys.argv[2])):
        handle.delay("x" * 100)
else:
    app.worker_main(["worker", "--pool=solo", "--loglevel=ERROR", "--without-gossip", "--without-mingle"])
"""


def celery(messages: int) -> dict[str, Any] | str:
    """One worker; it says why not, if there is no Celery or no Redis here."""
    server = shutil.which("redis-server")
    if find_spec("celery") is None or find_spec("redis") is None:
        return "celery or redis is not installed"
    redis: Any = import_module("redis")
    if server is None:
        return "there is no redis-server on the path"
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/redis.sock"
        script = Path(folder) / "bench.py"
        script.write_text(CELERY)
        url = f"redis+socket://{socket}"
        redis_process = subprocess.Popen(
            [server, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder], stdout=subprocess.DEVNULL
        )
        workers: list[subprocess.Popen[bytes]] = []
        try:
            queue = redis.Redis(unix_socket_path=socket)
            wait_for(lambda: Path(socket).exists())
            subprocess.run([sys.executable, str(script), url, str(messages)], check=True)
            workers.append(subprocess.Popen([sys.executable, str(script), url], stderr=subprocess.DEVNULL))

            def left() -> int:
                return int(queue.llen("celery")) + int(queue.hlen("unacked"))

            wait_for(lambda: left() < messages, 0.005)
            began, first = time.perf_counter(), messages - left()
            wait_for(lambda: not left(), 0.005)
            took = time.perf_counter() - began
            return {"messages": messages, "messages_per_s": round((messages - first) / max(took, 1e-3))}
        finally:
            for process in (*workers, redis_process):
                process.terminate()
                process.wait()


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The scenes that were asked for."""
    told: dict[str, Any] = {"benchmark": "workers", "messages": given.messages, "keys": given.keys}
    if "empty" in given.scenes:
        with connect(embedded=True, data_dir=folder / "embedded") as client:
            told["empty"] = empty(client, given.messages, given.keys, given.rounds)
    wanted = [scene for scene in SCENES[1:] if scene in given.scenes]
    if not wanted:
        return told
    with ExitStack() as cleanup:
        data = folder / "ray"
        client = cleanup.enter_context(on_ray(data))
        for scene in wanted:
            if scene == "ray":
                told[scene] = ray_scene(client, data, given.messages, given.keys)
            elif scene == "kill":
                told[scene] = kill(client, data, 60, given.rounds)
            elif scene == "roll":
                told[scene] = roll(client, data, 200, given.workers)
            else:
                told[scene] = step(client, data, 2_000, (100, given.rate), given.seconds)
    return told


def main() -> None:
    """Parse the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=count, default=200_000)
    parser.add_argument("--keys", type=count, default=1_000)
    parser.add_argument("--rounds", type=count, default=5, help="pairs of runs of an empty handler, and kills")
    parser.add_argument("--workers", type=count, default=12, help="of the pool that rolls")
    parser.add_argument("--rate", type=count, default=5_000, help="messages a second after the step")
    parser.add_argument("--seconds", type=count, default=40, help="after the step")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    given = parser.parse_args()
    if given.small:
        given.messages, given.keys, given.rounds, given.scenes = 2_000, 50, 1, ["empty"]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        print(json.dumps(measure(given, Path(folder))))


if __name__ == "__main__":
    main()
