"""What an open live page costs: floods with and without somebody who looks, in turn.

    python benchmarks/watching.py [--rounds N] [--messages N]

Each round floods twice, once with nobody, once with the page of `flood --watch` open in a headless Chromium, in an
order that alternates. `act_1` is messages a second from the first send to the last acknowledgement, as fast as it goes,
of a third of the messages; `act_2_p50_ms` the latency of the rest, which go out at half of that. The result is one JSON
object with the rounds, the medians, and the median over the rounds of act 1 watched by act 1 alone. Exit code 2 without
a Chromium.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sluice.cluster.base.arguments import ArgumentParser, count

HERE = Path(__file__).resolve().parent.parent
COMMAND = "import sys; from sluice.cli import main; sys.argv[0] = 'sluice'; main()"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_ADDRESS = re.compile(r"the live page: (http://\S+)")


def flood(messages: int, *, watched: bool) -> dict[str, float]:
    """One flood without faults; with a browser on its page if it is watched."""
    with tempfile.TemporaryDirectory(prefix="sluice-watching-") as name:
        folder = Path(name)
        told = folder / "told.json"
        command = ["flood", "--messages", str(messages), "--restarts", "0", "--seed", "5", "--json", str(told)]
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *command, *(["--watch"] if watched else [])],
            cwd=HERE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        viewer: subprocess.Popen[bytes] | None = None
        try:
            for line in process.stdout:
                found = _ADDRESS.search(line)
                if found and viewer is None:
                    viewer = look(found[1], folder / "profile")
            if process.wait():
                raise SystemExit(f"the flood ended with exit code {process.returncode}")
            if watched and (viewer is None or viewer.poll() is not None):
                raise SystemExit("nobody looked at the page to the end")
        finally:
            process.kill()
            if viewer is not None:
                viewer.kill()
                viewer.wait()
        acts = json.loads(told.read_text())["acts"]
        return {"act_1": acts[0]["end_to_end_msgs_per_s"], "act_2_p50_ms": acts[1]["latency_ms"]["p50"]}


def look(address: str, profile: Path) -> subprocess.Popen[bytes]:
    """A browser that has the page open until it is ended."""
    assert CHROMIUM is not None
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1500,1100")
    return subprocess.Popen(
        [CHROMIUM, *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main() -> None:
    """See the module."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--messages", type=count, default=1_000_000)
    given = parser.parse_args()
    if CHROMIUM is None:
        print("no Chromium is installed", file=sys.stderr)
        sys.exit(2)
    rounds: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(given.rounds):
        for watched in (False, True) if number % 2 == 0 else (True, False):
            rounds[watched].append(flood(given.messages, watched=watched))
            print("watched" if watched else "alone", rounds[watched][-1], file=sys.stderr, flush=True)
    result = {"benchmark": "watching", "messages": given.messages}
    for watched, name in ((False, "alone"), (True, "watched")):
        done = rounds[watched]
        medians = {what: statistics.median(one[what] for one in done) for what in done[0]}
        result |= {name: {"medians": medians, "rounds": done}}
    pairs = zip(rounds[True], rounds[False], strict=True)
    result["act_1_watched_by_alone"] = round(
        statistics.median(one["act_1"] / other["act_1"] for one, other in pairs), 3
    )
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
