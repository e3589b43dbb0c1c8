"""What a pool of workers costs beside a loop written by hand, Ray's ActorPool, and Celery, with a handler that does
nothing; and what becomes of keys when a worker is killed, when a pool rolls to another version, and when load steps up.

    .venv/bin/python benchmarks/workers.py [--messages N] [--keys N] [--rounds N] [--scenes NAME ...] [--picture FILE]

Scenes:

* `empty`: threads of one process against a cluster in the same process; a pool and a loop over `Consumer` in turn, with
  messages and with columns, and pools with an output. Messages a second from the first call to the last
  acknowledgement, and microseconds of processor time of the whole process for each.
* `ray`: the same on Ray: a pool of one worker, an actor written by hand over `Consumer`, `ray.util.ActorPool` over a
  `ray.util.queue.Queue`, and Celery with Redis if both are there (`pip install celery redis`, and a `redis-server`).
* `kill`: a worker of a pool on Ray gets SIGKILL, again and again; milliseconds until one of its keys is handled again.
* `roll`: a detached pool of 12 gets another version under load: hashes that moved, and the longest wait of a message.
* `step`: the load steps from 100 to 5,000 messages a second with a handler of 1 ms: seconds until the oldest message is
  younger than the target again, and workers over time. `swing`: it goes up and down, and the pool is to keep its size.
* `deaths`: three nodes, a handler of 1 ms, a pool of 2 to 8 and back, and a worker killed every 5 s; what the handlers
  wrote down is judged. `results`: the same with an output.

Prints one JSON object. --picture draws workers over time, of the last scene that has that.
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
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks._worker_deaths import deaths
from benchmarks._worker_picture import picture
from benchmarks._worker_scenes import PATIENCE_S, TARGET_MS, kill, roll, step, swing, wait_for
from sluice import Workers, connect
from sluice.cluster.base.arguments import ArgumentParser, amount, count
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch

ON_RAY = ("ray", "kill", "roll", "step", "swing")
ON_NODES = ("deaths", "results")
SCENES = ("empty", *ON_RAY, *ON_NODES)
AT_ONCE = 10_000
SELDOM_S = 0.05
"""Between two looks at a pool on Ray, which must not take the processor from it."""
MOST_OF_OTHERS = 5_000
CPUS = 32
"""What Ray is told it has, so that it places all workers."""


def nothing(_: Any) -> None:
    """The empty handler."""


def echo(message: Any) -> bytes:
    """The least that has a result."""
    return bytes(message.data())


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


def by_output(client: Client, messages: int, subscription: str, *, concurrency: int) -> None:
    """A pool whose handler gives each message back, to be published."""
    with Workers(
        "empty", subscription, echo, client=client, output="empty-results", concurrency=concurrency
    ) as workers:
        wait_for(lambda: workers.status().handled >= messages)


def empty(client: Client, messages: int, keys: int, rounds: int) -> dict[str, Any]:
    """Loop and pool in turn, so that what else the machine does meets both."""
    send(client, "empty", messages, keys)
    client.create_topic("empty-results", 4, deduplication_enabled=True)
    ways: dict[str, Callable[[str], None]] = {}
    for name, columns in (("messages", False), ("columns", True)):
        ways[f"loop, {name}"] = partial(by_hand, client, messages, columns=columns)
        ways[f"pool, {name}"] = partial(by_pool, client, messages, columns=columns, concurrency=1)
    ways["pool, 8 keys at once"] = partial(by_pool, client, messages, columns=False, concurrency=8)
    ways["pool, output"] = partial(by_output, client, messages, concurrency=1)
    ways["pool, output, 8 keys at once"] = partial(by_output, client, messages, concurrency=8)
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
        def __init__(self, folder: str, topic: str, subscription: str) -> None:
            self._client = connect(data_dir=folder)
            self._consumer = self._client.subscribe(topic, subscription, initial_position="earliest", nack_order="key")

        def ready(self) -> None:
            """Returns when it can begin."""

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


def ray_scene(client: Client, folder: Path, messages: int, keys: int, rounds: int) -> dict[str, Any]:
    """One worker each, an actor by hand and a pool in turn."""
    import ray

    told: dict[str, Any] = {}
    for name, columns in (("messages", False), ("columns", True)):
        topic = f"ray-{name}"
        send(client, topic, messages, keys)
        pairs = []
        for turn in range(rounds):
            loop = hand_written().remote(str(folder), topic, f"hand-{turn}")
            ray.get(loop.ready.remote())
            by_hand_now = metered(partial(_work, loop, messages, columns), messages)
            ray.kill(loop)
            pairs.append((by_hand_now, _by_pool_on_ray(client, folder, topic, f"pool-{turn}", messages, columns)))
        for who, each in zip(("actor by hand", "pool"), zip(*pairs, strict=True), strict=True):
            told[f"{who}, {name}"] = {what: statistics.median(one[what] for one in each) for what in each[0]}
        for what in ("messages_per_s", "cpu_us"):
            ratios = [pool[what] / by_hand_now[what] for by_hand_now, pool in pairs]
            told[f"pool by actor, {name}, {what}"] = round(statistics.median(ratios), 3)
    few = min(max(messages // 20, 100), MOST_OF_OTHERS)
    told["ray.util.ActorPool over ray.util.queue"] = {"messages": few, **_actor_pool(few)}
    told["celery with redis"] = celery(few)
    return told


def spent_s() -> float:
    """Processor time so far of this process and of all that it has started, directly or not."""
    spent = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def metered(work: Callable[[], float], messages: int) -> dict[str, float]:
    """Processor time of everything, the cluster as well. work: returns when it really began."""
    cpu, began = spent_s(), work()
    wall = time.perf_counter() - began
    return {"messages_per_s": round(messages / wall), "cpu_us": round((spent_s() - cpu) * 1e6 / messages, 1)}


def _work(actor: Any, messages: int, columns: bool) -> float:
    """Until the actor has done all. Its clock is this machine's."""
    import ray

    return float(ray.get(actor.work.remote(messages, columns)))


def _by_pool_on_ray(
    client: Client, folder: Path, topic: str, subscription: str, messages: int, columns: bool
) -> dict[str, float]:
    """Between the first report of the worker and the last one that is not the end: it tells how far it is twice a
    second, so this wants many messages.
    """
    options: dict[str, Any] = {"batch_size": 1_000} if columns else {}
    seen: list[tuple[float, float, int]] = []
    with Workers(
        topic, subscription, nothing, client=client, ray_actor_options={"num_cpus": 1}, spare_workers=0,
        connect={"data_dir": str(folder)}, **options,
    ) as pool:  # fmt: skip
        handled = 0
        while handled < messages:
            before = handled
            wait_for(lambda before=before: pool.status().handled > before, SELDOM_S)  # type: ignore[misc]
            handled = pool.status().handled
            seen.append((time.perf_counter(), spent_s(), handled))
    first, last = seen[0], seen[-2] if len(seen) > 2 else seen[-1]
    done = last[2] - first[2]
    if not done:
        raise SystemExit(f"{messages} messages are too few to be measured: give --messages more")
    return {"messages_per_s": round(done / (last[0] - first[0])), "cpu_us": round((last[1] - first[1]) * 1e6 / done, 1)}


def _actor_pool(messages: int) -> dict[str, float]:
    """What Ray has by itself: a queue, and actors that are given its items; no order of keys, and nothing durable."""
    import ray
    from ray.util import ActorPool
    from ray.util.queue import Queue

    class Handler:
        def handle(self, item: bytes) -> None:
            nothing(item)

    queue = Queue()
    queue.put_nowait_batch([b"x" * 100] * messages)
    actor = ray.remote(num_cpus=1)(Handler).remote()
    ray.get(actor.handle.remote(b""))
    pool = ActorPool([actor])

    def work() -> float:
        began = time.perf_counter()
        for _ in pool.map(lambda actor, item: actor.handle.remote(item), (queue.get() for _ in range(messages))):
            pass
        return began

    told = metered(work, messages)
    queue.shutdown()
    return told


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
            began, cpu, first = time.perf_counter(), spent_s(), messages - left()
            wait_for(lambda: not left(), 0.005)
            done, took = messages - first, time.perf_counter() - began
            cpu_us = round((spent_s() - cpu) * 1e6 / max(done, 1), 1)
            return {"messages": messages, "messages_per_s": round(done / max(took, 1e-3)), "cpu_us": cpu_us}
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
    for scene in ON_NODES:
        if scene in given.scenes:
            rate, every_s = given.rate, given.kill_every
            (data := folder / scene).mkdir()
            told[scene] = deaths(data, given.messages, given.keys, rate, every_s, results=scene == "results")
    wanted = [scene for scene in ON_RAY if scene in given.scenes]
    if not wanted:
        return told
    with ExitStack() as cleanup:
        data = folder / "ray"
        client = cleanup.enter_context(on_ray(data))
        for scene in wanted:
            if scene == "ray":
                told[scene] = ray_scene(client, data, given.messages, given.keys, given.rounds)
            elif scene == "kill":
                told[scene] = kill(client, data, 60, given.rounds)
            elif scene == "roll":
                told[scene] = roll(client, data, 200, given.workers)
            elif scene == "step":
                told[scene] = step(client, data, 2_000, (100, given.rate), given.seconds)
            else:
                told[scene] = swing(client, data, 2_000, (given.rate // 10, given.rate // 3), given.rounds)
    return told


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=count, default=200_000)
    parser.add_argument("--keys", type=count, default=1_000)
    parser.add_argument("--rounds", type=count, default=5, help="pairs of runs of an empty handler, and kills")
    parser.add_argument("--workers", type=count, default=12, help="of the pool that rolls")
    parser.add_argument("--rate", type=count, default=5_000, help="messages a second after the step")
    parser.add_argument("--seconds", type=count, default=40, help="after the step")
    parser.add_argument("--kill-every", type=amount, default=5.0, help="seconds between two deaths of `deaths`")
    parser.add_argument("--picture", type=Path, help="SVG file of workers over time")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    given = parser.parse_args()
    if given.small:
        given.messages, given.keys, given.rounds, given.scenes = 2_000, 50, 1, ["empty"]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        told = measure(given, Path(folder))
    courses = [scene.pop("course") for scene in told.values() if isinstance(scene, dict) and "course" in scene]
    if given.picture is not None and courses:
        given.picture.write_text(picture(courses[-1], target_ms=TARGET_MS), encoding="utf-8")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
