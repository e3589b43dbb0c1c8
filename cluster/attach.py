"""Attaching this process to a running Ray cluster, with one clear line when that cannot be.

Ray tries for minutes when nobody listens or the token is wrong, and prints what it thinks meanwhile; so both are looked
at before Ray is asked. A process can be attached to one cluster at a time.
"""

from __future__ import annotations

import socket
from importlib import import_module
from pathlib import Path
from typing import Any

from cluster import environment
from cluster.environment import LOOPBACK, NAMESPACE, TOKEN_PATH, prepare
from cluster.signals import held_back
from storage.errors import Invalid, Unavailable

TOKEN_PROBE = "/ray.rpc.NodeInfoGcsService/GetClusterId"
PROBE_SECONDS = 10


def join(address: str, token_file: Path | None = None) -> None:
    """Attach this process to a running Ray cluster. Raises Unavailable, Invalid in one clear line."""
    check_order()
    prepare(token_file)
    if not answers(address):
        raise Unavailable(f"nothing answers at {address}")
    import ray

    if ray.is_initialized():
        attached = str(ray.get_runtime_context().gcs_address)
        if attached != address:
            raise Invalid(f"this process is attached to the cluster at {attached}; it can be attached to one only")
        return
    _check_token(address)
    try:
        with held_back():
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="ERROR",
                _node_ip_address=LOOPBACK,
            )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise Unavailable(f"no cluster answers at {address}: {first_line(error)}") from None


def _check_token(address: str) -> None:
    """Ask the head something that it tells to those only who have the token; Ray itself would try for minutes.

    Raises Invalid if it refuses. Whatever else goes wrong is left for Ray to say.
    """
    import ray

    grpc: Any = import_module("grpc")  # comes with Ray, without types
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
                told = "refuses this token" if metadata else "wants a token"
                raise Invalid(
                    f"the cluster at {address} {told}; name its data folder, or its token's file in {TOKEN_PATH}"
                ) from None


def check_order() -> None:
    """Raises Invalid if Ray was imported before its environment was set."""
    if environment.ray_came_first:
        raise Invalid("ray was imported before cluster; write `import cluster` first, or set RAY_AUTH_MODE=token")


def answers(address: str, timeout_s: float = 2.0) -> bool:
    """Whether a process listens there."""
    host, _, port = str(address).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
