"""The table and the picture of latencies say what was measured."""

from __future__ import annotations

import xml.etree.ElementTree as Tree
from typing import Any

from benchmarks._latency_picture import picture, table

SVG = "{http://www.w3.org/2000/svg}"


def measured() -> dict[str, Any]:
    """Two loads, the second much slower."""
    loads = [
        {
            "rate": rate,
            "messages": 100,
            "confirmed_ms": {"p50": 3.2 * slower, "p99": 9.1 * slower, "p99.9": 12.5 * slower},
            "delivered_ms": {"p50": 4.3 * slower, "p99": 11.0 * slower, "p99.9": 14.9 * slower},
            "cpu_us_per_message": 5060.0 / slower,
        }
        for rate, slower in ((100, 1), (90_000, 20))
    ]
    return {"benchmark": "latency", "partitions": 1, "peak_msgs_per_s": 900_000, "loads": loads}


def test_the_table_has_a_line_for_each_load() -> None:
    head, rule, first, second = table(measured()).splitlines()
    assert head.count("|") == rule.count("|") == first.count("|")
    assert first == "| 100/s | 3.2 / 9.1 / 12.5 ms | 4.3 / 11.0 / 14.9 ms | 5,060 µs |"
    assert second.startswith("| 90,000/s (10 % of the peak) | 64.0 / 182 / 250 ms | 86.0 / 220 / 298 ms |")


def test_the_picture_shows_what_is_slower_further_up() -> None:
    drawn = Tree.fromstring(picture(measured()))
    dots = [dot for dot in drawn.iter(f"{SVG}circle") if dot.get("cy") != "22"]
    fast, slow = [float(dot.get("cy", "")) for dot in dots[:2]], [float(dot.get("cy", "")) for dot in dots[2:]]
    assert len(fast) == len(slow) == 2
    assert max(slow) < min(fast)
    assert all(0 < y < float(drawn.get("height", "")) for y in [*fast, *slow])
    told = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"3.2", "9.1", "64.0", "182", "100/s", "90,000/s (10 % of the peak)"} <= set(told)


def test_a_single_load_of_one_speed_can_be_drawn() -> None:
    result = measured()
    same = {"p50": 1.0, "p99": 1.0, "p99.9": 1.0}
    result["loads"] = [{**result["loads"][0], "confirmed_ms": same, "delivered_ms": same}]
    del result["peak_msgs_per_s"]
    assert Tree.fromstring(picture(result)).tag == f"{SVG}svg"
