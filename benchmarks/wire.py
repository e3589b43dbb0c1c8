"""What a request between two processes of one machine costs, and a large payload for several readers.

    .venv/bin/python benchmarks/wire.py [--requests N] [--payloads N] [--ray] [--small]

Prints one JSON object. The first part is round trips of a small request, one at a time, over a connection of the wire
protocol and (with --ray) as a call of a Ray actor, and over the connection several at once. The second is one payload
given to several readers at once, each of which computes its checksum: through the sockets, through sealed memory,
through a file in shared memory, and (with --ray) through Ray's object store. Processor time is of both sides together.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np

from sluice.actors.ports.wire import Packed
from sluice.actors.runtime.host import Answer, Message, OnAnswer
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.wire.endpoint import Endpoint, SocketFolder, this_machine, this_network
from sluice.cluster.wire.listener import Listener
from sluice.cluster.wire.payloads import SharedPayload
from sluice.cluster.wire.peers import Peers
from sluice.storage.format.frame import payload_crc
from tests.kit.asking import answer_in_task

KEY = b"benchmark"
READERS = 3
TOGETHER = (4, 64)
"""So many round trips at once; the figures are for one of them."""
SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Reader:
    """Answers with nothing; a payload is read whole first."""

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        answer_in_task(self.answer, actor, kind, message, on_answer)

    async def answer(self, actor: str, kind: str, packed: Packed) -> Answer:
        """kind: how the payload came."""
        if kind == "Used":
            return Packed(repr(_spent()).encode(), [], [])
        if kind == "Inline":
            payload_crc(packed.attachments[0])
        if kind == "Sealed":
            payload_crc(packed.handles[0].view())
        if kind == "File":
            payload_crc(np.memmap(packed.head.decode(), np.uint8, "r").data)
        return Packed(b"", [], [])


def _serve(name: str, folder: str, pipe: Pipe) -> None:
    async def main() -> None:
        sockets = SocketFolder(folder)
        listener = Listener(name, KEY, Reader())
        listener.listen(sockets.listen())
        inet = socket.create_server(("127.0.0.1", 0))
        listener.listen(inet)
        port = inet.getsockname()[1]
        pipe.send(Endpoint(name, this_machine(), this_network(), sockets.path, "127.0.0.1", port))
        await asyncio.get_running_loop().create_future()

    asyncio.run(main())


async def _timed(
    work: Callable[[], Awaitable[object]], times: int, used: Callable[[], Awaitable[float]], *, each: int = 1
) -> Any:
    """each: by how many a piece of work counts."""
    await work()
    before, began = await used(), time.perf_counter()
    for _ in range(times):
        await work()
    spent = time.perf_counter() - began
    scale = 1e3 / times / each
    return {"ms": round(spent * scale, 3), "cpu_ms": round((await used() - before) * scale, 3)}


async def measure(endpoints: dict[str, Endpoint], requests: int, payloads: int) -> dict[str, Any]:
    """Both parts, over the wire protocol."""

    async def find(host: str) -> Endpoint:
        return endpoints[host]

    peers = Peers(find, lambda _: KEY)
    names = sorted(endpoints)

    async def ask(name: str, kind: str, packed: Packed) -> Answer:
        return await peers.call(name, f"actor {kind}".encode(), packed, 60)

    async def everybody(kind: str, packed: Packed) -> None:
        await asyncio.gather(*(ask(name, kind, packed) for name in names))

    async def used() -> float:
        answers = await asyncio.gather(*(ask(name, "Used", Packed(b"", [], [])) for name in names))
        return _spent() + sum(float(answer.head) for answer in answers if isinstance(answer, Packed))

    small = Packed(b"x" * 100, [], [])
    found: dict[str, Any] = {"round_trip": await _timed(lambda: ask(names[0], "Small", small), requests, used)}
    for together in TOGETHER:

        async def several(number: int = together) -> None:
            await asyncio.gather(*(ask(names[0], "Small", small) for _ in range(number)))

        found[f"round_trip_of_{together}"] = await _timed(several, requests // together + 1, used, each=together)
    for size in SIZES:
        data = np.random.default_rng(size).bytes(size)

        async def inline(data: bytes = data) -> None:
            await everybody("Inline", Packed(b"", [data], []))

        async def sealed(data: bytes = data) -> None:
            shared = SharedPayload.of(data)
            await everybody("Sealed", Packed(b"", [], [shared]))

        async def in_file(data: bytes = data) -> None:
            with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
                file.write(data)
                file.flush()
                await everybody("File", Packed(file.name.encode(), [], []))

        found[f"payload_{size >> 10}_KiB"] = {
            "inline": await _timed(inline, payloads, used),
            "sealed": await _timed(sealed, payloads, used),
            "file": await _timed(in_file, payloads, used),
        }
    peers.close()
    return found


def measure_ray(requests: int, payloads: int) -> dict[str, Any]:
    """The same through Ray."""
    import ray

    import sluice  # noqa: F401  (sets Ray's environment)

    ray.init(address="local", log_to_driver=False, include_dashboard=False, logging_level="ERROR")

    class Actor:
        async def small(self, data: bytes) -> bytes:
            return b""

        async def large(self, data: Any) -> bytes:
            payload_crc(memoryview(data).cast("B"))
            return b""

        async def used(self) -> float:
            return _spent()

    actors = [ray.remote(num_cpus=0, max_concurrency=100)(Actor).remote() for _ in range(READERS)]

    async def used() -> float:
        return _spent() + float(sum(await asyncio.gather(*(actor.used.remote() for actor in actors))))

    async def small() -> None:
        await actors[0].small.remote(b"x" * 100)

    async def both() -> dict[str, Any]:
        found: dict[str, Any] = {"round_trip": await _timed(small, requests, used)}
        for size in SIZES:
            data = np.frombuffer(np.random.default_rng(size).bytes(size), np.uint8)

            async def large(data: Any = data) -> None:
                reference = ray.put(data)
                await asyncio.gather(*(actor.large.remote(reference) for actor in actors))

            found[f"payload_{size >> 10}_KiB"] = {"object_store": await _timed(large, payloads, used)}
        return found

    try:
        return asyncio.run(both())
    finally:
        ray.shutdown()


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=count, default=3_000)
    parser.add_argument("--payloads", type=count, default=100)
    parser.add_argument("--ray", action="store_true", help="the same through Ray, for comparison")
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.requests, options.payloads = 100, 3
    spawn = multiprocessing.get_context("spawn")
    endpoints, processes = {}, []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        for number in range(READERS):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(f"reader-{number}", folder, theirs), daemon=True)
            process.start()
            processes.append(process)
            endpoints[f"reader-{number}"] = ours.recv()
        try:
            result = {"benchmark": "wire", "wire": asyncio.run(measure(endpoints, options.requests, options.payloads))}
        finally:
            for process in processes:
                process.terminate()
                process.join()
    if options.ray:
        result["ray"] = measure_ray(min(options.requests, 500), options.payloads)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
