"""The parts of Ray that are replaced; a Ray that looks different is left alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import ray._private.node as nodes
import ray._private.parameter as parameter
import ray._private.services as services

from sluice.cluster.node.minimal_ray import bare_nodes


def test_the_ray_that_is_installed_is_as_expected(caplog: pytest.LogCaptureFixture) -> None:
    before = nodes.Node, services.get_node
    with caplog.at_level(logging.WARNING, "sluice"), bare_nodes():
        assert issubclass(nodes.Node, before[0])
        assert nodes.Node is not before[0]
        assert services.get_node is not before[1]
    assert (nodes.Node, services.get_node) == before
    assert caplog.records == []


class Parameters:
    """Ray's parameters of a node, without the switches."""

    def __init__(self, redis_address: str = "") -> None:
        pass


class OtherNode:
    """A node that is made from something else."""

    def __init__(self, settings: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("module", "name", "other", "why"),
    [
        (parameter, "RayParams", Parameters, "RayParams has no no_monitor"),
        (nodes, "Node", OtherNode, "Node does not begin with ray_params"),
        (nodes, "Node", None, "None is not a callable object"),
        (services, "get_node", None, "None is not a callable object"),
    ],
)
def test_another_ray_starts_in_its_own_way_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: Any, name: str, other: Any, why: str
) -> None:
    monkeypatch.setattr(module, name, other)
    before = nodes.Node, services.get_node
    with caplog.at_level(logging.WARNING, "sluice"), bare_nodes():
        assert (nodes.Node, services.get_node) == before
    (line,) = caplog.messages
    assert why in line


@pytest.mark.parametrize(("owner", "name"), [(nodes.Node, "start_api_server"), (services, "get_node")])
def test_a_missing_part_of_ray_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: Any, name: str
) -> None:
    monkeypatch.delattr(owner, name)
    node = nodes.Node
    with caplog.at_level(logging.WARNING, "sluice"), bare_nodes():
        assert nodes.Node is node
    assert len(caplog.records) == 1
