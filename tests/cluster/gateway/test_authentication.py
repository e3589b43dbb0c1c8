"""The identity of a client by the settings, and the settings that go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.actors.policies.authorization import Authorization
from sluice.cluster.gateway.authentication import authenticate_by, authorization_of
from sluice.cluster.gateway.tokens import Rejected, make_key, make_token
from sluice.storage.errors import Invalid


def test_roles_are_named_with_commas() -> None:
    settings = {"authorization_enabled": True, "pulsar_token_key_file": "k", "super_user_roles": " a, b,,c "}
    assert authorization_of(settings) == Authorization(("a", "b", "c"), ())
    assert authorization_of({"pulsar_token_key_file": "k"}) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"authorization_enabled": True}, "authorization_enabled needs to know clients: set pulsar_token_key_file"),
        ({"super_user_roles": "root"}, "everybody may do everything, although super_user_roles is set"),
        ({"viewer_roles": "watcher"}, "everybody may do everything, although viewer_roles is set"),
        ({"pulsar_anonymous_role": "guest"}, "pulsar_anonymous_role lets everybody in: set authorization_enabled"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        authorization_of(settings)


async def test_client_without_credentials_gets_the_anonymous_role(tmp_path: Path) -> None:
    make_key(file := tmp_path / "token.key")
    settings = {"pulsar_token_key_file": str(file), "pulsar_anonymous_role": "guest"}
    known = authenticate_by(settings)
    assert known is not None
    for method in ("", "none", "unknown"):
        assert (await known(method, b"")).roles == ("guest",)
    assert (await known("token", make_token(file, {"sub": "till"}).encode())).roles == ("till",)
    for wrong in (b"", b"x", make_token(file, {"sub": "till"}, -60).encode()):
        with pytest.raises(Rejected):
            await known("token", wrong)
    strict = authenticate_by({"pulsar_token_key_file": str(file)})
    assert strict is not None
    with pytest.raises(Rejected, match="this broker needs a token"):
        await strict("", b"")
