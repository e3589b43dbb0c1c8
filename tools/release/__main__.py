"""Cuts a release: `python -m tools.release 1.2.0 --dry-run`, then without --dry-run, then push what it names."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from sluice.cluster.base.arguments import ArgumentParser
from sluice.storage.errors import SluiceError
from tools.release.cut import Release, check_wanted

ROOT = Path(__file__).resolve().parents[2]
NOBODY = {f"GIT_{who}_{what}": "dry-run" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def main(words: list[str]) -> int:
    """Make a release, and hand it over to the checkout unless it is a dry run. Return 2 for what a person must mend."""
    parser = ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("version", help="such as 1.2.0; the tag is v1.2.0")
    parser.add_argument("--dry-run", action="store_true", help="make everything from the last commit, and keep nothing")
    asked = parser.parse_args(words)
    try:
        check_wanted(ROOT, asked.version, clean=not asked.dry_run)
        if asked.dry_run:
            os.environ.update(NOBODY)
        with tempfile.TemporaryDirectory(prefix="sluice-release-") as folder:
            release = Release(ROOT, Path(folder), asked.version, lambda line: print(line, flush=True))
            release.make()
            if asked.dry_run:
                print(f"a dry run: {len(release.files())} files were made and removed, and nothing has changed")
                return 0
            release.hand_over()
    except SluiceError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    print(f"dist has the files. Publish them, and: git push origin HEAD v{asked.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
