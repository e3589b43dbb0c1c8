"""By which address a process attaches itself to a Ray cluster."""

from __future__ import annotations

from cluster.bootstrap.attach import choose_own, own_addresses


def test_a_node_of_this_machine_is_chosen() -> None:
    """Not the first that answers, which is another machine; and those elsewhere have a loopback as well."""
    assert choose_own(["192.0.2.1", "192.0.2.2"], {"127.0.0.1", "192.0.2.2"}) == "192.0.2.2"
    assert choose_own(["127.0.0.1", "192.0.2.2"], {"127.0.0.1", "192.0.2.2"}) == "192.0.2.2"
    assert choose_own(["127.0.0.1", "127.0.0.1"], {"127.0.0.1", "192.0.2.2"}) == "127.0.0.1"
    assert choose_own(["192.0.2.1"], {"127.0.0.1", "192.0.2.2"}) is None
    assert choose_own([], {"127.0.0.1"}) is None


def test_every_machine_has_the_loopback() -> None:
    assert "127.0.0.1" in own_addresses()
