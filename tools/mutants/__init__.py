"""Small planted defects: the proof that the simulator is not blind.

A mutant is one substitution in the source of one module, made in memory while the module is imported; nothing on the
disk changes. Each has a world and a seed in which a promise breaks because of it, or, where a whole world comes to that
point too seldom, a test. `python -m tools.mutants` plays every mutant at its seed, in a process of its own, and tells
which check found it; a mutant that no check finds means that the tests have gone blind there. `--search A:B` looks for
another seed.

The text that is replaced must occur exactly once, so a mutant whose line was rewritten shows up as stale at once.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Mutant:
    """One planted defect.

    module: where. old, new: what is replaced by what. world, seed: where it is found; with a negative seed `test` is
    what finds it (a test's name for pytest).
    """

    name: str
    module: str
    old: str
    new: str
    world: str
    seed: int = -1
    test: str = ""
    also: tuple[str, str] | None = None
    """A second replacement, where a second line of defence would hide the first."""

    def apply(self, source: str) -> str:
        """The source with the defect. Raises ValueError if the text is not there exactly once."""
        for old, new in ((self.old, self.new), *([self.also] if self.also else [])):
            found = source.count(old)
            if found != 1:
                raise ValueError(f"mutant {self.name}: the text to replace occurs {found} times in {self.module}")
            source = source.replace(old, new)
        return source


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads one module with its defect, never from a byte-code cache and never into one."""

    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """Compile the changed source."""
        source = self.get_data(self.path).decode()
        return compile(self._mutant.apply(source), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's specification with the loader that changes it."""
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=_Loader(fullname, spec.origin, self._mutant)
        )


def plant(mutant: Mutant) -> None:
    """Change what the module will be when it is imported. Raises ValueError if it was imported already."""
    if mutant.module in sys.modules:
        raise ValueError(f"{mutant.module} is imported already; plant the mutant first")
    sys.meta_path.insert(0, _Finder(mutant))
