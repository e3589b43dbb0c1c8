"""Whether a cluster runs on a data folder, and where: compares its state file with the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cluster.base.version import COMMAND
from sluice.cluster.launch.attach import answers
from sluice.cluster.node.environment import TOKEN_PATH
from sluice.cluster.node.folder import STATE_FILE, read_state
from sluice.cluster.node.process_watch import lives
from sluice.storage.errors import Invalid

if TYPE_CHECKING:
    import psutil

BIRTH_S = 5.0
"""By how much the time may be off at which a process is said to have begun: the system's clock is set meanwhile. Where
processes have names (cluster.node.process_watch), which no clock changes, nobody asks for the time.
"""


def find(data_dir: Path | None = None) -> tuple[str, Path | None] | None:
    """Address and token file of a running cluster: of the enclosing `local`, or of the state file. None without one."""
    inherited = os.environ.get("SLUICE_INTERNAL_ADDRESS")
    if inherited:
        token = os.environ.get(TOKEN_PATH)
        return inherited, Path(token) if token else None
    state = read_state(data_dir or Path("sluice-data"))
    if state is None or (("process" in state or "inside" in state) and not runs(state)):
        return None
    return str(state["address"]), token_of(state)


def runs(state: dict[str, Any]) -> bool:
    """Whether the cluster of a state file runs; another program may have its port now."""
    if "process" in state:
        return process_of(state) is not None
    from sluice.cluster.node.sessions import processes_of

    session = state["session"] or state.get("inside")  # the latter is Ray's own folder, of a Ray that is a program's
    if session and not processes_of(session):
        return False
    return bool(state["address"]) and answers(state["address"])


def refuse_running(root: Path) -> None:
    """Raises Invalid if a cluster runs on this folder, which the caller holds."""
    state = read_state(root)
    if state is not None and runs(state):
        raise Invalid(f"a cluster runs on {root} already, at {state['address']}; end it with `{COMMAND} down` first")


def process_of(state: dict[str, Any]) -> psutil.Process | None:
    """The very process that a state file names, if it still runs. Raises Invalid if the file is not ours."""
    import psutil

    try:
        pid, began = state["process"]
        process = psutil.Process(pid)
        name = str(state.get("process_name", ""))
        same = lives(name) if name else abs(process.create_time() - began) < BIRTH_S
        alive = same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    except (TypeError, ValueError) as error:
        raise Invalid(f"{STATE_FILE} was not written by Sluice; remove it if no cluster runs") from error
    return process if alive else None


def token_of(state: dict[str, Any]) -> Path | None:
    """The token file of a state file's cluster, if it has one."""
    return Path(state["token_file"]) if state["token_file"] else None
