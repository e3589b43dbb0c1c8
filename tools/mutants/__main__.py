"""Plays every mutant at its seed, or its test, and tells what found it. Exit code 1 if one was not found, 2 if stale.

A change of the broker changes what a seed does. A mutant that is not found at its recorded seed any more is looked for
in the first seeds of its world; the seed that is found there should be recorded.

Each mutant runs in a forked child: the parent has imported the big libraries and none of the project's own modules,
so a child costs a fraction of a second. A child that takes longer than its patience is ended: a test that hangs has
found its mutant, as it has when it fails; a search for seeds has not.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from sluice.cluster.base.arguments import ArgumentParser
from tools.mutants import Mutant, plant
from tools.mutants.catalogue import GROUPS, MUTANTS

# Imported before the fork, to be shared; none of them imports the project's code.
for _library in ("numpy", "pyarrow.compute", "pyarrow.ipc", "msgspec", "msgpack", "pyroaring", "sortedcontainers"):
    importlib.import_module(_library)

FOUND, MISSED, STALE = 0, 1, 2
ELSEWHERE = {
    "broker": 600, "ledger": 3_000, "bookie": 3_000, "owners": 300, "dead_letters": 600, "delays": 300,
    "seeks": 1_500, "skips": 600, "restored": 300, "redeliveries": 300, "placement": 600, "restless": 300,
    "cancels": 300, "nack_order": 150, "parking": 150, "gateway": 300, "grace": 150, "relay": 300, "sharing": 300,
    "history": 300,
    "compaction": 300,
    "erasing": 60,
    "workers": 300, "machines": 300, "candidates": 300, "chunks": 60,
}  # fmt: skip
"""So many seeds of a world are looked through when the recorded one is clean: a minute or two."""
CLUMSY = ("NameError", "ImportError", "AttributeError", "SyntaxError")


def hunt(mutant: Mutant, plays: Iterable[tuple[str, int]], clumsy: Sequence[str] = CLUMSY) -> int:
    """Play (world, seed) one after another with a mutant planted, in this process; prints the finding.

    clumsy: errors that say that the mutant is no longer a sensible one, and not that a promise broke.
    """
    try:
        plant(mutant)
        runner = importlib.import_module("tests.sim.runner")
        worlds = importlib.import_module("tests.sim.worlds")
    except ValueError as error:
        print(f"STALE   {mutant.name}: {error}", flush=True)
        return STALE
    began = time.monotonic()
    for world, seed in plays:
        outcome = runner.run_seed(worlds.WORLDS[world], seed)
        if outcome.problem.startswith(tuple(clumsy)):
            print(f"STALE   {mutant.name}: it breaks the code, not a promise: {outcome.problem[:120]}", flush=True)
            return STALE
        if not outcome.clean:
            spent = time.monotonic() - began
            stale = f" (recorded {mutant.seed}: record this one)" if mutant.seed not in (-1, seed) else ""
            where = f"{world} {seed}{stale}, {spent:.1f} s"
            print(f"found   {mutant.name}: {where}: {outcome.problem[:120]}", flush=True)
            return FOUND
    print(f"MISSED  {mutant.name}: {time.monotonic() - began:.1f} s", flush=True)
    return MISSED


def examine(mutant: Mutant) -> int:
    """Run the mutant's test with the mutant planted, in this process; prints the finding."""
    began = time.monotonic()
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        plant(mutant)
        code = importlib.import_module("pytest").main(["-qx", "-p", "no:cacheprovider", "-p", "no:xdist", mutant.test])
    found, word = {0: (MISSED, "MISSED "), 1: (FOUND, "found  ")}.get(code, (STALE, "STALE  "))
    why = f": pytest ended with {code!r}: {told.getvalue()[-1500:]}" if found == STALE else ""
    print(f"{word} {mutant.name}: {mutant.test}, {time.monotonic() - began:.1f} s{why}", flush=True)
    return found


def in_child(work: Callable[[], int], patience_s: float) -> int | None:
    """Do work in a forked child, so that what it imports is gone afterwards; returns its exit code.

    A child that is not done after patience_s is killed: None.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = STALE
        try:
            code = work()
        except BaseException:  # a child never returns; what ends it is told
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(code)
    done = select.poll()
    watched = os.pidfd_open(child)
    done.register(watched, select.POLLIN)
    in_time = bool(done.poll(patience_s * 1_000))
    if not in_time:
        os.kill(child, signal.SIGKILL)
    os.close(watched)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if in_time else None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="which mutants; all if none is named")
    parser.add_argument("--group", choices=GROUPS, help="the mutants of one part of the broker")
    parser.add_argument("--patience", type=float, default=600, help="seconds for one mutant (600)")
    parser.add_argument("--search", help="seeds A:B to look through, instead of the recorded seed")
    given = parser.parse_args(arguments)
    among = GROUPS[given.group] if given.group else MUTANTS
    chosen = [mutant for mutant in among if not given.names or mutant.name in given.names]
    codes = []
    for mutant in chosen:
        seeds: Iterable[int] = (mutant.seed, *range(ELSEWHERE[mutant.world]))
        if given.search:
            first, _, last = given.search.partition(":")
            seeds = range(int(first), int(last))
        by_test = mutant.test and not given.search
        work = partial(examine, mutant) if by_test else partial(hunt, mutant, ((mutant.world, at) for at in seeds))
        code = in_child(work, given.patience)
        if code is None:
            code, word = (FOUND, "found  ") if by_test else (MISSED, "MISSED ")
            print(
                f"{word} {mutant.name}: {mutant.test or mutant.world} not done after {given.patience:.0f} s", flush=True
            )
        if code == MISSED and not given.search and not mutant.test:
            print("        look for a seed with --search and record it; if there is none, the simulator is blind there")
        codes.append(code)
    print(f"{codes.count(FOUND)} of {len(codes)} mutants found, {codes.count(STALE)} stale")
    return max(codes, default=STALE)


if __name__ == "__main__":
    sys.exit(main())
