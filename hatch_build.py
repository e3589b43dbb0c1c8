"""Writes the commit into what is built, for `sluice --version`: beside the package's own files as `commit.txt`.

A source archive has it already, so a wheel of it says the same. The same commit gives the same bytes.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """The build hook that adds `commit.txt`, unless the package is installed from its own checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or (root / "src" / "sluice" / "commit.txt").exists():
            return
        name = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        found = subprocess.run(name, cwd=root, capture_output=True, text=True, check=False)
        folder = "sluice" if self.target_name == "wheel" else "src/sluice"
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
            file.write(found.stdout or "unknown\n")
        build_data["force_include"][file.name] = f"{folder}/commit.txt"
        self._written = Path(file.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_written"):
            self._written.unlink(missing_ok=True)
