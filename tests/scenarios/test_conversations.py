"""Every script in `text/` is played, and the conversation must be what is written there.

`python -m tests.scenarios` rewrites the files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.stage import TEXTS, Stage


@pytest.mark.parametrize("path", sorted(TEXTS.glob("*.txt")), ids=lambda path: path.stem)
def test_conversation(path: Path) -> None:
    script = path.read_text()
    played = Stage().play(script)
    assert path.read_text() == played


def test_there_are_a_dozen() -> None:
    assert len(list(TEXTS.glob("*.txt"))) >= 12
