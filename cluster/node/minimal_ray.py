"""Starts Ray nodes without the processes that Sluice does not use, and with patience on a busy machine.

Ray starts three processes beside every head: an autoscaler's monitor, a log monitor and a dashboard's server. Each of
them imports all of Ray (four seconds of processor time together), and Ray waits for the last one before anything else
may begin. Nobody scales this cluster, or reads its workers' logs from afar, and Sluice's own admin server replaces the
dashboard. `ray start` has options for the first two; `ray.init` has none. So for as long as `bare_nodes` lasts, the
class that starts a node's processes leaves them out.

Ray gives up a node that has not appeared after thirty seconds, which is too soon where twenty processes share two
processors. Here the wait lasts until PATIENCE_S.

All this is inside Ray and may look different in another version of it. A part that is not as expected stays as it is,
with one line in the log. Nodes then start as Ray starts them, which takes longer.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import time
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger("sluice.process")

PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.1

RAY_COMMAND = """
import sys
sys.modules["ray.serve.scripts"] = None
from ray.scripts import scripts
class Constants:
    ENABLE_RAY_CLUSTER = True
    def __getattr__(self, name):
        return getattr(plain, name)
plain, scripts.ray_constants = scripts.ray_constants, Constants()
scripts.get_ray_client_dependency_error = lambda: "nothing needs it"
from sluice.cluster.node.minimal_ray import bare_nodes
with bare_nodes():
    scripts.main()
"""
"""The `ray` command. The switch that keeps Ray on the loopback makes the command refuse a second node, and nothing
else: the nodes themselves work. So only the command gets the switch as off. It would also open a port for Ray's remote
clients, which nothing here uses, if it did not believe that they cannot be served. Ray Serve, whose command Ray adds
where it can, takes longer to import than the rest of the command.
"""


@contextlib.contextmanager
def bare_nodes() -> Iterator[None]:
    """Nodes that are started in this process meanwhile are bare and are waited for."""
    try:
        nodes, services = _internals()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        logger.warning("this Ray is not as expected, so its nodes start in its own way, which takes longer: %s", error)
        yield
        return
    with (
        _replaced(nodes, "Node", _bare(nodes.Node)),
        _replaced(services, "get_node", _patient(services.get_node)),
    ):
        yield


def _internals() -> tuple[Any, Any]:
    """Ray's modules `node` and `services`. Raises AttributeError and others if what is replaced there is not there."""
    nodes = importlib.import_module("ray._private.node")
    services = importlib.import_module("ray._private.services")
    parameters = importlib.import_module("ray._private.parameter").RayParams
    known = inspect.signature(parameters).parameters
    for name in ("no_monitor", "include_log_monitor"):
        if name not in known:
            raise AttributeError(f"RayParams has no {name}")
    if next(iter(inspect.signature(nodes.Node).parameters), "") != "ray_params":
        raise AttributeError("Node does not begin with ray_params")
    for owner, name in ((nodes.Node, "start_api_server"), (services, "get_node")):
        inspect.signature(getattr(owner, name))
    return nodes, services


def _bare(node: Any) -> Any:
    class BareNode(node):  # type: ignore[misc]
        """A node without monitors and dashboard."""

        def __init__(self, ray_params: Any, *arguments: Any, **options: Any) -> None:
            ray_params.no_monitor = True
            ray_params.include_log_monitor = False
            super().__init__(ray_params, *arguments, **options)

        def start_api_server(self, *_: Any, **__: Any) -> None:
            """Start nothing: nobody asks the dashboard's server anything."""

    return BareNode


def _patient(get_node: Any) -> Any:
    def patient(*arguments: Any, **options: Any) -> Any:
        """Return the node's row, or raise what Ray raises if it is not there after PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return get_node(*arguments, **options)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_EVERY_S)

    return patient


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
