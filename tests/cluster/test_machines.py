"""A cluster of two machines whose addresses are none of the loopback: joined, used from either, and ended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cluster.bootstrap.identity import ID_FILE
from tests.kit.machines import Machine, machines, missing, start_ray
from tests.s3server import ACCESS_KEY, SECRET_KEY, S3Server, available_kinds

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

BUCKET = "sluice"
MAKE_BUCKET = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1]).create_bucket(Bucket=sys.argv[2])"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Site(NamedTuple):
    """Two machines with Ray on them, and a store that both reach. address: of Ray's head."""

    first: Machine
    second: Machine
    address: str
    store: str

    def shared(self) -> list[str]:
        """The options with which `up` serves several machines."""
        stores = ["--objects", f"s3://{BUCKET}/objects", "--set", f"metadata=s3://{BUCKET}/metadata"]
        return [*stores, "--s3-endpoint", self.store, "--set", "bind_address=node"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Ray as deploy/README.md starts it, without Sluice."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    if not (kinds := available_kinds()):
        pytest.skip("neither MinIO nor ministack is installed")
    with machines(2) as (first, second):
        for machine in (first, second):
            machine.variables.update(CREDENTIALS)
        server = S3Server(kinds[0], tmp_path_factory.mktemp("s3"), first)
        server.start()
        try:
            first.run([sys.executable, "-c", MAKE_BUCKET, server.endpoint, BUCKET])
            yield Site(first, second, start_ray(first, second), server.endpoint)
        finally:
            server.kill()


def hosts_of(machine: Machine) -> list[str]:
    """Titles of the processes that Sluice runs there."""
    pids = [process.pid for process in machine.processes()]
    titles = [Path(f"/proc/{pid}/cmdline").read_bytes().strip(b"\0").decode() for pid in pids]
    return [title for title in titles if title.startswith("ray::") and "Agent" not in title and "IDLE" not in title]


def test_what_several_machines_need_is_said_at_once(site: Site) -> None:
    """The defaults are those of one machine: one line, exit 2, and nothing runs that the next attempt would find."""
    code, output, errors = site.first.try_to_run(["sluice", "up", "--address", site.address])
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1
    for option in ("--set bind_address=node", "--set metadata=s3://BUCKET/PREFIX", "--objects s3://BUCKET/PREFIX"):
        assert option in errors
    assert [hosts_of(machine) for machine in (site.first, site.second)] == [[], []]
    assert not (site.first.folder / "sluice-data" / ID_FILE).exists()
    code, _, errors = site.second.try_to_run(["sluice", "status", "--address", site.address])
    assert code == 2, errors
    assert "no Sluice" in errors or "no process controller" in errors


def test_two_machines_are_joined_and_share_a_topic(site: Site) -> None:
    """`up`, `status` on both, a producer on one, a consumer on the other, `down`; Sluice's processes are gone then."""
    first, second, at = site.first, site.second, ["--address", site.address]
    first.run(["sluice", "up", *at, *site.shared(), "--set", "pulsar_web_port=8081"])
    second.run(["sluice", "topics", "create", "orders", "--partitions", "2", *at])
    for machine in (first, second):
        status = json.loads(machine.run(["sluice", "status", "--json", *at]))
        assert [status["objects"], status["metadata"]] == [f"s3://{BUCKET}/objects", f"s3://{BUCKET}/metadata"]
        assert status["data_dir"] == str(first.folder / "sluice-data")
        assert {node["address"] for node in status["nodes"]} == {first.address, second.address}
        assert {row["state"] for row in status["actors"]} == {"running"}
        assert status["alarms"] == []
    first.run(["sluice", "produce", "orders", "-m", "paid", "-k", "k", "-n", "3", *at])
    wanted = ["-s", "billing", "-p", "earliest", "-n", "3", "--timeout", "60s", "--json"]
    received = second.run(["sluice", "consume", "orders", *wanted, *at])
    assert [json.loads(line)["data"] for line in received.splitlines()] == ["paid"] * 3
    assert all(hosts_of(machine) for machine in (first, second))
    first.run(["sluice", "down"])
    assert [hosts_of(machine) for machine in (first, second)] == [[], []]


def test_nothing_is_left_of_machines() -> None:
    """No namespace and no folder, and whatever ran on them has ended."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with machines(2) as (first, second):
        running = first.begin(["sleep", "3600"])
        reached = f"import socket; socket.create_server(('', 7)); socket.create_connection(('{second.address}', 7), 1)"
        assert "refused" in first.try_to_run([sys.executable, "-c", reached])[2]
        assert [process.pid for process in first.processes()] == [running.pid]
        assert second.processes() == []
    running.wait()
    assert first.name not in os.listdir("/run/netns")
    assert not first.folder.exists()
