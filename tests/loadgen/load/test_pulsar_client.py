"""The layer between a flood and Pulsar's client: receipts, positions, and what is missing."""

from __future__ import annotations

import pytest

from sluice.loadgen.base.kinds import ACT_KINDS
from sluice.loadgen.base.options import FloodOptions
from sluice.loadgen.load import pulsar_client
from sluice.loadgen.load.pulsar_client import PulsarReceipt, connect_to, untold
from sluice.loadgen.run.flood import flood_command
from sluice.storage.errors import Invalid, Unavailable
from sluice.storage.format.position import position


class Told:
    """A message id, and a result, as the client tells them."""

    def __init__(self, name: str, partition: int = 1, ledger: int = 3, entry: int = 10, index: int = -1) -> None:
        self.name = name
        self._told = partition, ledger, entry, index

    def partition(self) -> int:
        return self._told[0]

    def ledger_id(self) -> int:
        return self._told[1]

    def entry_id(self) -> int:
        return self._told[2]

    def batch_index(self) -> int:
        return self._told[3]


def test_a_receipt_knows_the_place_of_each_message() -> None:
    receipt = PulsarReceipt(3)
    receipt.on_sent(1, Told("Ok"), Told("Ok", index=4))
    receipt.on_sent(0, Told("Ok"), Told("Ok", partition=-1))
    assert not receipt.done()
    receipt.on_sent(2, Told("Ok"), Told("Ok", ledger=-1, entry=-1))
    assert receipt.result(0).partitions.tolist() == [0, 1, 1]
    assert receipt.positions.tolist() == [position(3, 10), position(3, 14), 0]
    assert (receipt.confirmed_at > 0).all()


def test_a_receipt_of_a_refused_message_says_so() -> None:
    receipt = PulsarReceipt(2)
    receipt.on_sent(0, Told("Ok"), Told("Ok"))
    with pytest.raises(Unavailable, match="1 messages have no receipt"):
        receipt.result(0)
    receipt.on_sent(1, Told("Timeout"), None)
    with pytest.raises(Unavailable, match="refused: Timeout"):
        receipt.result(0)


def test_holder_of_a_key_is_unknown_when_owners_are_broken() -> None:
    assert set(untold(ACT_KINDS)) == {"unexplained_redelivery", "acked_redelivered"}
    assert set(untold(["kill-dispatcher"])) == {"unexplained_redelivery", "acked_redelivered", "overlap"}


def test_without_the_package_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Invalid, match="uv pip install") as raised:
        flood_command(client="pulsar")
    assert str(raised.value) == pulsar_client.MISSING


def test_a_cluster_without_a_gateway_is_told_apart(tmp_path: object) -> None:
    with pytest.raises(Unavailable, match="serves no Pulsar client"):
        connect_to(tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{"policy": "read_position"}, {"strict": True}, {"input": "a.csv", "key_column": "k"}])
def test_incompatible_options_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(Invalid, match="--client pulsar"):
        FloodOptions.from_values(client="pulsar", **more)
    with pytest.raises(Invalid, match="--client is one of"):
        FloodOptions.from_values(client="kafka")
