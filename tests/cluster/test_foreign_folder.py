"""Whom a data folder belongs to: what is in it is believed, so nobody else may have had a hand in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cluster
from cluster.bootstrap import launch, standalone
from cluster.bootstrap.folder import STATE_FILE, TOKEN_FILE, prepare_folder, read_state
from cluster.cli import main
from tests.cluster.helpers import values

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    for start in (launch.up, standalone.up, lambda given: cluster.connect(embedded=True, data_dir=given.data_dir)):
        with pytest.raises(
            cluster.Invalid, match=f"others may write to the data folder .*mode is {mode:04o}.*go-w"
        ) as said:
            start(values(tmp_path))
        assert "\n" not in str(said.value)
    assert list(tmp_path.iterdir()) == []


def test_reading_is_not_writing(tmp_path: Path) -> None:
    """A folder that was made by hand has this mode; the secrets in it have a stricter one."""
    tmp_path.chmod(0o755)
    assert prepare_folder(tmp_path) == tmp_path


@as_root
@pytest.mark.parametrize("planted", [".", TOKEN_FILE, STATE_FILE, "bookies"])
def test_what_another_user_has_made_is_refused(tmp_path: Path, planted: str) -> None:
    """With a token of his own he would be let into the cluster that root starts."""
    path = tmp_path / planted
    if path != tmp_path:
        path.write_text("ab" * 32)
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(cluster.Invalid, match=rf"belongs to another user \(id {STRANGER}\)"):
        standalone.up(values(tmp_path))


@as_root
def test_a_planted_state_file_leads_nowhere(tmp_path: Path) -> None:
    state = tmp_path / STATE_FILE
    state.write_text('{"address": "192.0.2.1:6379", "session": "", "token_file": ""}')
    assert read_state(tmp_path) is not None
    os.chown(state, STRANGER, STRANGER)
    for ask in (read_state, launch.down, lambda folder: cluster.connect(data_dir=folder)):
        with pytest.raises(cluster.Invalid, match="belongs to another user"):
            ask(tmp_path)


def test_the_command_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr("sys.argv", ["sluice", "up", "--embedded", "--data-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("sluice: others may write to the data folder")
