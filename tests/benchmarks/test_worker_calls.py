"""The judge of handlers' records counts each kind of wrong call. A death explains repeated calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks._worker_calls import CALL, CallRecorder, judged, nodes_of, results_judged, written

KEYS, MESSAGES = 2, 6
FINE = [(0, 0, 10, 11), (1, 0, 10, 11), (0, 1, 12, 13), (1, 1, 12, 13), (0, 2, 14, 15), (1, 2, 14, 15)]
"""(key, number, begin, end)."""
WRONG = ("again_unexplained", "lost", "out_of_order", "beside_another", "without_end")

Row = tuple[int, int, int, int]


def told(folder: Path, by_process: dict[int, list[Row]], deaths: dict[int, int]) -> dict[str, int]:
    """Write down such calls, one without an end (0) only once, and return the verdict on them."""
    for pid, rows in by_process.items():
        lines = [(key, number, begin, at) for key, number, begin, end in rows for at in dict.fromkeys((0, end))]
        (folder / f"{pid}-1-here").write_bytes(np.array(lines, CALL).tobytes())
    return judged(written(folder, deaths), deaths, KEYS, MESSAGES)


def wrong(result: dict[str, int]) -> dict[str, int]:
    return {name: result[name] for name in WRONG if result[name]}


def test_calls_in_order_are_fine(tmp_path: Path) -> None:
    result = told(tmp_path, {7: FINE[:3], 8: FINE[3:]}, {})
    assert (result["calls"], result["again"], wrong(result)) == (6, 0, {})


def test_calls_of_a_dead_worker_may_come_again(tmp_path: Path) -> None:
    again = [(0, 1, 20, 21), (0, 2, 22, 23)]
    result = told(tmp_path, {7: [*FINE[:2], FINE[3], FINE[5], (0, 1, 12, 13), (0, 2, 14, 0)], 8: again}, {7: 18})
    assert (result["calls"], result["again"], wrong(result)) == (8, 2, {})


@pytest.mark.parametrize(
    ("calls", "deaths", "found"),
    [
        ({7: FINE[:5]}, {}, {"lost": 1}),
        ({7: [*FINE[:5], (1, 2, 14, 0)]}, {}, {"without_end": 1}),
        ({7: [*FINE[:4], (0, 2, 12, 15), FINE[5]]}, {}, {"beside_another": 1}),
        ({7: FINE, 8: [(0, 2, 20, 21)]}, {}, {"again_unexplained": 1}),
        ({7: FINE, 8: [(0, 2, 20, 21)]}, {7: 21}, {"again_unexplained": 1}),
        ({7: [(0, 0, 10, 11), (0, 2, 12, 13), (0, 1, 14, 15), *FINE[1::2]]}, {}, {"out_of_order": 1}),
        ({7: [(0, 1, 9, 10), *FINE[:2], *FINE[3:]]}, {}, {"out_of_order": 2}),
    ],
)
def test_wrong_calls_are_counted(
    tmp_path: Path, calls: dict[int, list[Row]], deaths: dict[int, int], found: dict[str, int]
) -> None:
    assert wrong(told(tmp_path, calls, deaths)) == found


def test_handlers_write_what_is_read(tmp_path: Path) -> None:
    recorder = CallRecorder(str(tmp_path), "node")
    recorder.end(recorder.begin(0, 0))
    recorder.begin(1, 0)
    calls = written(tmp_path, {})
    assert calls["key"].tolist() == [0, 1]
    assert calls["end"][0] >= calls["begin"][0]
    assert calls["end"][1] > calls["begin"][1] + 10**15
    assert nodes_of(tmp_path) == {"node"}


def test_results_are_wanted_once_and_in_order() -> None:
    right = [np.array([0, 2, 4]), np.array([1, 3, 5])]
    assert set(list(results_judged(right, KEYS, MESSAGES).values())[1:]) == {0}
    bad = results_judged([np.array([0, 4, 2, 2]), np.array([1, 3])], KEYS, MESSAGES)
    assert bad == {"results": 6, "results_twice": 1, "results_missing": 1, "results_out_of_order": 2}
