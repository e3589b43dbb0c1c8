"""Three machines with Ray, prepared by deploy/README.md, with a store on a fourth one and a client's machine.

The commands come from that page. Only names are replaced: those of the first machine, of the store, and of the folder
with the cluster's files.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sluice.cluster.node.nodes import SLOW_START, START_TRIES
from tests.hygiene.source import ROOT
from tests.kit.certificates import Authority
from tests.kit.machine_server import served
from tests.kit.machines import Machine, Network, machines
from tests.s3server import ACCESS_KEY, SECRET_KEY, S3Server, available_kinds

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
REDIS = "redis-server"
DATA_BYTES = 1 << 30
"""Room for the data of a machine."""


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
        """Return the commands below a heading, in order."""
        shown = self._parts[title].partition("```python\n")[0]
        return [line.strip() for line in shown.splitlines() if line.startswith("    ")]

    def program(self, title: str) -> str:
        """Return the program in Python below a heading."""
        return self._parts[title].partition("```python\n")[2].partition("```")[0]


class Site(NamedTuple):
    """The machines that a person has prepared by the page, three of them with Ray. outside: a client's machine."""

    network: Network
    first: Machine
    others: list[Machine]
    outside: Machine
    page: Page
    address: str
    store: str

    @property
    def all(self) -> list[Machine]:
        """The machines with Ray."""
        return [self.first, *self.others]

    @property
    def start_head(self) -> str:
        """The lines that start Ray's head, which keeps what it knows in the Redis of the store's machine."""
        (export,) = self.page.lines("When the head is lost")
        return f"{export} && {self.page.lines('Ray on each machine')[0]}"

    @property
    def stores(self) -> dict[str, str]:
        """The stores of the cluster, as environment variables for its processes."""
        return {
            "SLUICE_METADATA": f"s3://{BUCKET}/metadata",
            "SLUICE_OBJECTS": f"s3://{BUCKET}/objects",
            "SLUICE_S3_ENDPOINT_URL": self.store,
        }


def typed(machine: Machine, line: str) -> str:
    """Type a line in a shell of the machine. Return all that it prints, on stdout and stderr."""
    return machine.run(["bash", "-c", f"{{ {line}; }} 2>&1"], PATIENCE_S)


def start_ray(machine: Machine, line: str) -> None:
    """Type a line that starts Ray there. On a busy machine Ray gives up its own start, and a person types it again."""
    for left in reversed(range(START_TRIES)):
        code, _, errors = machine.try_to_run(["bash", "-c", line], PATIENCE_S)
        if code == 0:
            return
        assert left, f"{line} on {machine.address} ended with {code}: {errors}"
        assert SLOW_START in errors, errors
        machine.end_processes()


def answered(output: str) -> dict[str, Any]:
    """Return the JSON object that a command printed. Ray may print lines beside it, about a lost node for example."""
    return dict(json.loads([line for line in output.splitlines() if line.startswith("{")][-1]))


def everywhere(where: list[Machine], line: str) -> list[str]:
    """Run a line on several machines at once. Return the output of each."""
    begun = [machine.begin(["bash", "-c", line]) for machine in where]
    ended = [child.communicate(timeout=PATIENCE_S) for child in begun]
    assert [child.returncode for child in begun] == [0] * len(begun), ended
    return [output for output, _ in ended]


@contextlib.contextmanager
def prepared(folder: Path, *, redis: bool = False) -> Iterator[Site]:
    """Start Ray by the page, without Sluice. folder: for files that belong to no machine.

    redis: the store's machine runs one for Ray's head, so that the head can be lost and started again.
    """
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(machines(5, data_bytes=DATA_BYTES))
        first, second, third, store, outside = network.machines
        cluster = [first, second, third]
        (folder / "authority").mkdir()
        authority = Authority(folder / "authority")
        server = S3Server(available_kinds()[0], folder / "s3", store)
        environment = Path(sys.prefix)  # with another Python than the usual one it is not what ./sluice would choose
        door = (ROOT if environment == ROOT / ".venv" else environment / "bin") / "sluice"
        for machine in (*cluster, outside):
            machine.variables.update({**CREDENTIALS, "RAY_raylet_start_wait_time_s": f"{PATIENCE_S / 2:.0f}"})
            for name, source in {"sluice": door, ".venv": environment, "deploy": ROOT / "deploy"}.items():
                (machine.folder / name).symlink_to(source)
            files = machine.folder / "etc"
            files.mkdir()
            shutil.copy(authority.trust, files / "authority.pem")
            pair = authority.issue(machine.name, address=machine.address)
            shutil.copy(pair.certificate, files / "node.pem")
            shutil.copy(pair.key, files / "node.key")
        server.start()
        stack.callback(server.kill)
        first.run([sys.executable, "-c", MAKE_BUCKET, server.endpoint, BUCKET])
        names = {"10.0.0.1": first.address, "10.0.0.2": second.address, "10.0.0.9": store.address}
        names["http://s3.example:9000"] = server.endpoint
        page = Page({**names, "/etc/sluice": str(first.home / "etc")})
        for line in page.lines("Once"):
            typed(first, line)
        for machine in cluster[1:]:
            for name in (".ray/auth_token", "etc/token.key"):
                (machine.folder / name).parent.mkdir(exist_ok=True)
                shutil.copy(first.folder / name, machine.folder / name)
        head, node = page.lines("Ray on each machine")
        site = Site(network, first, cluster[1:], outside, page, f"{first.address}:6379", server.endpoint)
        if redis:
            head = site.start_head
            store.begin([REDIS, "--bind", store.address, "--protected-mode", "no", "--save", "", "--port", "6379"])
        stack.enter_context(served(network, cluster, (lambda: typed(first, head)) if redis else None))
        start_ray(first, head)
        for machine in cluster[1:]:
            start_ray(machine, node)
        yield site


def hosts_of(machine: Machine) -> list[str]:
    """Return the titles of the processes that Sluice runs on the machine."""
    pids = [process.pid for process in machine.processes()]
    titles = [Path(f"/proc/{pid}/cmdline").read_bytes().strip(b"\0").decode() for pid in pids]
    return [title for title in titles if title.startswith("ray::") and "Agent" not in title and "IDLE" not in title]


def steady(site: Site, where: Machine, topic: str) -> Callable[[], dict[str, Any]]:
    """Begin a steady load on a machine (tests.kit.steady_load). Return a function that ends and reports it.

    On the client's machine the load is that of a client of Pulsar, which knows all gateways and has a file `token`.
    """
    load = [sys.executable, "-m", "tests.kit.steady_load", site.address, topic, "200", str(where.home / "stop")]
    if where is site.outside:
        load[3] = "pulsar://" + ",".join(f"{machine.address}:6650" for machine in site.all)
        load.append(str(where.home / "token"))
    else:
        where.variables.update(site.stores)
    running = where.begin(["env", f"PYTHONPATH={ROOT}/src:{ROOT}", *load])

    def end() -> dict[str, Any]:
        (where.folder / "stop").touch()
        output, errors = running.communicate(timeout=PATIENCE_S)
        (where.folder / "stop").unlink()
        assert running.returncode == 0, errors
        return answered(output)

    return end


def rolled(
    site: Site,
    topic: str,
    between: Callable[[Machine], None] = lambda machine: None,
    *,
    drains: bool = True,
    head: bool = False,
) -> dict[str, Any]:
    """Take the machines beside the head's down and up again under load, one at a time, as the page says.

    between: what is done while a machine is down. drains False: the machine is not drained before. head: the machine of
    the head follows the others, and the load comes from outside.
    Returns the result of the load (tests.kit.steady_load), and `steps`: (seconds of the load, what was done).
    """
    (drain,) = site.page.lines("Take a machine down")
    _, node = site.page.lines("Ray on each machine")
    first = site.first
    end = steady(site, site.outside if head else first, topic)
    await_actors(site)
    steps: list[tuple[float, str]] = []
    for machine in [*site.others, first][: len(site.all) if head else -1]:
        steps.append((time.monotonic(), f"drain {machine.address}"))
        if drains:
            print(typed(first, drain.replace(site.others[0].address, machine.address)))
        steps.append((time.monotonic(), "down"))
        machine.end_processes()
        steps.append((time.monotonic(), "is down"))
        between(machine)
        start_ray(machine, site.start_head if machine is first else node)
        steps.append((time.monotonic(), "Ray is up"))
        await_actors(site)
        steps.append((time.monotonic(), "all runs"))
    told = end()
    return {**told, "steps": [(round(at - told["began"], 1), what) for at, what in steps]}


def await_actors(site: Site) -> None:
    """Wait until everything runs, a gateway on each machine included, as a person does before the next machine."""
    (_, status) = site.page.lines("Sluice")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        code, output, troubled = site.first.try_to_run(["bash", "-c", f"{status} --json"], PATIENCE_S)
        if code == 0:  # otherwise another controller is taking over
            actors = answered(output)["actors"]
            gateways = [row for row in actors if row["kind"] == "gateway"]
            troubled = str([row for row in actors if row["state"] != "running"])
            if troubled == "[]" and len(gateways) == len(site.all):
                return
        assert time.monotonic() < deadline, troubled
