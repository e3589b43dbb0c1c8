"""Keys and certificates that cannot be used are found before anything runs, whichever way a cluster is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.preflight import check_machines
from sluice.cluster.node.folder import STATE_FILE
from tests.cluster.helpers import values
from tests.kit.certificates import Authority


@pytest.fixture
def over(tmp_path: Path) -> dict[str, Any]:
    """Settings that name a certificate which has expired."""
    authority = Authority(tmp_path)
    pair = authority.issue("over", days=-1)
    return {"tls_trust_certs_file": authority.trust, "tls_certificate_file": pair.certificate, "tls_key_file": pair.key}


@pytest.mark.parametrize("up", [launch.up, standalone.up])
def test_nothing_is_started_with_an_old_certificate(over: dict[str, Any], tmp_path: Path, up: Any) -> None:
    with pytest.raises(sluice.Invalid, match="certificate has expired"):
        up(values(tmp_path / "data", **over))
    assert not (tmp_path / "data" / STATE_FILE).exists()


def test_missing_file_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(sluice.Invalid, match="tls_certificate_file and tls_key_file is not set"):
        launch.up(values(tmp_path / "data", tls_trust_certs_file="authority.pem"))
    with pytest.raises(sluice.Invalid, match=r"token\.key cannot be read: No such file"):
        launch.up(values(tmp_path / "data", pulsar_token_key_file="token.key"))


@pytest.mark.parametrize("option", ["--set bind_address=node", "--set metadata=", "--objects "])
def test_several_machines_are_told_what_they_need(tmp_path: Path, option: str) -> None:
    fit = {"bind_address": "node", "metadata": "s3://bucket/metadata", "objects": "s3://bucket/objects"}
    two = ["192.0.2.1", "192.0.2.2"]
    check_machines(values(tmp_path, **fit).cluster_options(), two)
    check_machines(values(tmp_path).cluster_options(), two[:1] * 3)  # several nodes of one machine
    lacking = {name: value for name, value in fit.items() if name not in option}
    with pytest.raises(sluice.Invalid, match=f"has 2 machines.*: add {option}"):
        check_machines(values(tmp_path, **lacking).cluster_options(), two)
