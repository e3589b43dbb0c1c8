"""Arrow without pandas, for processes of Sluice's own.

At the first conversion of an array pyarrow imports pandas if it is installed, to see whether it was given one of its
objects: nine tenths of a second of processor time in each process that touches a column, and a flood has a dozen. No
process of ours holds such objects, so for them there is no pandas; the one that reads a user's input with Spark is an
exception. A user's own process is left as it is: what it receives may be wanted as a frame.

Nothing heavy is imported here: the command line begins with it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Absent(MetaPathFinder):
    """Says that there is no pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)
        return None


def without_pandas() -> None:
    """Let there be no pandas in this process, unless it is imported already. Safe to repeat."""
    if "pandas" not in sys.modules and not any(isinstance(finder, _Absent) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Absent())


def with_pandas() -> None:
    """Let there be pandas again. To be called before anything is converted: pyarrow looks once."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Absent)]
