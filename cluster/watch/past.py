"""Pictures of the past for the live page: the recorded decisions of this machine, made again until a moment.

Only what the decisions know is in such a picture: consumers with their hashes, drains, and what waits. A replay begins
at the last state before the moment, and its rates are those of the second before it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sluice.actors.key_shared import Assignments
from sluice.actors.recorder.flight_file import RecordedCall
from sluice.actors.recorder.replay import DecisionReplay
from sluice.actors.recorder.timeline import explained, in_office
from sluice.cluster.host.recordings import recorded_chunks
from sluice.cluster.watch.story import picture
from sluice.storage.format.hashing import key_bytes, masked_hash

RATE_MS = 1_000
_COUNTED = {"append": "published", "acknowledge": "acknowledged", "acknowledge_soon": "acknowledged"}


def past_picture(data_dir: Path, topic: str, subscription: str, at: int) -> dict[str, Any]:
    """Return a picture as of `at` (ms), in the form of `story.picture`. Raises NotFound, Corrupt."""
    counts: Counter[str] = Counter()

    def count(run: DecisionReplay, call: RecordedCall, answer: Any) -> None:
        if run.at <= at - RATE_MS:
            return
        if isinstance(answer, Assignments):
            counts["delivered"] += sum(len(share.positions) for share in answer.shares)
        elif call.name in _COUNTED:
            counts[_COUNTED[call.name]] += len(call.arguments[0])

    runs = in_office(recorded_chunks(data_dir, topic, subscription), at, count)
    rows = {run.of.partition: _stats(run, at) for run in runs}
    made = picture(at, [rows.get(number) for number in range(max(rows) + 1)], [], None)
    rates = {name: counts[name] * 1000 / RATE_MS for name in ("published", "delivered", "acknowledged")}
    return {**made, "rates": rates, "due": [], "pools": []}


def past_explanation(
    data_dir: Path, topic: str, subscription: str, at: int, *, key: str | None, hash: int | None
) -> list[dict[str, Any]]:
    """Return what the gates said at `at` (ms) of a key, or of a hash as the selector sees it, a row a partition.

    Raises NotFound, Corrupt.
    """
    runs = in_office(recorded_chunks(data_dir, topic, subscription), at)
    if key is not None:
        return [explained(runs, int(masked_hash(key_bytes(key))), at)]
    return [
        {"partition": run.of.partition, **run.decisions.explain(hash=hash, now=at)}
        for run in runs
        if run.decisions is not None
    ]


def _stats(run: DecisionReplay, at: int) -> dict[str, Any]:
    """The statistics of a dispatcher in the form of its live ones, as far as its decisions know them."""
    assert run.decisions is not None
    stats = run.decisions.stats(at)
    sentinel = stats["sentinel"]
    return {
        **stats,
        "epoch": run.of.epoch,
        "paused": False,
        "awaitedConsumers": 0,
        "msgBacklog": stats["unackedMessages"] + stats["msgInReplay"] + stats["msgDelayedRedelivery"],
        "hashesMovedTotal": run.decisions.history.hashes_moved,
        "orderCheckedTotal": sentinel["checkedHolder"] + sentinel["checkedOrder"],
        "orderViolationsTotal": sentinel["violationsHolder"] + sentinel["violationsOrder"],
    }
