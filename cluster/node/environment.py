"""The environment that every Ray process of Sluice runs in. `prepare` sets it when this package is imported.

A program that imports Ray first keeps its Ray's addresses; a Ray that Sluice starts gets a token and the loopback in
either order, and a Ray of somebody else's keeps its own rule about tokens.

Ray listens on all interfaces unless one undocumented switch pins it to the loopback, leaves token authentication off
for `ray start`, runs every worker through `uv run` if the driver was started that way, and gives workers a low
priority, so that a broker would yield to whatever else the machine does. Each of these is decided here, once, and
inherited by every child process.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

from sluice.cluster.base.tokens import ensure_token
from sluice.cluster.node.stale_folders import claim
from sluice.storage.errors import Invalid

NAMESPACE = "sluice"
POOLS_NAMESPACE = "sluice-workers"
"""Of the keepers and workers of pools: the controller looks at every process of the other one."""
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
LOOPBACK = "127.0.0.1"
CONTROLLER_HOST = "controller"
"""The host that is not placed: Ray knows it by this name, and starts it again itself."""


def is_controller_host(name: str) -> bool:
    """Whether a process is a candidate for the controller: the first one, or one that it made on another machine."""
    return name == CONTROLLER_HOST or name.startswith(f"{CONTROLLER_HOST}-")


LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The undocumented switch: with "0" Ray stays on the loopback, and `ray start` refuses to join another machine."""


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from its own machine only."""
    return host.startswith("127.") or host == "::1"


def own_address() -> str:
    """The address by which the Ray cluster that this process is attached to knows this machine."""
    import ray

    return str(ray.util.get_node_ip_address())


AUTH_MODE = "RAY_AUTH_MODE"
_by_hand = os.environ.get(AUTH_MODE)

_SETTINGS = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_worker_niceness": "0",
    "RAY_timeout_ms_task_wait_for_death_info": "50",
    # Ray's own metrics cost a tenth of the throughput on two cores; the broker's are at its metrics address.
    "RAY_enable_metrics_collection": "0",
    # A node that does not tell the head of itself in time is given up, after half a minute by itself: on a machine that
    # does more than it can, that was too early three times in a row.
    "RAY_raylet_start_wait_time_s": "60",
    # A node is dead after one and a half seconds without a process, or about fourteen without an answer.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "3",
    "GLOG_minloglevel": "2",
    "PYTHONWARNINGS": "ignore::FutureWarning",
    # Runs are megabytes. glibc and Arrow would give such memory back to the kernel at once and have it cleared, page
    # by page, for the next run: a fifth of a producer's processor time. So they keep it, up to 128 MiB a process.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024 * 1024),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def prepare(token_file: Path | None = None) -> None:
    """Set the environment of this process and its children; keeps what the user set by hand.

    token_file: where the cluster's token lives; made with mode 0600 if it is missing. Without one, Ray's own order
    applies (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, the file in the home folder). Raises Invalid if it holds no token.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if token_file is not None or "ray" not in sys.modules:
        os.environ.setdefault(LOOPBACK_SWITCH, "0")
        constants: Any = sys.modules.get("ray._private.ray_constants")
        if constants is not None:  # Ray read the switch when it was imported
            constants.ENABLE_RAY_CLUSTER = os.environ[LOOPBACK_SWITCH] not in ("0", "false", "False")
    if token_file is not None:
        ensure_token(token_file)
        use_token(str(token_file))
        use_mode(_by_hand or "token")


def allow_other_machines() -> None:
    """Let processes that this one starts join a cluster of several machines, until the next `prepare`."""
    os.environ.pop(LOOPBACK_SWITCH, None)


def use_token(path: str | None) -> None:
    """Let Ray take its token from this file; None: from where it does by itself."""
    if os.environ.get(TOKEN_PATH) == path:
        return
    if path is None:
        del os.environ[TOKEN_PATH]
    else:
        os.environ[TOKEN_PATH] = path
    # Ray reads a token once in a process. One that comes to a second cluster must read that one's.
    loader = getattr(sys.modules.get("ray._raylet"), "AuthenticationTokenLoader", None)
    if loader is not None:
        loader.instance().reset_cache()


def use_mode(mode: str | None) -> None:
    """Let Ray use tokens (`token`) or none (`disabled`), here and in children; None: as Ray does by itself.

    Not in a process that is attached. Raises Invalid if a Ray that was imported before keeps to what it read then.
    """
    if mode is None:
        os.environ.pop(AUTH_MODE, None)
    else:
        os.environ[AUTH_MODE] = mode
    raylet: Any = sys.modules.get("ray._raylet")
    if raylet is None:
        return
    wanted = getattr(raylet.AuthenticationMode, (mode or "").upper(), None)
    if wanted is not None and raylet.get_authentication_mode() == wanted:
        return  # perhaps in a process that is attached: there, more than this would be read again
    if (initialize := getattr(raylet.Config, "initialize", None)) is not None:
        initialize("")  # Ray reads its settings once in a process; this reads them again
    if wanted is not None and raylet.get_authentication_mode() != wanted:
        raise Invalid(f"ray was imported before cluster; write `import sluice` first, or set {AUTH_MODE}={mode}")


SESSION_PREFIX = "sluice-"
SHORT_ROOT = "/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir()
RAY_FOLDER = "ray"
"""Ray's own part of a session folder: the name that it gives it below RAY_TMPDIR."""


def short_folder(note: list[str] | None = None) -> str:
    """A fresh folder with a short path for Ray's session: its socket names must stay below 108 bytes.

    Nobody else may enter it. Ray opens what it makes to everybody, its sockets' folder included, in which another user
    could put a socket of his own in the place of Ray's: so Ray works one level below, in `ray_folder`.

    note: gets the path before the folder exists, for a caller that is interrupted.
    """
    path = str(Path(SHORT_ROOT, SESSION_PREFIX + secrets.token_hex(4)))
    if note is not None:
        note.append(path)
    os.mkdir(path, 0o700)
    claim(Path(path))
    return path


def ray_folder(session: str) -> str:
    """Return Ray's working folder within a session folder."""
    return f"{session}/{RAY_FOLDER}"


def is_session_folder(path: str) -> bool:
    """Whether `short_folder` may have made this folder; only such a folder may be removed with the cluster."""
    folder = Path(path)
    return folder.name.startswith(SESSION_PREFIX) and str(folder.parent) == SHORT_ROOT and not folder.is_symlink()
