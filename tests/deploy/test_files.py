"""The deployment files, as far as they can be checked without a container engine.

They parse, agree with each other, and name only what exists: commands and options of Sluice and of Ray, configuration
keys, metrics, files that are copied.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml
from packaging.requirements import Requirement

from sluice.cli.app import app
from sluice.cluster.settings.config import PREFIX, known_keys

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
ALL = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "s3" not in path.relative_to(DEPLOY).parts[:1])
CHART = DEPLOY / "helm" / "sluice"
YAML = [path for path in ALL if path.suffix in (".yaml", ".yml") and path.parent.name != "templates"]

_SLUICE = re.compile(r"(?:^|[\s'\"`/])sluice +((?:[a-z][a-z-]*|--[a-z0-9-]+)(?: [^'\n`;&|#)]*)?)")
_RAY = re.compile(r"(?:^|[\s\"/])ray (start|stop|health-check)\b([^\n;&|]*)")
_OTHERS = re.compile(r"\b(?:git|kubectl) ")


def _load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_parses(path: Path) -> None:
    assert yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", [path for path in ALL if path.suffix == ".sh"], ids=lambda path: path.name)
def test_scripts_are_posix(path: Path) -> None:
    assert path.stat().st_mode & 0o111
    assert path.read_text().startswith("#!/bin/sh\n")
    done = subprocess.run(["sh", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _sluice_calls() -> list[tuple[str, str]]:
    calls = []
    for path in ALL:
        for line in path.read_text().replace('["sluice", "--help"]', "sluice --help").splitlines():
            code = line.split("#")[0] if path.suffix in (".sh", ".yaml") else line
            code = line if line.startswith("#     ") else code
            if path.suffix == ".md" and not line.startswith("    "):
                continue
            calls += [(path.name, found[1].strip()) for found in _SLUICE.finditer(code) if not _OTHERS.search(code)]
    return calls


def test_there_are_commands_to_check() -> None:
    assert {name for name, _ in _sluice_calls()} >= {"head.sh", "compose.yaml", "rayjob-up.yaml", "README.md"}


@pytest.mark.parametrize(("name", "line"), sorted(set(_sluice_calls())))
def test_every_command_of_sluice_exists(name: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] in ("--help", "--version"):
        return
    node: Any = typer.main.get_command(app)
    while hasattr(node, "commands"):
        assert words[0] in node.commands, f"{name}: sluice {line}"
        node = node.commands[words.pop(0)]
    known = {option for parameter in node.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert [word for word in words if word.startswith("--") and word not in known] == []


@cache
def _ray_options(command: str) -> set[str]:
    from ray.scripts.scripts import cli

    return {option for parameter in cli.commands[command].params for option in parameter.opts}


def _ray_calls() -> list[tuple[str, str, str]]:
    return [
        (path.name, found[1], found[2])
        for path in ALL
        for found in _RAY.finditer(path.read_text())
        if not found.string[: found.start()].rpartition("\n")[2].lstrip().startswith("#")
    ]


@pytest.mark.parametrize(("name", "command", "line"), sorted(set(_ray_calls())))
def test_every_option_of_ray_exists(name: str, command: str, line: str) -> None:
    options = {word.partition("=")[0] for word in line.split() if word.startswith("--")}
    assert options <= _ray_options(command), name


def test_start_parameters_of_kuberay_are_options_of_ray() -> None:
    spec = _load("kuberay/raycluster.yaml")["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert {f"--{name}" for name in group["rayStartParams"]} <= _ray_options("start")
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.parametrize("path", [path for path in ALL if path.suffix != ".json"], ids=lambda path: path.name)
def test_every_variable_is_a_configuration_key(path: Path) -> None:
    known = {PREFIX + key.replace(".", "__").upper() for key in known_keys()}
    used = set(re.findall(rf"\b{PREFIX}[A-Z0-9_]+", path.read_text()))
    assert {name for name in used if not name.startswith(PREFIX + "INTERNAL_") and name != PREFIX} <= known


@pytest.mark.parametrize("image", ["Dockerfile", "one/Dockerfile"])
def test_image_copies_what_is_there(image: str) -> None:
    sources = [
        source
        for line in re.findall(r"^COPY (.*)$", (DEPLOY / image).read_text(), re.MULTILINE)
        for source in [word for word in line.split() if not word.startswith("--")][:-1]
    ]
    assert {"actors", "cli", "cluster", "loadgen", "src", "storage", "pyproject.toml", "hatch_build.py"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_one_version_of_ray() -> None:
    (version,) = re.findall(r"^ARG RAY_VERSION=(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert _load("kuberay/raycluster.yaml")["spec"]["rayVersion"] == version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = map(Requirement, project["optional-dependencies"]["ray"])
    assert wanted.specifier.contains(version)
    assert f"ray=={version} \\" in (ROOT / "requirements.lock").read_text().splitlines()
    (python,) = re.findall(r"^ARG PYTHON_VERSION=(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert Requirement(f"x{project['requires-python']}").specifier.contains(f"{python}.0")


def test_values_of_the_chart_fit_their_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = _load("helm/sluice/values.yaml")
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "storage": "10 GB"}, schema)
    used = {name for path in CHART.glob("templates/*") for name in re.findall(r"\.Values\.(\w+)", path.read_text())}
    assert used == set(values)


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_chart_renders_to_one_broker_with_a_disk() -> None:
    command = ["helm", "template", "broker", str(CHART), "--set-string", "settings.log_level=debug"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    (broker,) = pod["containers"]
    variables = {one["name"]: one["value"] for one in broker["env"]}
    assert set(variables) <= {PREFIX + key.replace(".", "__").upper() for key in known_keys()}
    assert variables[f"{PREFIX}LOG_LEVEL"] == "debug"
    assert pod["enableServiceLinks"] is False
    assert made["StatefulSet"]["spec"]["replicas"] == 1
    mounts = {one["name"] for each in (*pod["initContainers"], broker) for one in each["volumeMounts"]}
    claims = {one["metadata"]["name"] for one in made["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert mounts == {one["name"] for one in pod["volumes"]} | claims
    ports = {one["name"] for one in broker["ports"]}
    assert {one["targetPort"] for one in made["Service"]["spec"]["ports"]} == ports
    assert (
        made["Service"]["spec"]["selector"].items()
        <= made["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()
    )


def test_compose_refers_only_to_what_it_defines() -> None:
    compose = _load("compose.yaml")
    services = compose["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        assert set(service.get("secrets", ())) <= set(compose["secrets"]), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nothing may listen to the outside"
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).exists(), source
            elif not source.startswith("/"):
                assert source in compose["volumes"], source
        if "build" in service:
            stage = rf"AS {service['build']['target']}$"
            assert re.search(stage, (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)


def test_the_token_is_a_secret_and_not_in_the_repository() -> None:
    compose = _load("compose.yaml")
    assert compose["services"]["head"]["environment"]["RAY_AUTH_MODE"] == "token"
    done = subprocess.run(["git", "ls-files", "deploy/token"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert _load("kuberay/raycluster.yaml")["spec"]["authOptions"] == {"mode": "token"}


def test_the_cluster_file_is_one_for_ray() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(_load("ray-cluster.yaml")))


def test_the_jobs_of_kuberay_select_the_cluster() -> None:
    cluster = _load("kuberay/raycluster.yaml")
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    for name in ("rayjob-up.yaml", "rayjob-flood.yaml"):
        job = _load(f"kuberay/{name}")
        assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
        assert job["spec"]["clusterSelector"]["ray.io/cluster"] == cluster["metadata"]["name"]
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == volumes
        assert pod["enableServiceLinks"] is False


def test_prometheus_scrapes_the_port_that_nodes_open() -> None:
    config = _load("prometheus.yml")
    (source,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert set(source["names"]) <= set(_load("compose.yaml")["services"])
    for script in ("head.sh", "node.sh"):
        assert f"--metrics-export-port={source['port']}" in (DEPLOY / script).read_text()


def test_the_dashboard_is_whole() -> None:
    board = json.loads((DEPLOY / "grafana" / "sluice.json").read_text())
    (source,) = _load("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    identifiers = [panel["id"] for panel in board["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    places = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert (place["x"], place["y"]) not in places
        places.add((place["x"], place["y"]))
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == source["uid"]
            assert panel["targets"]
