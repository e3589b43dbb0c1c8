"""The owner of a data folder: its content is believed, so no other user may have had a hand in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import sluice
from sluice.actors.ports import Unknown
from sluice.cli import main
from sluice.cluster.base.tokens import ensure_token
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.naming import Door, read_door, through
from sluice.cluster.node.environment import CONTROLLER_HOST
from sluice.cluster.node.folder import DOOR_FILE, STATE_FILE, TOKEN_FILE, prepare_folder, read_state
from sluice.cluster.wire.endpoint import Endpoint, this_machine
from sluice.cluster.wire.net import NAMING, Whereabouts
from tests.cluster.helpers import values

STRANGER = 12345
NEAR_DOOR = msgspec.json.encode(
    Door("127.0.0.1:6379", Endpoint("c", this_machine(), "n", "/s", "127.0.0.1", 5))
).decode()
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    for start in (launch.up, standalone.up, lambda given: sluice.connect(embedded=True, data_dir=given.data_dir)):
        with pytest.raises(
            sluice.Invalid, match=f"others may write to the data folder .*mode is {mode:04o}.*go-w"
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
def test_file_of_another_user_is_refused(tmp_path: Path, planted: str) -> None:
    """With a token of his own he would be let into the cluster that root starts."""
    path = tmp_path / planted
    if path != tmp_path:
        path.write_text("ab" * 32)
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(sluice.Invalid, match=rf"belongs to another user \(id {STRANGER}\)"):
        standalone.up(values(tmp_path))


@as_root
def test_a_planted_state_file_leads_nowhere(tmp_path: Path) -> None:
    state = tmp_path / STATE_FILE
    state.write_text('{"address": "192.0.2.1:6379", "session": "", "token_file": ""}')
    assert read_state(tmp_path) is not None
    os.chown(state, STRANGER, STRANGER)
    for ask in (read_state, launch.down, lambda folder: sluice.connect(data_dir=folder)):
        with pytest.raises(sluice.Invalid, match="belongs to another user"):
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


@as_root
@pytest.mark.parametrize("file", ["token", DOOR_FILE])
def test_one_file_of_another_user_is_not_believed(tmp_path: Path, file: str) -> None:
    """Neither need lie in a data folder that has been looked at: the door names the token, and settings may."""
    path = tmp_path / file
    read: Callable[[], object] = (lambda: ensure_token(path)) if file == "token" else (lambda: read_door(tmp_path))
    path.write_text("ab" * 32 if file == "token" else NEAR_DOOR)
    path.chmod(0o600)
    assert read() is not None
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(sluice.Invalid, match=rf"belongs to another user \(id {STRANGER}\)") as said:
        read()
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_one_file_that_others_write_to_is_not_believed(tmp_path: Path, mode: int) -> None:
    for path in (tmp_path / "token", tmp_path / DOOR_FILE):
        path.write_text("ab" * 32 if path.name == "token" else NEAR_DOOR)
        path.chmod(mode)
    for read in (lambda: ensure_token(tmp_path / "token"), lambda: read_door(tmp_path)):
        with pytest.raises(sluice.Invalid, match=f"others may write to .* \\(its mode is {mode:04o}\\)"):
            read()


@as_root
@pytest.mark.parametrize("file", ["token", DOOR_FILE])
def test_a_planted_pipe_holds_nobody_up(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    os.mkfifo(path, 0o600)
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(sluice.Invalid, match="belongs to another user"):
        ensure_token(path) if file == "token" else read_door(tmp_path)


async def test_a_door_that_is_planted_later_is_not_asked(tmp_path: Path) -> None:
    """A client that runs looks at the door again whenever it connects."""
    door = tmp_path / DOOR_FILE
    door.write_text(NEAR_DOOR)
    net = through(tmp_path, "127.0.0.1:6379")
    assert net is not None
    door.chmod(0o666)
    told = await net.call(f"{CONTROLLER_HOST}/{NAMING}", Whereabouts(host="x"), 30_000)
    assert isinstance(told, Unknown)
    assert "others may write to" in told.reason
    net.close()
