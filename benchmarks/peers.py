"""The same work by Sluice and Pulsar, in turn: figures and ratios.

    .venv/bin/python benchmarks/peers.py [--pulsar FOLDER] [--checkout FOLDER] [--work paced,singles] ...

Needs the packages of the extra `peers`. Pulsar is its binary distribution, unpacked in
the folder that --pulsar or SLUICE_PULSAR_HOME names; --checkout adds another checkout of Sluice. What is not there is
said in one line and left out; `gateway` is Sluice in one process with Pulsar's own Python client, and `cluster`, only
where --sides names it, is a cluster with that client. Each broker runs for the whole comparison, in a temporary folder,
and syncs to disk before it confirms: Sluice two copies, Pulsar one.

    paced    one message of 100 bytes every 10 ms, sent at its intended time: ms until confirmed, until received;
             --clients do so at once, each on a topic of its own
    singles  send_async one by one, then receive and acknowledge one by one, one client, 4 partitions; --bytes each

Processor time is that of every process of the broker and of its clients. Of all rounds the median is shown, and behind
it, in brackets, the median of Sluice's figure divided by that of the same round. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._peer_servers import (
    GatewaySide,
    Missing,
    PulsarSide,
    Side,
    SluiceSide,
    Worker,
    names_of,
    print_compared,
)
from benchmarks._thread_times import table as times_of
from benchmarks._thread_times import thread_times
from sluice.cluster.base.arguments import ArgumentParser, amount, count, count_or_none

KEYS = 10_000
Figures = dict[str, float]


def paced(side: Side, topic: str, options: argparse.Namespace) -> Figures:
    """One small message of each client at each intended time; each client has a topic."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                Worker(
                    side,
                    topic=side.make_topic(f"{topic}-{number}", 1),
                    partitions=1,
                    produce=True,
                    consume=True,
                    batching="none",
                )
            )
            for number in range(options.clients)
        ]
        for one in clients:
            one.hear()
        _all_paced(clients, options.warm, options.every_ms)
        processes = [*side.processes(), *(one.process() for one in clients)] if options.threads else []
        threads = thread_times(processes)
        cpu = side.cpu()
        told = _all_paced(clients, options.paced, options.every_ms)
        cpu = side.cpu() - cpu + sum(one["cpu"] for one in told)
        if options.threads:
            print("\n".join(times_of(threads, thread_times(processes), options.paced * options.clients)), flush=True)
    figures = {"cpu_us": cpu * 1e6 / (options.paced * options.clients)}
    for kind in ("confirmed", "delivered"):
        for quantile in (50, 99):
            took = [microseconds for one in told for microseconds in one[kind]]
            figures[f"{kind}_p{quantile}_ms"] = float(np.percentile(took, quantile)) / 1000
    return figures


def _all_paced(clients: list[Worker], messages: int, every_ms: float) -> list[dict[str, Any]]:
    for one in clients:
        one.tell("paced", messages=messages, every_ms=every_ms)
    return [one.hear() for one in clients]


def singles(side: Side, topic: str, options: argparse.Namespace) -> Figures:
    """Single messages through one client."""
    count, figures, sent = options.singles, {}, {"keys": KEYS, "size": options.bytes}
    with Worker(side, topic=side.make_topic(topic, 4), partitions=4, produce=True, consume=True) as one:
        one.hear()
        for do in ("send", "receive"):
            one.ask(do, messages=options.warm, **(sent if do == "send" else {}))
        for do, name in (("send", "send_async"), ("receive", "receive_acknowledge")):
            cpu = side.cpu()
            told = one.ask(do, messages=count, **(sent if do == "send" else {}))
            figures[f"{name}_per_s"] = count / (told["ended"] - told["began"])
            figures[f"{name}_cpu_us"] = (side.cpu() - cpu + told["cpu"]) * 1e6 / count
    return figures


WORKS = {"paced": paced, "singles": singles}


def sides(options: argparse.Namespace, root: Path) -> list[Side]:
    """All that are wanted; nothing is started."""
    found: list[Side] = [SluiceSide("sluice", root / "sluice")]
    if options.checkout:
        found.append(SluiceSide("checkout", root / "checkout", Path(options.checkout)))
    found.append(GatewaySide("gateway", root / "gateway"))
    found.append(GatewaySide("cluster", root / "cluster", one_process=False))
    found.append(PulsarSide("pulsar", root / "pulsar", options.pulsar))
    return [one for one in found if one.name in options.sides]


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Every work, in rounds over all sides."""
    with tempfile.TemporaryDirectory(prefix="sluice-peers-") as root, contextlib.ExitStack() as stack:
        there = []
        for side in sides(options, Path(root)):
            stack.callback(side.stop)
            try:
                side.start()
                there.append(side)
            except Missing as error:
                print(f"{side.name}: left out: {error}", flush=True)
        rounds: dict[str, dict[str, list[Figures]]] = {}
        loads = []
        for work in options.work:
            for number in range(options.rounds):
                loads.append(os.getloadavg()[0])
                # Who comes first changes, so that nobody always has the same neighbour.
                for side in there[number % len(there) :] + there[: number % len(there)]:
                    figures = WORKS[work](side, f"{work}-{number}-{time.time_ns():x}", options)
                    rounds.setdefault(work, {}).setdefault(side.name, []).append(figures)
                    told = ", ".join(f"{name} {_short(value)}" for name, value in figures.items())
                    print(f"{work}, round {number + 1}, {side.name}: {told}", file=sys.stderr, flush=True)
            print("\n".join(table(work, rounds[work])), flush=True)
    return {"benchmark": "peers", "rounds": options.rounds, "load": round(float(np.median(loads)), 1), "works": rounds}


def table(work: str, rounds: dict[str, list[Figures]]) -> list[str]:
    """Lines: the medians of each side, with the ratio of the first side's to it."""
    first = next(iter(rounds))
    lines = [f"{work:28}" + "".join(f"{name:>24}" for name in rounds)]
    for figure in rounds[first][0]:
        line = f"  {figure:26}"
        for name, measured in rounds.items():
            middle = float(np.median([one[figure] for one in measured]))
            ratios = [mine[figure] / max(one[figure], 1e-9) for mine, one in zip(rounds[first], measured, strict=True)]
            behind = "" if name == first else f" ({np.median(ratios):.2f}x)"
            line += f"{_short(middle) + behind:>24}"
        lines.append(line)
    return lines


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ["sluice", "checkout", "gateway", "cluster", "pulsar"]
    usual = [name for name in every if name != "cluster"]
    parser.add_argument("--work", type=names_of(list(WORKS)), default=list(WORKS))
    parser.add_argument(
        "--sides", type=names_of(every), default=usual, help="which to compare, for example sluice,pulsar"
    )
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--paced", type=count, default=500, help="messages of a round and client")
    parser.add_argument("--every-ms", type=amount, default=10.0)
    parser.add_argument("--clients", type=count, default=1, help="clients at once that send paced messages")
    parser.add_argument("--threads", action="store_true", help="of paced messages, what each thread takes")
    parser.add_argument("--singles", type=count, default=100_000, help="messages of a round")
    parser.add_argument("--bytes", type=count, default=100, help="of a payload of those")
    parser.add_argument("--warm", type=count_or_none, default=200, help="messages before those that count")
    parser.add_argument("--pulsar", metavar="FOLDER", help="Pulsar's unpacked distribution")
    parser.add_argument("--checkout", metavar="FOLDER", help="another checkout of Sluice, set up by its ./sluice")
    parser.add_argument("--small", action="store_true", help="a run of a few seconds, for the tests")
    options = parser.parse_args()
    if options.small:
        options.rounds, options.paced, options.singles, options.warm = 1, 20, 2_000, 5
    print_compared(compare, options)


if __name__ == "__main__":
    main()
