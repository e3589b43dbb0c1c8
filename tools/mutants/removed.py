"""Checks taken out at random: how soon does the simulator see it?

The mutants of the catalogue were chosen by hand. Here every `if` of the given folders is a candidate; its condition
is replaced by `False`, as if somebody had deleted the check, and worlds are played in turn until a promise breaks or
the time is over. A check that is not missed is either a short cut, or made good by a second line of defence, or a
place where the simulator is blind; the list is for a person to read.

    python -m tools.mutants.removed --count 20 --draw 1 --minutes 10 actors/key_shared actors/ledger
"""

from __future__ import annotations

import ast
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sluice.cluster.base.arguments import ArgumentParser
from tools.mutants import Mutant
from tools.mutants.__main__ import FOUND, hunt, in_child

WORLDS = {"actors/key_shared": ("broker", "owners"), "actors/ledger": ("ledger", "ledger", "ledger", "broker")}
OTHERS = ("broker", "owners", "dead_letters", "seeks", "skips", "types", "ledger", "bookie")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RemovedCheck(Mutant):
    """One condition that is never true any more. start, end: where its text lies in the source, in bytes."""

    start: int = 0
    end: int = 0

    def apply(self, source: str) -> str:
        """The source with the condition replaced. Raises ValueError if other text is there by now."""
        text = source.encode()
        if text[self.start : self.end].decode() != self.old:
            raise ValueError(f"{self.name}: the source has changed")
        return (text[: self.start] + b"False" + text[self.end :]).decode()


def candidates(folder: str) -> list[RemovedCheck]:
    """Every `if` statement of the modules of a folder, in order of file and line."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_bytes()
        lines = [0]
        for line in source.splitlines(keepends=True):
            lines.append(lines[-1] + len(line))
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.If) and not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                test = node.test
                start = lines[test.lineno - 1] + test.col_offset
                end = lines[(test.end_lineno or 0) - 1] + (test.end_col_offset or 0)
                old = source[start:end].decode()
                name = f"{path.relative_to(ROOT)}:{node.lineno} if {' '.join(old.split())}"
                worlds = WORLDS.get(folder, OTHERS)
                found.append(RemovedCheck(name, module, old, "False", worlds[0], -1, start=start, end=end))
    return found


def plays(worlds: Sequence[str], seconds: float) -> Iterator[tuple[str, int]]:
    """(world, seed) in turn, until the time is over."""
    ends = time.monotonic() + seconds
    seed = 0
    while time.monotonic() < ends:
        for world in worlds:
            yield world, seed
        seed += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = ArgumentParser(prog="removed", description=__doc__)
    parser.add_argument("folders", nargs="*", default=list(WORLDS), help="where checks are taken out")
    parser.add_argument("--count", type=int, default=20, help="how many")
    parser.add_argument("--draw", type=int, default=1, help="the seed of the choice")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each, at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    given = parser.parse_args(arguments)
    every = [(folder, check) for folder in given.folders for check in candidates(folder)]
    chosen = random.Random(given.draw).sample(every, min(given.count, len(every)))

    def one(folder: str, check: RemovedCheck) -> int:
        worlds = WORLDS.get(folder, OTHERS)
        hunting = partial(hunt, check, plays(worlds, given.minutes * 60), clumsy=())
        code = in_child(hunting, 2 * given.minutes * 60 + 60)
        return FOUND if code is None else code  # a seed that never ends was noticed, too

    with ThreadPoolExecutor(given.jobs) as pool:
        codes = list(pool.map(lambda pair: one(*pair), chosen))
    print(f"{codes.count(FOUND)} of {len(codes)} removed checks were noticed; there are {len(every)} checks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
