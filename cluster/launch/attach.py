"""Attaches this process to a running Ray cluster, or says in one line why it cannot.

Ray tries for minutes when nobody listens or the token is wrong, and prints what it thinks meanwhile; so both are looked
at before Ray is asked. A process can be attached to one cluster at a time.

A process attaches itself by a node of its own machine. Ray knows a node by one address: the loopback in a cluster that
Sluice started, an address of the network in one of several machines. So the cluster is asked which of them is here.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

from sluice.cluster.base.printable import first_line
from sluice.cluster.base.signals import held_back
from sluice.cluster.base.version import COMMAND
from sluice.cluster.node.environment import (
    NAMESPACE,
    TOKEN_PATH,
    allow_other_machines,
    is_controller_host,
    is_loopback,
    prepare,
    use_mode,
)
from sluice.storage.errors import Invalid, NotFound, Unavailable

TOKEN_PROBE = "/ray.rpc.NodeInfoGcsService/GetClusterId"
PROBE_SECONDS = 10
NODE_SECONDS = 10.0
"""How long a node of this machine may take to register with its head; `ray start` may return a moment before that."""
LOOK_SECONDS = 0.2


_joining = threading.Lock()
"""Ray's library does not expect two threads that attach their process at once."""


def join(address: str, token_file: Path | None = None) -> None:
    """Attach this process to a running Ray cluster. Raises Unavailable, Invalid in one clear line."""
    with _joining:
        _join(address, token_file)


def _join(address: str, token_file: Path | None) -> None:
    prepare(token_file)
    if not answers(address):
        raise Unavailable(f"nothing answers at {address}")
    import ray

    if ray.is_initialized():
        attached = str(ray.get_runtime_context().gcs_address)
        if attached != address:
            raise Invalid(f"this process is attached to the cluster at {attached}; it can be attached to one only")
        return
    use_mode("token" if _wants_token(address) else "disabled")
    _check_token(address)
    try:
        with held_back():
            node_address = _address_of_own_node(address)
            if not is_loopback(node_address):
                allow_other_machines()
            keep_ray_off_stdout()
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="ERROR",
                _node_ip_address=node_address,
            )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise Unavailable(f"no cluster answers at {address}: {first_line(error)}") from None


def require_sluice(address: str, *, leave: bool) -> None:
    """Raises NotFound if no Sluice runs in the Ray cluster that this process is attached to. leave: leave it then."""
    import ray

    named = ray.util.list_named_actors(all_namespaces=True)
    if not any(row["namespace"] == NAMESPACE and is_controller_host(row["name"]) for row in named):
        if leave:
            ray.shutdown()
        raise NotFound(f"no Sluice runs in the Ray cluster at {address}; start it: {COMMAND} up --address {address}")


def keep_ray_off_stdout() -> None:
    """Keep Ray from printing to standard output that a node is lost, also between the lines that a program reads there.

    A thread of every attached process prints it, whatever becomes of the output of workers. `status` tells of such
    nodes.
    """
    worker = import_module("ray._private.worker")
    worker._worker_logs_enabled = False  # type: ignore[attr-defined]


def _address_of_own_node(address: str) -> str:
    """The address by which the cluster knows its node on this machine. Raises Unavailable if it has none here.

    Without it Ray would take the processes of any node that it sees for its own, and wait for a minute if it sees none.
    """
    import ray
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    head: Any = ray._raylet.GcsClient(address=address)
    deadline = time.monotonic() + NODE_SECONDS
    while True:
        nodes = head.get_all_node_info(timeout=PROBE_SECONDS).values()
        alive = [str(node.node_manager_address) for node in nodes if node.state == GcsNodeInfo.ALIVE]
        if (found := choose_own(alive, own_addresses())) is not None:
            return found
        if time.monotonic() > deadline:
            raise Unavailable(
                f"no node of the Ray cluster at {address} runs on this machine; its nodes are at"
                f" {', '.join(sorted(set(alive))) or 'no address'}: run this on one of them,"
                f" or start one here with `ray start --address={address}`"
            )
        time.sleep(LOOK_SECONDS)  # Ray tells nobody when a node has registered


def choose_own(nodes: Collection[str], own: Collection[str]) -> str | None:
    """Which of the addresses of a cluster's nodes is one of this machine; None without one.

    The loopback is the same on every machine, so another address comes first.
    """
    return min((address for address in nodes if address in own), key=is_loopback, default=None)


def own_addresses() -> set[str]:
    """Every address of this machine."""
    import psutil

    return {each.address for device in psutil.net_if_addrs().values() for each in device}


def _wants_token(address: str) -> bool:
    """Whether the head refuses those without a token; also where it does not say."""
    grpc: Any = import_module("grpc")  # comes with Ray, without types
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(TOKEN_PROBE)(b"", timeout=PROBE_SECONDS)
        except grpc.RpcError:
            return True
    return False


def _check_token(address: str) -> None:
    """Ask the head a question that needs the token, because Ray itself would try for minutes.

    Raises Invalid if it refuses. Whatever else goes wrong is left for Ray to say.
    """
    import ray

    grpc: Any = import_module("grpc")
    raylet: Any = ray._raylet
    try:
        headers = raylet.AuthenticationTokenLoader.instance().get_token_for_http_header()
    except ray.exceptions.AuthenticationError:
        headers = {}  # there is none; perhaps none is wanted
    metadata = [(name.lower(), value) for name, value in headers.items()]
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(TOKEN_PROBE)(b"", timeout=PROBE_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                reason = "refuses this token" if metadata else "wants a token"
                raise Invalid(
                    f"the cluster at {address} {reason}; name its data folder, or its token's file in {TOKEN_PATH}"
                ) from None


def answers(address: str, timeout_s: float = 2.0) -> bool:
    """Whether a process listens there."""
    host, _, port = str(address).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s):
            return True
    except (OSError, ValueError, OverflowError):
        return False
