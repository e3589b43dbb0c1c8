"""The audit's files: what stands in them, that they are bounded, and how they are read again."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from sluice.actors.policies.audited import DONE, REFUSED, Audited
from sluice.cluster.base import audit
from sluice.cluster.base.audit import KEPT, MOST_REFUSALS, MOST_TEXT, AuditLog, AuditTail, audited_lines


def entry(number: int, outcome: str = DONE, role: str = "till") -> Audited:
    return Audited(role, "127.0.0.1:1", f"seek {number}", "orders", "billing", outcome, "why" * (outcome == REFUSED))


def files(folder: Path) -> list[Path]:
    return sorted((folder / audit.FOLDER).iterdir())


def test_a_line_says_who_did_what(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "gateway")
    log(entry(1))
    log(entry(2, REFUSED, "other"))
    done, refused = list(audited_lines(tmp_path))
    assert (done["role"], done["what"], done["topic"], done["subscription"]) == ("till", "seek 1", "orders", "billing")
    assert (refused["outcome"], refused["reason"]) == (REFUSED, "why")
    assert [line["what"] for line in audited_lines(tmp_path, role="other")] == ["seek 2"]
    log(entry(3, role="team,other"))
    assert [line["what"] for line in audited_lines(tmp_path, role="other")] == ["seek 2", "seek 3"], "of several roles"
    assert list(audited_lines(tmp_path, since="9999")) == []
    assert len(list(audited_lines(tmp_path, since=done["time"]))) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)} == {0o600}
    log.close()


def test_lines_of_two_files_stand_in_their_order(tmp_path: Path) -> None:
    """However soon one follows another: within a millisecond there are dozens."""
    log = AuditLog(tmp_path, "gateway")
    for number in range(MOST_REFUSALS):
        log(entry(number, REFUSED if number % 3 else DONE))
    assert [line["what"] for line in audited_lines(tmp_path)] == [f"seek {number}" for number in range(MOST_REFUSALS)]
    log.close()


def test_refusals_push_nothing_else_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1]
    monkeypatch.setattr("sluice.cluster.base.audit.time.monotonic_ns", lambda: now[0] * 1_000_000_000)
    log = AuditLog(tmp_path, "gateway")
    log(entry(0))
    for number in range(10 * MOST_REFUSALS):
        log(entry(number, REFUSED))
    now[0] = 2
    log(entry(1, REFUSED))
    lines = list(audited_lines(tmp_path))
    assert len(lines) == 1 + MOST_REFUSALS + 1
    assert lines[-1]["left_out"] == 9 * MOST_REFUSALS
    assert len(files(tmp_path)) == 2
    log.close()


def test_files_are_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES", 2_000)
    log = AuditLog(tmp_path, "gateway")
    for number in range(200):
        log(entry(number))
    assert len(files(tmp_path)) == KEPT + 1
    assert all(path.stat().st_size <= 2_000 for path in files(tmp_path))
    numbers = [int(line["what"].split()[1]) for line in audited_lines(tmp_path)]
    assert numbers == list(range(numbers[0], 200))
    assert len(numbers) > 20
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)} == {0o600}
    log.close()


def test_text_of_a_client_is_cut_and_on_one_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "gateway")
    log(Audited("a\nb", "", "seek", 'x"\u2028' * 500))
    [path] = files(tmp_path)
    assert path.read_bytes().count(b"\n") == 1
    [line] = audited_lines(tmp_path)
    assert (line["role"], len(line["topic"])) == ("a\nb", MOST_TEXT)
    log.close()


def test_a_line_that_is_none_is_left_out(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "gateway")
    log(entry(1))
    [path] = files(tmp_path)
    with path.open("a") as file:
        file.write('{"time": 7}\n[]\nnothing\n{"time": "2026"')
    assert [line["what"] for line in audited_lines(tmp_path)] == ["seek 1"]
    log.close()


def test_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "gateway")
    for number in range(3):
        log(entry(number))
    [file] = files(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\xff" + lines[1] + lines[2])
    assert [line["what"] for line in audited_lines(tmp_path)] == ["seek 0", "seek 2"]


def test_a_full_disk_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / audit.FOLDER).write_text("a file in the way")
    AuditLog(tmp_path, "gateway")(entry(1))
    assert (tmp_path / audit.FOLDER).read_text() == "a file in the way"


def test_the_tail_has_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES", 500)
    log = AuditLog(tmp_path, "gateway")
    log(entry(1))
    tail = AuditTail(tmp_path)
    assert tail.new() == []
    log(entry(2, REFUSED))
    assert [line["what"] for line in tail.new()] == ["seek 2"]
    for number in range(3, 9):
        log(entry(number))
        assert [line["what"] for line in tail.new()] == [f"seek {number}"], "also in a file that was rotated"
    [path] = [path for path in files(tmp_path) if path.name.endswith("refused.jsonl")]
    with path.open("a") as file:
        file.write(json.dumps({"time": "9", "what": "half"})[:-1])
    assert tail.new() == []
    with path.open("a") as file:
        file.write("}\n")
    assert [line["what"] for line in tail.new()] == ["half"]
    log.close()
