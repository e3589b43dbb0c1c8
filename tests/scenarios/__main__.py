"""Rewrites every conversation: `python -m tests.scenarios`. Read the difference before you keep it."""

from __future__ import annotations

from tests.scenarios.stage import TEXTS, Stage

for path in sorted(TEXTS.glob("*.txt")):
    path.write_text(Stage().play(path.read_text()))
    print(path.stem)
