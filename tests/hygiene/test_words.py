"""Words that no file may contain: paths of one machine, addresses of package registries, secrets."""

from __future__ import annotations

import re

from tests.hygiene.source import ROOT, tracked

_BINARY = (".png", ".incident", ".jpg", ".gif", ".ico", ".parquet", ".gz", ".zip", ".bin", ".arrow")

# Built from pieces, so that this file does not contain what it looks for.
_MACHINE_PATHS = re.compile("|".join(rf"(?<![\w.]){folder}/[a-z]" for folder in ("/home", "/root", "/Users", "/work")))
_REGISTRIES = re.compile(
    "|".join(("py" + "pi" + r"\.org", "pythonhosted" + r"\.org", "npm" + r"js\.(?:com|org)", "artifact" + "ory"))
)
_SECRETS = re.compile(
    "|".join(("AKIA" + r"[0-9A-Z]{16}", "-----BEGIN" + r" [A-Z ]*PRIVATE KEY", "gh" + r"p_[0-9A-Za-z]{36}"))
)

HOME_IN_IMAGE = ("deploy/",)
"""Folders whose files speak of paths inside a container image, which are the same everywhere."""


def _found(pattern: re.Pattern[str], excused: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{name}:{number} {found[0]}"
        for name in tracked()
        if not name.endswith(_BINARY) and not (excused and name.startswith(excused))
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if (found := pattern.search(line))
    ]


def test_no_path_of_one_machine() -> None:
    assert _found(_MACHINE_PATHS, HOME_IN_IMAGE) == []


def test_no_address_of_a_registry() -> None:
    assert _found(_REGISTRIES) == []


def test_no_secret() -> None:
    assert _found(_SECRETS) == []


def test_no_lock_file_with_addresses() -> None:
    assert "uv.lock" not in tracked()


def test_text_ends_with_one_newline() -> None:
    ragged = []
    for name in tracked():
        if name.endswith(_BINARY):
            continue
        data = (ROOT / name).read_bytes()
        if data and (not data.endswith(b"\n") or b"\r" in data):
            ragged.append(name)
    assert ragged == []
