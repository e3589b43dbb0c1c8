"""Recorded conversations, played again: the gateway says what it said, frame by frame."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cluster.gateway.listener import PulsarGateway
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.gateway.conversation import FOLDER, URL, Line, play

pytestmark = pytest.mark.timeout(240)

FILES = sorted(FOLDER.glob("*.txt"))


def test_there_are_conversations_and_they_can_be_read() -> None:
    assert len(FILES) >= 2
    for file in FILES:
        texts = [text for text in file.read_text().splitlines() if not text.startswith("#")]
        assert [Line.read(text).text() for text in texts] == texts


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_recorded_conversation_is_had_again(file: Path, tmp_path: Path) -> None:
    lines = [Line.read(text) for text in file.read_text().splitlines() if not text.startswith("#")]
    with running(ClusterOptions(data_dir=tmp_path, pulsar_port=0)) as inner:
        (listener,) = inner.actors.serving(PulsarGateway)
        listener.gateway.url = URL
        inner.loop.run(play(listener.gateway, lines), 120)


def test_another_answer_is_noticed(tmp_path: Path) -> None:
    lines = [
        Line.read('C1 connect client_version: "text" protocol_version: 20'),
        Line.read('S1 connected server_version: "Another" protocol_version: 20 max_message_size: 5242880'),
    ]
    with running(ClusterOptions(data_dir=tmp_path, pulsar_port=0)) as inner:
        (listener,) = inner.actors.serving(PulsarGateway)
        with pytest.raises(AssertionError):
            inner.loop.run(play(listener.gateway, lines), 120)
