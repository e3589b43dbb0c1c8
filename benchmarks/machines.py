"""Measure faults of machines: chaos on three machines with networks of their own, TLS between them, a store beside.

    .venv/bin/python benchmarks/machines.py [--minutes N] [--every 30s] [--faults A,B] [--rate N] [--seed N] [--small]
        [--delayed FRACTION]
    .venv/bin/python benchmarks/machines.py --scenes isolate-head,isolate-controller,isolate-other,kill-head

The machines are namespaces of this one (`tests/kit/machines.py`), prepared as `deploy/README.md` says, and
`./sluice chaos` is typed on the second one. So a run needs the rights of an administrator, and all machines share the
processors of this one. Prints one JSON object: the verdict, and of each kind of fault how many pauses there were and
how long they took: of each fault and partition the longest time in which nothing was delivered, until the next one, its
heal included. `restarts` is how often processes were replaced, by kind.

With `--scenes` one machine is cut off for a while or killed, under 200 messages/s, and how long keys waited is told
for the cut and for the heal (tests/kit/machine_scenes.py).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from sluice.cluster.base.arguments import ArgumentParser, amount, count
from sluice.loadgen.base.kinds import CUT, CUT_ONE_WAY, ISOLATE, KILL_HEAD
from tests.kit.machine_scenes import play
from tests.kit.machines import missing
from tests.kit.site import REDIS, Site, answered, prepared, typed


def measure(site: Site, arguments: argparse.Namespace) -> dict[str, Any]:
    (up, status) = site.page.lines("Sluice")
    typed(site.first, f"{up} --set brokers=3")
    if arguments.scenes:
        played: dict[str, Any] = {}
        for scene in arguments.scenes.split(","):
            played[scene] = play(site, scene)
            print(scene, json.dumps(played[scene]), file=sys.stderr, flush=True)
        return played
    where = site.others[0]
    chaos = f"./sluice chaos --minutes {arguments.minutes} --every {arguments.every} --faults {arguments.faults}"
    chaos += f" --rate {arguments.rate} --seed {arguments.seed} --keys 300 --address {site.address} --json report.json"
    if arguments.delayed:
        chaos += f" --delayed {arguments.delayed}"
    where.variables.update(site.stores)
    code, output, errors = where.try_to_run(["bash", "-c", f"exec {chaos}"], 300 + arguments.minutes * 120)
    print(output[-6_000:], errors[-2_000:], file=sys.stderr)
    report = json.loads((where.folder / "report.json").read_text())
    rows = answered(typed(where, f"{status} --json"))["actors"]
    restarts: Counter[str] = Counter()
    for row in rows:
        restarts[row["kind"]] += int(row["restarts"])
    return {
        "command": chaos,
        "code": code,
        "verdict": report["verdict"],
        "reasons": report["reasons"],
        "messages": report["messages"],
        "information": report["information"],
        "publish_latency_ms": report["publish_latency_ms"],
        "pauses_ms": report["recovery"]["pauses_ms"],
        "faults": [
            {name: fault[name] for name in ("kind", "target", "at_s", "lasts_s", "ahead_ms", "effect") if name in fault}
            for fault in report["faults"]
        ],
        "passed_over": report["recovery"]["passed_over"],
        "restarts": dict(restarts),
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=amount, default=3.0)
    parser.add_argument("--every", default="40s")
    parser.add_argument("--faults", default=",".join((ISOLATE, CUT, CUT_ONE_WAY)))
    parser.add_argument("--rate", type=count, default=300)
    parser.add_argument("--seed", type=count, default=1)
    parser.add_argument("--delayed", type=amount, default=0.0)
    parser.add_argument("--scenes", default="")
    parser.add_argument("--small", action="store_true", help="a minute with one fault, to see that it works")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.minutes, arguments.every, arguments.faults = 1.0, "20s", ISOLATE
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    redis = not arguments.scenes and shutil.which(REDIS) is not None
    if KILL_HEAD in arguments.faults.split(",") and not redis:
        raise SystemExit(f"{KILL_HEAD} needs `{REDIS}` on the path: without a Redis a head that was lost is lost")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, prepared(Path(folder), redis=redis) as site:
        print(json.dumps(measure(site, arguments), indent=2))


if __name__ == "__main__":
    main()
