"""The command `sluice`: the door through which most people come in.

Commands are nouns, then verbs (`topics create`, `subscriptions explain`), after Pulsar's tools. Every command that
answers with data takes `--json` and then prints one JSON document (or one a line, where it goes on) on standard output;
all else that is said goes to standard error. The exit code is part of the answer:

    0    fine
    1    a promise of the broker was broken, or Sluice itself failed
    2    the call was wrong or cannot be served: a bad name or option, an unknown topic, no cluster at that address
    130  interrupted (Ctrl-C); everything that the command started was ended

Errors are one line that says what to do. The whole story (a traceback) is shown when SLUICE_DEBUG is set.

Help must be quick, so nothing heavy is imported at the top of these modules: Ray, Spark, Arrow and pydantic are
imported inside the commands that need them. A test keeps it so.
"""

from __future__ import annotations

import signal
import sys

if __name__ == "cli":  # the folder of a clone, found by its own name
    raise ImportError("write `import sluice`: `cli` is a part of the package sluice, not a package of its own")


def main() -> None:
    """The console script: run the command line of this process and exit with its code."""
    from sluice.cluster.base.interrupts import leave_at_once

    early = leave_at_once()
    from sluice.cli.app import app  # noqa: F401 (the longest import)
    from sluice.cli.exit_codes import run
    from sluice.cli.output import prepare_streams
    from sluice.cluster.base.arrow import without_pandas

    prepare_streams()
    without_pandas()
    if early:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))
