"""A token file is whole, private and never empty."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.cluster.base.tokens import ensure_token
from sluice.cluster.node.environment import prepare
from sluice.storage.errors import Invalid


def test_a_token_is_made_once_and_private(tmp_path: Path) -> None:
    """Several that start at once get the same one; nothing else is left in the folder."""
    path = tmp_path / "data" / "token"
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(ensure_token, [path] * 32))
    assert len(tokens) == 1
    assert len(tokens.pop()) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["token"]


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"a b" * 30, b"\xff" * 64, b"a" * 31])
def test_an_empty_or_short_token_is_refused(tmp_path: Path, content: bytes) -> None:
    """The error says that the file has no token, and what to do. The file is left as it is."""
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(Invalid, match=r"has no valid token.*remove the file"):
        ensure_token(path)
    with pytest.raises(Invalid, match="has no valid token"):
        prepare(path)
    assert path.read_bytes() == content


def test_a_token_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    """A copy of a data folder may have lost the mode."""
    path = tmp_path / "token"
    path.write_text("ab" * 32)
    path.chmod(0o644)
    assert ensure_token(path) == "ab" * 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_in_its_place_is_one_clear_line(tmp_path: Path) -> None:
    """Whatever stands there is named."""
    with pytest.raises(Invalid, match="cannot be used"):
        ensure_token(tmp_path)
