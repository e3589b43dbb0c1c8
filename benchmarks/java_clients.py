"""Pulsar's Java client with Sluice's gateway and with Pulsar standalone, in turn: messages/s, and what a broker spends.

    .venv/bin/python benchmarks/java_clients.py [--pulsar FOLDER] [--rounds N] [--messages N] [--properties N]

Needs Java and Maven, which gets the client; Pulsar is its binary distribution, unpacked in the folder that --pulsar or
SLUICE_PULSAR_HOME names, and left out with one line if there is none. `gateway` is Sluice in one process, `cluster` in
many, each with three bookies and two copies; Pulsar has one copy. All sync to disk before they confirm.

Each side has one client process for the whole comparison: two producers in batches by key (10,000 keys by Zipf's law,
100 bytes), two Key_Shared consumers that acknowledge each message, 4 partitions, all at once; a topic of its own for
each round, and rounds before those that count, so that every compiler of a virtual machine has done its work. From the
first send to the last message: messages/s; `broker_us`, microseconds of processor time a message of all processes of
the broker, and none of its clients; `client_us`, those of the client. Medians, and in brackets the median over the
rounds of the first side's figure divided by that of the same round. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._java import compiled
from benchmarks._peer_servers import (
    GatewaySide,
    Missing,
    PulsarSide,
    Side,
    end_by_input,
    heard,
    names_of,
    print_compared,
)
from benchmarks.peers import Figures, table
from sluice.cluster.base.arguments import ArgumentParser, count, count_or_none

SOURCE = Path(__file__).parent / "java" / "Flood.java"
SIDES = ("gateway", "cluster", "pulsar")
PARTITIONS, PRODUCERS, CONSUMERS, SIZE = 4, 2, 2, 100


class Client:
    """The Java process of one side."""

    def __init__(self, side: Side, program: list[str]) -> None:
        self._log = side.folder / "client.log"
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                [*program, side.url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=side.folder,
            )
        heard(self._process.stdout, self._log)

    def flood(self, topic: str, messages: int, properties: int) -> dict[str, Any]:
        """Produce and consume so many, and say how long it took."""
        assert self._process.stdin is not None
        words = (topic, messages, PRODUCERS, CONSUMERS, SIZE, properties)
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return heard(self._process.stdout, self._log)

    def end(self) -> None:
        end_by_input(self._process)


def measured(side: Side, client: Client, messages: int, properties: int) -> Figures:
    """One round of one side. Raises RuntimeError if not every message came exactly once."""
    topic = side.make_topic(f"java-{time.time_ns():x}", PARTITIONS)
    cpu = side.cpu()
    told = client.flood(topic, messages, properties)
    cpu = side.cpu() - cpu
    if told["failed"] or not told["whole"]:
        raise RuntimeError(f"{side.name}: {told['received']} of {messages} messages came, {told['failed']} failed")
    return {
        "messages_per_s": messages / (told["ended"] - told["began"]),
        "broker_us": cpu * 1e6 / messages,
        "client_us": told["cpu"] * 1e6 / messages,
    }


def sides(options: argparse.Namespace, root: Path) -> list[Side]:
    """All that are wanted; nothing is started."""
    found: list[Side] = [
        GatewaySide("gateway", root / "gateway"),
        GatewaySide("cluster", root / "cluster", one_process=False),
        PulsarSide("pulsar", root / "pulsar", options.pulsar),
    ]
    return [side for side in found if side.name in options.sides]


def compare(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sluice-java-") as root, contextlib.ExitStack() as stack:
        classes = Path(root) / "classes"
        classes.mkdir()
        program = compiled(SOURCE, classes, "-Xms512m", "-Xmx512m")
        there: list[tuple[Side, Client]] = []
        for side in sides(options, Path(root)):
            stack.callback(side.stop)
            try:
                side.start()
            except Missing as error:
                print(f"{side.name}: left out: {error}", flush=True)
                continue
            there.append((side, Client(side, program)))
            stack.callback(there[-1][1].end)
        rounds: dict[str, list[Figures]] = {side.name: [] for side, _ in there}
        loads = []
        for number in range(-options.warm, options.rounds):
            loads.append(os.getloadavg()[0])
            turn = number % max(len(there), 1)  # who comes first changes
            for side, client in there[turn:] + there[:turn]:
                figures = measured(side, client, options.messages, options.properties)
                told = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
                print(f"round {number + 1}, {side.name}: {told}", file=sys.stderr, flush=True)
                if number >= 0:
                    rounds[side.name].append(figures)
        if there:
            print("\n".join(table("keyed batches", rounds)), flush=True)
    return {"benchmark": "java_clients", "load": round(float(np.median(loads)), 1), "rounds": rounds}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", type=names_of(list(SIDES)), default=["gateway", "pulsar"])
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--warm", type=count_or_none, default=2, help="rounds before those that count")
    parser.add_argument("--messages", type=count, default=500_000, help="of a round")
    parser.add_argument("--properties", type=count_or_none, default=0, help="of each message")
    parser.add_argument("--pulsar", metavar="FOLDER", help="Pulsar's unpacked distribution")
    parser.add_argument("--small", action="store_true", help="a few seconds; the figures mean nothing")
    options = parser.parse_args()
    if options.small:
        options.sides, options.rounds, options.warm, options.messages = ["gateway"], 1, 0, 5_000
    print_compared(compare, options)


if __name__ == "__main__":
    main()
