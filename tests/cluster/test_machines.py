"""Three machines, whose addresses are none of the loopback, do what deploy/README.md tells a person to type.

The commands come from that page. Names alone are replaced: those of the first machine, of the store, and of the folder
with the cluster's files. The store runs on a machine of its own, and so does a client of Pulsar.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cluster.bootstrap.identity import ID_FILE
from loadgen.machines import Machine, machines, missing
from tests.hygiene.source import ROOT
from tests.kit.certificates import Authority
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
PATIENCE_S = 300.0
"""For one command, on a machine that does much else."""


class Page:
    """The part of deploy/README.md about several machines."""

    def __init__(self, names: dict[str, str]) -> None:
        text = (ROOT / "deploy" / "README.md").read_text()
        text = text[text.index("## 3. ") : text.index("## 4. ")]
        for name, real in names.items():
            assert name in text
            text = text.replace(name, real)
        parts = text.split("\n### ")[1:]
        self._parts = {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}

    def lines(self, title: str) -> list[str]:
        """The commands below a heading, in order."""
        shown = self._parts[title].partition("```python\n")[0]
        return [line.strip() for line in shown.splitlines() if line.startswith("    ")]

    def program(self, title: str) -> str:
        """The program in Python below a heading."""
        return self._parts[title].partition("```python\n")[2].partition("```")[0]


class Site(NamedTuple):
    """Machines that a person has prepared as the page says, with Ray on three of them. outside: a client's machine."""

    first: Machine
    others: list[Machine]
    outside: Machine
    page: Page
    address: str

    @property
    def all(self) -> list[Machine]:
        """Those with Ray."""
        return [self.first, *self.others]


def typed(machine: Machine, line: str) -> str:
    """What a line prints, and what it says beside that, if a person types it in a shell there."""
    return machine.run(["bash", "-c", f"{{ {line}; }} 2>&1"], PATIENCE_S)


def everywhere(where: list[Machine], line: str) -> list[str]:
    """The same on several machines at once."""
    begun = [machine.begin(["bash", "-c", line]) for machine in where]
    ended = [child.communicate(timeout=PATIENCE_S) for child in begun]
    assert [child.returncode for child in begun] == [0] * len(begun), ended
    return [output for output, _ in ended]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Ray as the page starts it, without Sluice."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    if not (kinds := available_kinds()):
        pytest.skip("neither MinIO nor ministack is installed")
    with machines(5) as network:
        first, second, third, store, outside = network.machines
        cluster = [first, second, third]
        authority = Authority(tmp_path_factory.mktemp("authority"))
        for machine in (*cluster, outside):
            machine.variables.update(CREDENTIALS)
            for name in ("sluice", ".venv", "deploy"):
                (machine.folder / name).symlink_to(ROOT / name)
            files = machine.folder / "etc"
            files.mkdir()
            shutil.copy(authority.trust, files / "authority.pem")
            pair = authority.issue(machine.name, address=machine.address)
            shutil.copy(pair.certificate, files / "node.pem")
            shutil.copy(pair.key, files / "node.key")
        server = S3Server(kinds[0], tmp_path_factory.mktemp("s3"), store)
        server.start()
        try:
            first.run([sys.executable, "-c", MAKE_BUCKET, server.endpoint, BUCKET])
            names = {"10.0.0.1": first.address, "http://s3.example:9000": server.endpoint}
            page = Page({**names, "/etc/sluice": str(first.home / "etc")})
            for line in page.lines("Once"):
                typed(first, line)
            for machine in cluster[1:]:
                for name in (".ray/auth_token", "etc/token.key"):
                    (machine.folder / name).parent.mkdir(exist_ok=True)
                    shutil.copy(first.folder / name, machine.folder / name)
            head, node = page.lines("Ray on each machine")
            typed(first, head)
            everywhere(cluster[1:], node)
            yield Site(first, cluster[1:], outside, page, f"{first.address}:6379")
        finally:
            server.kill()


def hosts_of(machine: Machine) -> list[str]:
    """Titles of the processes that Sluice runs there."""
    pids = [process.pid for process in machine.processes()]
    titles = [Path(f"/proc/{pid}/cmdline").read_bytes().strip(b"\0").decode() for pid in pids]
    return [title for title in titles if title.startswith("ray::") and "Agent" not in title and "IDLE" not in title]


def test_what_several_machines_need_is_said_at_once(site: Site) -> None:
    """The defaults are those of one machine: one line, exit 2, and nothing runs that the next attempt would find."""
    code, output, errors = site.first.try_to_run(["sluice", "up", "--address", site.address], PATIENCE_S)
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1
    for option in ("--set bind_address=node", "--set metadata=s3://BUCKET/PREFIX", "--objects s3://BUCKET/PREFIX"):
        assert option in errors
    assert [hosts_of(machine) for machine in site.all] == [[], [], []]
    assert not (site.first.folder / "sluice-data" / ID_FILE).exists()


def test_what_the_page_says_can_be_typed(site: Site) -> None:
    """`up`, `status` on each, use from different machines, a flood, a client of Pulsar from outside, `down`."""
    first, page = site.first, site.page
    (up, status) = page.lines("Sluice")
    told = typed(first, up)
    for scheme, port in (("pulsar", 6650), ("pulsar+ssl", 6651), ("http", 8080), ("https", 8443)):
        assert f"{scheme}://{first.address}:{port}" in told
    for answer in map(json.loads, everywhere(site.all, f"{status} --json")):
        assert answer["data_dir"] == str(first.home / "sluice-data")
        assert {node["address"] for node in answer["nodes"]} == {machine.address for machine in site.all}
        assert [row for row in answer["actors"] if row["state"] != "running"] == []
        assert len([row for row in answer["actors"] if row["kind"] == "gateway"]) == len(site.all)
        assert answer["alarms"] == []
    *made, consume, flood = page.lines("Use it")
    for line in made:
        typed(site.others[0], line)
    (received,) = everywhere([site.others[1]], f"{consume} --json")
    assert [json.loads(line)["data"] for line in received.splitlines()] == ["paid", "shipped"]
    assert all(hosts_of(machine) for machine in site.all)

    (token,) = page.lines("Clients of Pulsar")
    typed(site.others[0], token)
    shutil.copy(site.others[0].folder / "token", site.outside.folder / "token")
    program = page.program("Clients of Pulsar")
    assert "b'paid'" in site.outside.run([sys.executable, "-c", program], PATIENCE_S)
    stranger = "\n".join(line for line in program.splitlines() if "authentication=" not in line)
    assert site.outside.try_to_run([sys.executable, "-c", stranger], PATIENCE_S)[0] != 0

    told = typed(site.others[1], flood)
    assert "every promise" in told
    (down,) = page.lines("The end")
    typed(first, down)
    assert [hosts_of(machine) for machine in site.all] == [[], [], []]


def test_nothing_is_left_of_machines() -> None:
    """No namespace, no folder, no process. What is cut does not arrive, and nobody is told."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with machines(3) as network:
        first, second, third = network.machines

        def reach(sender: Machine, receiver: Machine) -> str:
            program = f"import socket; socket.create_connection(('{receiver.address}', 7), 1)"
            return sender.try_to_run([sys.executable, "-c", program])[2].splitlines()[-1]

        assert "refused" in reach(first, second)
        network.cut(first, second)
        assert "timed out" in reach(first, second)
        assert "refused" in reach(first, third)
        network.heal()
        network.drop(first, second)
        assert "timed out" in reach(second, first)  # the answer does not arrive
        network.heal()
        assert "refused" in reach(first, second)
        running = first.begin(["sleep", "3600"])
        (first.folder / "mine").touch()
        assert [machine.run(["ls"]) for machine in network.machines] == ["mine\n", "", ""]
        assert second.processes() == []
    running.wait()
    assert first.name not in os.listdir("/run/netns")
    assert not first.folder.exists()
