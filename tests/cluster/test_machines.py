"""Three machines, whose addresses are none of the loopback, do what deploy/README.md tells a person to type.

The commands come from that page (tests.kit.site). The store has a machine of its own, and so has a client of Pulsar.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.loadgen.base.kinds import CUT, CUT_ONE_WAY, FULL_DISK, ISOLATE, LOSSY_LINK, SLOW_LINK
from tests.hygiene.source import ROOT
from tests.kit.machine_scenes import KILL_HEAD, KILLED_S, play
from tests.kit.machines import Machine, machines, missing
from tests.kit.site import PATIENCE_S, REDIS, Site, answered, everywhere, hosts_of, prepared, rolled, typed
from tests.s3server import available_kinds

OLDER = "717e4ed6"
"""The version that machines are upgraded from: the last one that does not read runs of several producers."""
MARK = "older"
"""A file in its tree, and in no other."""
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Ray as the page starts it, without Sluice."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    if not available_kinds():
        pytest.skip("neither MinIO nor ministack is installed")
    with prepared(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_missing_settings_for_machines_are_told_at_once(site: Site) -> None:
    """The defaults are those of one machine: one line, exit 2, and nothing runs that the next attempt would find."""
    code, output, errors = site.first.try_to_run(["sluice", "up", "--address", site.address], PATIENCE_S)
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1
    for option in ("--set bind_address=node", "--set metadata=s3://BUCKET/PREFIX", "--objects s3://BUCKET/PREFIX"):
        assert option in errors
    assert [hosts_of(machine) for machine in site.all] == [[], [], []]
    assert site.first.run(["ls", "sluice-data"]) == ""


def test_commands_of_the_page_can_be_typed(site: Site) -> None:
    """`up`, `status` on each, use from different machines, a flood, a client of Pulsar from outside, `down`."""
    first, page = site.first, site.page
    (up, status) = page.lines("Sluice")
    told = typed(first, up)
    for scheme, port in (("pulsar", 6650), ("pulsar+ssl", 6651), ("http", 8080), ("https", 8443)):
        assert f"{scheme}://{first.address}:{port}" in told
    for answer in map(answered, everywhere(site.all, f"{status} --json")):
        assert answer["data_dir"] == str(first.home / "sluice-data")
        assert answer["controller_machine"] in {machine.address for machine in site.all}
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
    (line,) = (line for line in program.splitlines() if "authentication=" in line)
    stranger = program.replace(line, "    operation_timeout_seconds=2,")  # it tries again and again for so long
    code, output, _ = site.outside.try_to_run([sys.executable, "-c", stranger], PATIENCE_S)
    assert code != 0
    assert "b'paid'" not in output

    told = typed(site.others[1], flood)
    assert "every promise" in told
    (down,) = page.lines("The end")
    typed(first, down)
    assert [hosts_of(machine) for machine in site.all] == [[], [], []]


@pytest.mark.release
def test_machines_are_cut_off_under_load(site: Site) -> None:
    """`./sluice chaos` on one of them: every promise holds, and afterwards every process is the one that it was."""
    where = site.others[0]
    typed(site.first, site.page.lines("Sluice")[0])
    where.variables.update(site.stores)
    before = processes(site)
    kinds = ",".join((ISOLATE, CUT, CUT_ONE_WAY, SLOW_LINK, LOSSY_LINK, FULL_DISK))
    # None begins before the one before is over, which takes up to 25 s: else it would be passed over.
    chaos = f"./sluice chaos --minutes 3 --every 27s --faults {kinds} --rate 300 --address {site.address}"
    told = where.run(["bash", "-c", f"{chaos} --json report.json"], 2 * PATIENCE_S)
    assert "every promise" in told
    report = json.loads((where.folder / "report.json").read_text())
    assert {fault["kind"] for fault in report["faults"]} == set(kinds.split(","))
    after = processes(site)
    for name, (address, restarts) in before.items():
        if not name.startswith(("topic", "dispatcher")):  # owners may move
            assert after[name] == (address, restarts), name
    typed(site.first, site.page.lines("The end")[0])


@pytest.mark.release
def test_machines_restart_one_after_the_other(site: Site) -> None:
    """Under load, as the page says: nothing is lost, every key keeps its order, and no owner ends unasked."""
    first = site.first
    typed(first, f"{site.page.lines('Sluice')[0]} --set brokers=3")
    typed(first, site.page.lines("Use it")[0].replace("orders", "steady"))
    told = rolled(site, "steady")
    print(told)
    assert told["confirmed"] > 0
    assert (told["lost"], told["disorder"], told["failed"]) == (0, 0, {})
    owners = {name: row for name, row in processes(site).items() if name.startswith(("topic", "dispatcher"))}
    assert [restarts for _, restarts in owners.values()] == [0] * len(owners)
    code, _, errors = first.try_to_run(["./sluice", "nodes", "drain", "10.77.0.99", "--address", site.address])
    assert code == 2
    assert errors.count("\n") == 1
    assert first.address in errors
    typed(first, site.page.lines("The end")[0])


@pytest.mark.release
def test_an_older_version_is_upgraded_under_load(site: Site, tmp_path: Path) -> None:
    """Two of three machines run an older version at first, and get the new one while the others go on.

    Until then each version's owners, bookies, gateways and clients have those of the other one to talk to. Nothing is
    drained: what a machine runs ends with it.
    """
    if (reason := older_tree(tmp_path)) is not None:
        pytest.skip(reason)
    first = site.first
    for machine in site.others:
        downgrade(machine, tmp_path)
    typed(first, f"{site.page.lines('Sluice')[0]} --set brokers=3")
    typed(first, site.page.lines("Use it")[0].replace("orders", "mixed"))
    told = rolled(site, "mixed", upgrade, drains=False)
    print(told)
    assert [(machine.folder / "sluice").exists() for machine in site.others] == [True, True]
    assert [machine.try_to_run(["cat", f"{ROOT}/{MARK}"])[0] for machine in site.others] == [1, 1]
    assert told["confirmed"] > 0
    assert (told["lost"], told["disorder"], told["failed"]) == (0, 0, {})
    typed(first, site.page.lines("The end")[0])


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_every_machine_of_an_older_version_is_upgraded(tmp_path: Path) -> None:
    """All three run an older version at first, and get the new one in turn, that of the head included.

    A client of Pulsar publishes and receives all the while. Nothing is drained, and Ray's head keeps what it knows in a
    Redis.
    """
    if (reason := missing()) is not None:
        pytest.skip(reason)
    if shutil.which(REDIS) is None or not available_kinds():
        pytest.skip(f"{REDIS} is not installed, or neither MinIO nor ministack is")
    older, folder = tmp_path / "older", tmp_path / "site"
    for made in (older, folder):
        made.mkdir()
    if (reason := older_tree(older)) is not None:
        pytest.skip(reason)
    with prepared(folder, redis=True) as site:
        for machine in site.all:
            downgrade(machine, older)
        typed(site.first, f"{site.page.lines('Sluice')[0]} --set brokers=3")
        (create, *_) = site.page.lines("Use it")
        typed(site.first, f"{create.replace('orders', 'mixed')} --set deduplication_enabled=true")
        (token,) = site.page.lines("Clients of Pulsar")
        typed(site.first, token)
        shutil.copy(site.first.folder / "token", site.outside.folder / "token")
        told = rolled(site, "mixed", upgrade, drains=False, head=True)
        print(told)
        assert [machine.try_to_run(["cat", f"{ROOT}/{MARK}"])[0] for machine in site.all] == [1, 1, 1]
        assert told["confirmed"] > 0
        assert (told["lost"], told["disorder"], told["twice"], told["failed"]) == (0, 0, 0, {})
        typed(site.first, site.page.lines("The end")[0])


@pytest.mark.release
def test_the_machine_of_the_head_is_lost_under_load(site: Site) -> None:
    """Without a Redis: what was confirmed is delivered in order, and publishing goes on. Afterwards Ray is gone."""
    typed(site.first, f"{site.page.lines('Sluice')[0]} --set brokers=3")
    told = play(site, KILL_HEAD)
    print(told)
    assert (told["lost"], told["disorder"], told["failed"]) == (0, 0, {})
    assert told["longest_confirm_ms"][0] < 1000 * KILLED_S, "it went on while there was no head"


def downgrade(machine: Machine, tree: Path) -> None:
    """Give a machine the older version whose files lie in a folder.

    The environment stays this one's, and is read-only there: an older `./sluice` would make it again. So the machine
    gets the command of the environment.
    """
    (machine.folder / "sluice").unlink()
    (machine.folder / "sluice").symlink_to(Path(sys.prefix) / "bin" / "sluice")
    kept = f"mount --bind {ROOT}/.venv {tree}/.venv && mount -o remount,bind,ro {tree}/.venv"
    code = f"{kept} && mount --rbind {tree} {ROOT} && cat {ROOT}/{MARK}"
    assert machine.run(["sh", "-c", code]) == OLDER


def upgrade(machine: Machine) -> None:
    """Give a machine back the version that the others have."""
    machine.run(["umount", "--recursive", "--lazy", str(ROOT)])


def older_tree(folder: Path) -> str | None:
    """Lay an older version's files into a folder; why that cannot be done, if so."""
    made = subprocess.run(["git", "-C", str(ROOT), "archive", OLDER], capture_output=True, check=False)
    if made.returncode:
        return f"this checkout does not have the older version {OLDER}"
    subprocess.run(["tar", "-x", "-C", str(folder)], input=made.stdout, check=True)
    (folder / MARK).write_text(OLDER)
    (folder / ".venv").mkdir()
    return None


def processes(site: Site) -> dict[str, tuple[str, int]]:
    """By name, where everything runs, and how often it was replaced."""
    rows = answered(typed(site.first, f"{site.page.lines('Sluice')[1]} --json"))["actors"]
    return {row["name"]: (row["address"], row["restarts"]) for row in rows}


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
        network.hamper(first, second, loss=1.0)
        assert "timed out" in reach(first, second)
        assert "refused" in reach(first, third)
        network.hamper(first, second, delay_ms=150)
        began = time.monotonic()
        assert "refused" in reach(first, second)
        assert time.monotonic() - began > 0.3, "once there, and once back"
        network.heal()
        running = first.begin(["sleep", "3600"])
        (first.folder / "mine").touch()
        assert [machine.run(["ls"]) for machine in network.machines] == ["mine\n", "", ""]
        assert second.processes() == []
    running.wait()
    assert first.name not in os.listdir("/run/netns")
    assert not first.folder.exists()
