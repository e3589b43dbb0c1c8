"""Tenants, namespaces, permissions and schemas by commands, at a cluster in this process that enforces rights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.exit_codes import run
from sluice.cluster.admin.policy_words import POLICIES
from sluice.cluster.gateway.tokens import make_key, make_token
from sluice.cluster.http.admin_client import AdminClient
from sluice.cluster.launch.embedded import WITH_ADMIN, running
from sluice.cluster.settings.options import ClusterOptions

Outcome = tuple[int, str, str]
WIDTH = 80

VALUES = {
    "schema-compatibility": "BACKWARD",
    "schema-enforced": "true",
    "deduplication": "true",
    "retention": "7d 10GB",
    "message-ttl": "90m",
    "backlog-quota": "2GB producer_exception",
    "backlog-age": "1d consumer_backlog_eviction",
    "publish-rate": "1000 1MB",
    "dispatch-rate": "500 unlimited",
    "max-producers-per-topic": "3",
    "max-consumers-per-topic": "4",
    "max-consumers-per-subscription": "5",
    "offload-threshold": "512MB",
    "offload-age": "6h",
    "offload-deletion-lag": "1500ms",
    "compaction-threshold": "100KB",
}
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data, key = tmp_path_factory.mktemp("teams"), tmp_path_factory.mktemp("key") / "token.key"
    make_key(key)
    (key.parent / "chief").write_text(make_token(key, {"sub": "red-chief"}, None))
    wanted = ClusterOptions(
        data_dir=data,
        pulsar_port=0,
        pulsar_web_port=0,
        pulsar_token_key_file=str(key),
        authorization_enabled=True,
        super_user_roles="root",
    )
    with running(wanted, boot=WITH_ADMIN):
        (data / "chief").write_text((key.parent / "chief").read_text())
        yield data


@pytest.fixture(scope="module")
def space(folder: Path) -> str:
    """A namespace that tests share: they leave it as it was."""
    for words in (("tenants", "create", "shared"), ("namespaces", "create", "shared/work")):
        assert run([*words, "--data-dir", str(folder)]) == 0
    return "shared/work"


@pytest.fixture
def sluice(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run one command line at that cluster: exit code, standard output, standard error."""

    def call(*arguments: str) -> Outcome:
        code = run([*arguments, "--data-dir", str(folder)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def red(sluice: Callable[..., Outcome]) -> Iterator[str]:
    """Yield a namespace of a new tenant, which go afterwards."""
    assert sluice("tenants", "create", "red", "--admin-role", "red-chief")[0] == 0
    assert sluice("namespaces", "create", "red/work")[0] == 0
    yield "red/work"
    assert sluice("namespaces", "delete", "red/work") == (0, "", "sluice: deleted namespace red/work\n")
    assert sluice("tenants", "delete", "red") == (0, "", "sluice: deleted tenant red\n")


def told(outcome: Outcome) -> Any:
    assert outcome[0] == 0, outcome
    return json.loads(outcome[1])


def test_a_created_tenant_is_listed(sluice: Callable[..., Outcome], red: str) -> None:
    row = {"tenant": "red", "adminRoles": ["red-chief"], "allowedClusters": ["sluice"]}
    assert row in told(sluice("tenants", "list", "--json"))
    assert told(sluice("tenants", "get", "red", "--json")) == [{**row, "namespaces": [red]}]
    assert "red-chief" in sluice("tenants", "list")[1]
    assert told(sluice("namespaces", "list", "red", "--json")) == [{"namespace": red, "topics": 0}]
    sluice("tenants", "set", "red", "--admin-role", "b", "--admin-role", "a")
    assert told(sluice("tenants", "get", "red", "--json"))[0]["adminRoles"] == ["a", "b"]


def test_a_tenant_with_namespaces_stays(sluice: Callable[..., Outcome], red: str) -> None:
    code, _, err = sluice("tenants", "delete", "red")
    assert (code, err.count("\n")) == (2, 1), err
    assert sluice("tenants", "delete", "red", "--dry-run")[0] == 0
    assert sluice("tenants", "get", "red")[0] == 0


def test_every_policy_has_a_value_here() -> None:
    assert VALUES.keys() == POLICIES.keys()


@pytest.mark.parametrize(("policy", "value"), VALUES.items())
def test_a_policy_is_shown_as_it_was_set(sluice: Callable[..., Outcome], space: str, policy: str, value: str) -> None:
    before = sluice("namespaces", "get", space, policy)
    code, _, err = sluice("namespaces", "set", space, policy, *value.split())
    assert code == 0, err
    table = sluice("namespaces", "get", space, policy)[1]
    assert value in table
    assert value not in before[1]
    assert told(sluice("namespaces", "get", space, policy, "--json"))[policy] is not None
    assert sluice("namespaces", "unset", space, policy)[0] == 0
    assert sluice("namespaces", "get", space, policy) == before


def test_a_table_of_policies_fits_a_terminal(
    sluice: Callable[..., Outcome], red: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for policy, value in VALUES.items():
        assert sluice("namespaces", "set", red, policy, *value.split())[0] == 0
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out = re.sub(r"\x1b\[[0-9;]*m", "", sluice("namespaces", "get", red)[1])
    assert max(map(len, out.splitlines())) <= WIDTH
    assert [each for each in VALUES if each not in out] == []
    assert [value for value in VALUES.values() if value not in out] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "shared/work", "retention", "7d"), "retention is set with TIME SIZE"),
        (("set", "shared/work", "retention", "90s", "1GB"), "90s is not a whole number of 1m"),
        (("set", "shared/work", "message-ttl", "soon"), "'soon' is not a duration"),
        (("set", "shared/work", "deduplication", "yes"), "neither true nor false"),
        (("set", "shared/work", "colour", "red"), "there is no policy 'colour'; there are: schema-compatibility"),
        (("set", "shared/work", "schema-compatibility", "sometimes"), "there is no strategy 'SOMETIMES'"),
        (("get", "shared/play"), "shared/play"),
        (("create", "green/work"), "Tenant green does not exist"),
        (("create", "green"), "namespace name 'green' is not allowed"),
    ],
)
def test_a_wrong_call_is_one_line(
    sluice: Callable[..., Outcome], space: str, words: tuple[str, ...], said: str
) -> None:
    code, out, err = sluice("namespaces", *words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err


def test_a_grant_is_listed_until_it_is_revoked(sluice: Callable[..., Outcome], red: str) -> None:
    assert sluice("permissions", "grant", red, "till", "produce", "consume")[0] == 0
    assert sluice("permissions", "grant", f"{red}/orders", "guest", "consume")[0] == 0
    assert sluice("permissions", "grant-subscription", red, "billing", "till")[0] == 0
    till = {"role": "till", "actions": ["consume", "produce"]}
    only = {"role": "till", "actions": ["consume"], "subscription": "billing"}
    assert told(sluice("permissions", "list", red, "--json")) == [till, only]
    guest = {"role": "guest", "actions": ["consume"]}
    assert told(sluice("permissions", "list", f"persistent://{red}/orders", "--json")) == [till, guest]
    assert "consume, produce" in sluice("permissions", "list", red)[1]
    assert sluice("permissions", "revoke", f"{red}/orders", "guest")[0] == 0
    assert sluice("permissions", "revoke-subscription", red, "billing", "till")[0] == 0
    assert sluice("permissions", "revoke", red, "till")[0] == 0
    assert told(sluice("permissions", "list", red, "--json")) == []


def test_a_role_asks_with_its_own_rights(sluice: Callable[..., Outcome], red: str, folder: Path) -> None:
    chief = ("--role-token", (folder / "chief").read_text())
    assert sluice("permissions", "grant", red, "till", "produce", *chief)[0] == 0
    code, _, err = sluice("tenants", "create", "blue", *chief)
    assert (code, err.count("\n")) == (2, 1), err
    assert "blue" not in sluice("tenants", "list", "--json")[1]
    assert sluice("tenants", "list", "--role-token", "made-up")[0] == 2


def test_a_schema_that_lost_a_field_is_refused(sluice: Callable[..., Outcome], folder: Path, tmp_path: Path) -> None:
    first, wider, narrower = (tmp_path / name for name in ("first.avsc", "wider.avsc", "narrower.json"))
    amount = ', {"name": "amount", "type": "int"}'
    first.write_text(ORDER + amount + "]}")
    wider.write_text(ORDER + amount + ', {"name": "note", "type": "string", "default": ""}]}')
    narrower.write_text(json.dumps({"type": "AVRO", "schema": ORDER + "]}", "properties": {}}))
    AdminClient(folder).ask("PUT", "/admin/v2/persistent/public/default/orders")
    assert sluice("schemas", "upload", "orders", str(first))[2] == "sluice: topic orders has this schema as version 0\n"
    assert sluice("schemas", "compatibility", "orders", str(wider))[0] == 0
    for verb in ("compatibility", "upload"):
        code, out, err = sluice("schemas", verb, "orders", str(narrower))
        assert (code, out, err.count("\n")) == (2, "", 1), err
    refused = sluice("schemas", "compatibility", "orders", str(narrower), "--json")
    assert (refused[0], json.loads(refused[1])["compatibility"]) == (2, False)
    assert sluice("schemas", "upload", "orders", str(wider))[0] == 0
    assert [row["version"] for row in told(sluice("schemas", "list", "orders", "--json"))] == [0, 1]
    assert "customer, amount, note" in sluice("schemas", "list", "orders")[1]
    assert "note" not in sluice("schemas", "get", "orders", "--version", "0")[1]
    assert json.loads(told(sluice("schemas", "get", "orders", "--json"))["data"])["fields"][2]["name"] == "note"
    assert sluice("schemas", "delete", "orders")[0] == 0
    assert sluice("schemas", "get", "orders")[0] == 2
