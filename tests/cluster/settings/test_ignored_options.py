"""Options that a second `up` cannot change are named."""

from __future__ import annotations

import json
from pathlib import Path

from sluice.cluster.settings.ignored_options import as_stored, kept
from sluice.cluster.settings.options import ClusterOptions


def test_only_more_bookies_and_more_nodes_have_an_effect(tmp_path: Path) -> None:
    """Everything else that differs is named with what the cluster has; the state file is JSON."""
    first = ClusterOptions(tmp_path, bookies=3, brokers=2, metadata="s3://a/b")
    stored = json.loads(json.dumps(as_stored(first)))
    assert kept(stored, first, (1, 1)) == {}
    assert kept(stored, ClusterOptions(tmp_path, bookies=5, brokers=2, metadata="s3://a/b"), (1, 3)) == {}
    changed = ClusterOptions(tmp_path, bookies=2, brokers=7, log_level="info", bookie_settings={"group_bytes": 1})
    assert kept(stored, changed, (3, 1)) == {
        "bookies": [3, 2],
        "brokers": [2, 7],
        "metadata": ["s3://a/b", ""],
        "log_level": ["warning", "info"],
        "bookie_settings": [{}, {"group_bytes": 1}],
        "nodes": [3, 1],
    }


def test_a_start_that_noted_nothing_is_passed_over(tmp_path: Path) -> None:
    """A state file of an earlier version."""
    assert kept({}, ClusterOptions(tmp_path), (1, 1)) == {}
