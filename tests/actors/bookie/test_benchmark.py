"""The benchmark runs, in a small size, against real files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.journal import measure


def test_the_journal_benchmark_runs_in_small(tmp_path: Path) -> None:
    figures = asyncio.run(measure(tmp_path, small=True))
    assert figures["small"] is True
    assert [part["frame_bytes"] for part in figures["throughput"]] == [1024 * 1024, 100_000]
    for part in figures["throughput"]:
        assert part["bookie_mb_per_s"] > 0
        assert part["ratio_one_by_one"] > 0
    assert figures["restart"]["entries"] == 10_000
    for part in ("restart", "single_messages"):
        assert figures[part]["look_ups_missing"] == 0
        assert figures[part]["index_tables"] > 0
    assert list(tmp_path.iterdir()) == [], "it cleans up"
