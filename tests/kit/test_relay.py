"""The fate of packets that make a detour."""

from __future__ import annotations

import socket

from tests.kit.relay import MOST_WAITING, Relay, rules_of

A, B = "10.77.0.1", "10.77.0.2"


def packet(sender: str, receiver: str, payload: bytes = b"") -> bytes:
    """The header of IPv4, as far as it is looked at."""
    return bytes(12) + socket.inet_aton(sender) + socket.inet_aton(receiver) + payload


def test_a_packet_is_delayed_in_its_direction_and_order() -> None:
    relay = Relay()
    relay.rules = rules_of(f'[["{A}", "{B}", 100, 0]]')
    for number in range(3):
        relay.take(packet(A, B, bytes([number])), now=1.0)
    relay.take(packet(B, A), now=1.0)
    assert relay.due(1.0) == [packet(B, A)]
    assert relay.wait(1.0) is not None
    assert relay.due(1.099) == []
    assert relay.due(1.1) == [packet(A, B, bytes([number])) for number in range(3)]
    assert relay.wait(1.1) is None


def test_a_part_is_lost() -> None:
    relay = Relay()
    relay.rules = rules_of(f'[["{A}", "{B}", 0, 0.05]]')
    for _ in range(10_000):
        relay.take(packet(A, B), now=0.0)
    assert 9_400 < len(relay.due(0.0)) < 9_600


def test_waiting_packets_are_bounded() -> None:
    """Packets beyond the capacity of the link are lost, as everywhere."""
    relay = Relay()
    relay.rules = rules_of(f'[["{A}", "{B}", 100, 0]]')
    for _ in range(MOST_WAITING + 100):
        relay.take(packet(A, B), now=0.0)
    assert len(relay.due(1.0)) == MOST_WAITING
