"""A cluster in one process that stays and serves other processes of its machine: `./sluice up --embedded`.

It listens as the processes of a Ray cluster do, closed to strangers by the token of its data folder. The state file
names the process and where it listens, so `connect` and every command find it, and nobody needs Ray for that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import pack_error, unpack_error
from sluice.cluster.base.extras import named_extras
from sluice.cluster.base.tokens import ensure_token
from sluice.cluster.launch.discovery import process_of
from sluice.cluster.node.folder import STATE_FILE, TOKEN_FILE, read_state, write_state
from sluice.cluster.node.process_watch import this_process
from sluice.cluster.wire.endpoint import Endpoint
from sluice.storage.errors import SluiceError, Unavailable
from sluice.storage.stores.objects import make_private

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client
    from sluice.cluster.launch.embedded import EmbeddedCluster
    from sluice.cluster.settings.config import Configuration
    from sluice.cluster.settings.options import ClusterOptions
    from sluice.cluster.wire.net import DirectNet

LOG_FILE = "embedded.log"
SOCKETS = "sockets"
STOP_S = 30.0
END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


# -- who wants it ----------------------------------------------------------------------------------------------------


def up(values: Configuration) -> dict[str, Any]:
    """Start one that stays when this process ends, or find it running; answers as `launch.up` does.

    Raises Invalid, Unavailable; then nothing is left of it.
    """
    from sluice.cluster.client.alarms import alarms_of, nothing_can_be_written
    from sluice.cluster.gateway.ports import pulsar_of
    from sluice.cluster.node.folder import prepare_folder
    from sluice.cluster.settings.ignored_options import as_stored, kept

    options = values.cluster_options()
    root = prepare_folder(options.data_dir)
    state = _running_state(root)
    without_effect = {} if state is None else kept(state.get("options", {}), options, (1, 1))
    if state is None:
        _start(root, as_stored(options))
    client = join(root, None)
    if client is None:
        raise Unavailable(f"the cluster has ended already; {root / LOG_FILE} says why")
    with client:
        status = client.status()
    answer = {"address": (read_state(root) or {}).get("address", ""), "data_dir": str(root), "nodes": 1}
    health = {"alarms": alarms_of(status), "read_only": nothing_can_be_written(status)}
    return answer | {"kept": without_effect} | health | pulsar_of(root, options.settings())


def _start(root: Path, options: dict[str, Any]) -> None:
    """Start the process and wait until it serves. Raises its error in its own words."""
    command = [sys.executable, "-c", "from sluice.cluster.launch.standalone import main; main()", str(root)]
    with open(os.open(root / LOG_FILE, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), "ab") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        with child.stdin, child.stdout:
            child.stdin.write(json.dumps(options).encode())
            child.stdin.close()
            said = child.stdout.readline()
    except BaseException:
        child.kill()
        child.wait()
        raise
    if not said:
        raise Unavailable(f"the cluster ended with code {child.wait()} while it started; {root / LOG_FILE} says why")
    if (refused := json.loads(said)) is not None:
        child.wait()
        raise unpack_error(*refused)


def join(data_dir: Path | None, address: str | None) -> Client | None:
    """A client of the one that runs on a folder; None if there is none, or it is not the one at this address."""
    net = net_to(data_dir, address)
    if net is None:
        return None
    from sluice.cluster.client.client import Client

    return Client(None, net)


def net_to(data_dir: Path | None, address: str | None) -> DirectNet | None:
    """Return a Net to the cluster that runs on a folder; None as with `join`."""
    state = _running_state(data_dir or Path("sluice-data"))
    if state is None or address not in (None, state["address"]):
        return None
    from sluice.cluster.wire.net import DirectNet

    folder = (data_dir or Path("sluice-data")).resolve()  # which stays the same when the program changes its own

    async def find(host: str) -> Endpoint | Unknown:
        running = _running_state(folder)  # looked up each time: it may have been started again, and listens elsewhere
        if running is None:
            return Unknown(f"the cluster on {folder} has ended", gone=True)
        endpoint = msgspec.convert(running["endpoint"], Endpoint)
        return endpoint if host == endpoint.name else Unknown(f"no process {host}", gone=True)

    return DirectNet(None, find, ensure_token(Path(state["token_file"])).encode())


def down(data_dir: Path) -> int | None:
    """End the cluster on a folder, or clear away its remains; None if there is none of this sort.

    Returns how many processes were ended.
    """
    state = read_state(data_dir)
    if state is None or "process" not in state:
        return None
    process = process_of(state)
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            try:
                process.wait(STOP_S)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)
    (data_dir / STATE_FILE).unlink(missing_ok=True)
    return int(process is not None)


def process_on(data_dir: Path) -> bool:
    """Whether one of this sort runs on a folder."""
    return _running_state(data_dir) is not None


def _running_state(root: Path) -> dict[str, Any] | None:
    state = read_state(root)
    return state if state is not None and "process" in state and process_of(state) is not None else None


# -- the process itself ----------------------------------------------------------------------------------------------


def main() -> None:
    """Serve until a signal. Argument: the data folder. Input: options as JSON. Output: one line, null or an error."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END)  # every thread inherits it: a signal waits until it is asked for
    from sluice.cluster.settings.options import ClusterOptions

    sys.argv[0] = "sluice up --embedded"  # who is second on the folder is told so
    options = ClusterOptions(data_dir=Path(sys.argv[1]), **json.load(sys.stdin))
    try:
        with named_extras(), serving(options):
            _say(None)
            signal.sigwait(END)
    except SluiceError as error:
        _say(pack_error(error))
        sys.exit(2)


def _say(what: Sequence[str] | None) -> None:
    """Write one line to the process that started this one, which may have ended."""
    with contextlib.suppress(OSError):
        print(json.dumps(what), flush=True)
        sys.stdout.close()


@contextlib.contextmanager
def serving(options: ClusterOptions) -> Iterator[Endpoint]:
    """Serve a folder in this process for the length of a `with` block. Raises as `embedded.running`, Unavailable."""
    from sluice.cluster.base.arrow import without_pandas
    from sluice.cluster.base.collector import collect_seldom
    from sluice.cluster.base.descriptors import raise_limit
    from sluice.cluster.base.real import log_to_stderr
    from sluice.cluster.launch.embedded import WITH_ADMIN, running
    from sluice.cluster.wire.net import DirectNet

    log_to_stderr(options.log_level)
    without_pandas()
    collect_seldom()
    raise_limit()
    with running(options, boot=WITH_ADMIN, net=DirectNet) as inner, _listening(inner, options) as endpoint:
        _write_state(options, endpoint)
        try:
            yield endpoint
        finally:
            (options.data_dir / STATE_FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def _listening(inner: EmbeddedCluster, options: ClusterOptions) -> Iterator[Endpoint]:
    from sluice.cluster.launch.embedded import PROCESS
    from sluice.cluster.wire.net import open_endpoint
    from sluice.cluster.wire.tls import files_of

    token, tls = ensure_token(options.data_dir / TOKEN_FILE).encode(), files_of(options.settings())
    sockets = options.data_dir / SOCKETS
    shutil.rmtree(sockets, ignore_errors=True)  # of one that was killed
    make_private(sockets)

    async def listen() -> Any:
        return open_endpoint(PROCESS, inner.actors, str(sockets), options.bind_address, token, tls)

    try:
        endpoint, listener = inner.loop.run(listen())
    except OSError as error:
        raise Unavailable(f"cannot listen at {options.bind_address}: {error.strerror}") from None
    try:
        yield endpoint
    finally:
        inner.loop.soon(listener.close)
        for folder in (Path(endpoint.path).parent, sockets):
            shutil.rmtree(folder, ignore_errors=True)


def _write_state(options: ClusterOptions, endpoint: Endpoint) -> None:
    from sluice.cluster.settings.ignored_options import as_stored

    state = {
        "address": f"{endpoint.host}:{endpoint.port}",
        "session": "",
        "token_file": str(options.data_dir / TOKEN_FILE),
        "started_at": int(time.time()),
        "process": [os.getpid(), psutil.Process().create_time()],
        "process_name": this_process(),
        "endpoint": msgspec.to_builtins(endpoint),
        "options": as_stored(options),
    }
    write_state(options.data_dir, state)
