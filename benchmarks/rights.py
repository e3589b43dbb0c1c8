"""What permissions cost: an unchanged client of Pulsar with a token and permissions, and without, in turn.

    .venv/bin/python benchmarks/rights.py [--messages N] [--rounds N] [--small]

Prints one JSON object: of messages in batches by key and of single ones, the microseconds of the broker's processor
time a message, in each round without and with all of it (a key for tokens, an audience, `authorization_enabled`,
permissions and a limit of the namespace), and the median of the ratios of the pairs. Both clusters are
`./sluice up --embedded`, and there all the time; the client is this process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pulsar

from benchmarks.pulsar_clients import flood
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.gateway.ports import WEB, port_of, service_url
from sluice.cluster.gateway.tokens import make_key, make_token
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.discovery import process_of
from sluice.cluster.settings.config import load

KINDS: dict[str, dict[str, Any]] = {
    "keyed": {"batching_enabled": True, "batching_type": pulsar.BatchingType.KeyBased},
    "singles": {"batching_enabled": False},
}


@dataclass(frozen=True)
class Side:
    """A cluster, and a client of it."""

    broker: psutil.Process
    client: pulsar.Client


def _granted(data: Path, token: str) -> None:
    """The role `team` may do all that it needs, and its namespace has a limit that it does not reach."""
    base = f"http://127.0.0.1:{port_of(data, WEB)}/admin/v2/namespaces/public/default"
    for path, body in (
        ("permissions/team", ["produce", "consume"]),
        ("publishRate", {"publishThrottlingRateInMsg": 1 << 40, "publishThrottlingRateInByte": 1 << 40}),
    ):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{base}/{path}", json.dumps(body).encode(), headers, method="POST")
        urllib.request.urlopen(asked, timeout=60).close()


@contextlib.contextmanager
def _side(folder: Path, *, rights: bool) -> Iterator[Side]:
    data, key, more = folder / "data", folder / "token.key", dict[str, Any]()
    folder.mkdir()
    options: dict[str, Any] = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)}
    if rights:
        make_key(key)
        more = {"pulsar_token_key_file": str(key), "pulsar_token_audience": "bench", "authorization_enabled": True}
        more["super_user_roles"] = "root"
        options["authentication"] = pulsar.AuthenticationToken(make_token(key, {"sub": "team", "aud": "bench"}))
    standalone.up(load(None, data_dir=data, pulsar_port=0, pulsar_web_port=0, **more).values)
    try:
        if rights:
            _granted(data, make_token(key, {"sub": "root", "aud": "bench"}))
        broker = process_of(json.loads((data / "cluster.json").read_text()))
        assert broker is not None
        client = pulsar.Client(service_url(data, 0), **options)
        yield Side(broker, client)
        client.close()
    finally:
        launch.down(data)


def measure(messages: int, rounds: int) -> dict[str, Any]:
    """All of it; the first round of each is left out."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="sluice_") as folder:
        place = Path(folder)
        with _side(place / "off", rights=False) as off, _side(place / "on", rights=True) as on:
            for kind, options in KINDS.items():
                pairs = []
                for number in range(rounds + 1):
                    sides = (off, on) if number % 2 else (on, off)
                    spent = {
                        side: flood(side.client, side.broker, f"{kind}-{number}", messages, **options) for side in sides
                    }
                    pairs.append([spent[side]["broker_us_per_message"] for side in (off, on)])
                ratios = [with_rights / without for without, with_rights in pairs[1:]]
                told[kind] = {"off_and_on_us": pairs[1:], "median_ratio": round(statistics.median(ratios), 3)}
    return told


def main() -> None:
    """See the module."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=count, default=100_000, help="of a round")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--small", action="store_true", help="a few seconds; the figures mean nothing")
    wanted = parser.parse_args()
    print(json.dumps(measure(500, 1) if wanted.small else measure(wanted.messages, wanted.rounds)))


if __name__ == "__main__":
    main()
