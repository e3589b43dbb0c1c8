"""Starts, joins and ends a cluster.

`local` runs a cluster as long as a `with` block: what the flood and the tests use. `up` leaves one running after the
command ends, with a state file in its data folder that `connect`, `down` and `status` find it by. `join` attaches this
process to a running one.

Everything listens on the loopback with a token; Ray's session lives in a short temporary folder of its own, which goes
away with the cluster. The data folder holds what must survive: bookies, metadata, objects, the token.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cluster.base.extras import require
from sluice.cluster.base.forks import Birthplace
from sluice.cluster.base.printable import first_line
from sluice.cluster.base.signals import TERMINATED, held_back
from sluice.cluster.base.version import COMMAND
from sluice.cluster.gateway.ports import forget_ports, pulsar_of, wanted_ports
from sluice.cluster.host.stores import check_stores
from sluice.cluster.launch import standalone
from sluice.cluster.launch.attach import answers, keep_ray_off_stdout
from sluice.cluster.launch.attach import join as join  # part of this module's interface
from sluice.cluster.launch.discovery import refuse_running, runs, token_of
from sluice.cluster.launch.preflight import check_machines, check_safeguards
from sluice.cluster.node import identity
from sluice.cluster.node.environment import (
    AUTH_MODE,
    CONTROLLER_HOST,
    LOOPBACK,
    NAMESPACE,
    POOLS_NAMESPACE,
    TOKEN_PATH,
    is_controller_host,
    own_address,
    prepare,
    ray_folder,
    short_folder,
    use_mode,
    use_token,
)
from sluice.cluster.node.folder import (
    DOOR_FILE,
    STATE_FILE,
    TOKEN_FILE,
    claimed,
    prepare_folder,
    read_state,
    write_state,
)
from sluice.cluster.node.minimal_ray import bare_nodes
from sluice.cluster.node.nodes import SLOW_START, START_TRIES, add_node, known_nodes, start_head
from sluice.cluster.node.sessions import count_nodes, stop_session
from sluice.cluster.settings.ignored_options import note
from sluice.cluster.settings.options import ClusterOptions, identified
from sluice.storage.errors import Invalid, NotFound, SluiceError, Unavailable

if TYPE_CHECKING:
    from sluice.actors.ports.wire import Request
    from sluice.cluster.settings.config import Configuration

logger = logging.getLogger("sluice.process")

STOP_SECONDS = 20.0
"""How long the processes of a cluster are asked to end before they are ended."""
LOOK_SECONDS = 0.3
"""How often it is looked whether there is still anybody to ask."""
READY_TIMEOUT = 300.0
ENDING = "import sys; from sluice.cluster.launch.launch import leave_nothing; leave_nothing(sys.argv[1:])"


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that this process is attached to. address: `host:port` of Ray's head."""

    address: str
    data_dir: Path


@contextlib.contextmanager
def local(data_dir: Path | str, **options: Any) -> Iterator[RunningCluster]:
    """A cluster on this machine for the length of a `with` block; options are the fields of ClusterOptions.

    Raises Invalid if a cluster runs on this folder already, or this process is attached to one.
    """
    wanted = ClusterOptions(data_dir=prepare_folder(Path(data_dir)), **options)
    with claimed(wanted.data_dir):
        refuse_running(wanted.data_dir)
        check_safeguards(wanted)
        check_stores((wanted.metadata, wanted.objects), wanted.s3_endpoint_url)
        wanted = identified(wanted)
        with _session(wanted) as address:
            yield RunningCluster(address, wanted.data_dir)


@contextlib.contextmanager
def _session(wanted: ClusterOptions) -> Iterator[str]:
    """A Ray of this process's own with Sluice in it; whatever happens, nothing of it is left behind."""
    import ray

    if ray.is_initialized():
        raise Invalid("this process is attached to a Ray cluster already")
    before = os.environ.get(TOKEN_PATH), os.environ.get(AUTH_MODE)
    begun_in = Birthplace()
    prepare(wanted.data_dir / TOKEN_FILE)
    sessions: list[str] = []
    try:
        context = _init_ray(sessions, wanted)
        address = str(context.address_info["gcs_address"])
        os.environ["SLUICE_INTERNAL_ADDRESS"] = address
        os.environ["SLUICE_INTERNAL_DATA_DIR"] = str(wanted.data_dir.resolve())
        start_controller(wanted.settings())
        yield address
    except (KeyboardInterrupt, SystemExit) as error:
        if begun_in.is_here and error.args[:1] in ((signal.SIGTERM,), (signal.SIGHUP,), (TERMINATED,)):
            # If the whole process group got it, Ray's daemons obey it too, and a process whose daemons died is ended by
            # Ray's library in the middle of whatever it does. So another process cleans up.
            command = [sys.executable, "-c", ENDING, *sessions]
            subprocess.run(command, stdin=subprocess.DEVNULL, start_new_session=True, check=False)
        raise
    finally:
        if begun_in.is_here:
            _leave_session(sessions, before)


def _leave_session(sessions: list[str], before: tuple[str | None, str | None]) -> None:
    """End what `_session` began. before: token file and authentication mode that this process had until then."""
    import ray

    for name in ("SLUICE_INTERNAL_ADDRESS", "SLUICE_INTERNAL_DATA_DIR", "RAY_TMPDIR"):
        os.environ.pop(name, None)
    try:
        if any(count_nodes(session) for session in sessions):
            stopping = threading.Thread(target=stop_hosts, name="stop-hosts", daemon=True)
            with contextlib.suppress(RuntimeError):  # from Python 3.12 on a program that ends begins no thread any more
                stopping.start()
            deadline = time.monotonic() + STOP_SECONDS
            while stopping.is_alive() and time.monotonic() < deadline and any(count_nodes(one) for one in sessions):
                stopping.join(LOOK_SECONDS)
            if stopping.is_alive() or not stopping.ident:  # a head that ends, or has no node left, may not answer
                leave_nothing(sessions)
        ray.shutdown()
    finally:
        # Ray's own shutdown knows nothing of what a start that was interrupted had begun.
        leave_nothing(sessions)
        use_token(before[0])
        use_mode(before[1])  # the program may start a Ray of its own, when this folder is gone


def inside(data_dir: Path | str) -> None:
    """Sluice in the Ray cluster that this process is attached to: found, or started there; it ends with that cluster.

    Raises Invalid if the cluster has several nodes, because then the caller has to say where the data goes, or if
    another one runs on this folder; Unavailable.
    """
    import ray

    from sluice.cluster.wire.net import session_folder

    if _controller() is not None:
        return
    if len([node for node in ray.nodes() if node["Alive"]]) > 1:
        raise Invalid("no Sluice runs in this Ray cluster, and it has several nodes: start it as deploy/README.md says")
    address, session = str(ray.get_runtime_context().gcs_address), session_folder()
    wanted = ClusterOptions(data_dir=prepare_folder(Path(data_dir)))
    with claimed(wanted.data_dir):
        refuse_running(wanted.data_dir)
        start_controller(identified(wanted).settings(), undo=True)
        write_state(
            wanted.data_dir,
            {"address": address, "session": "", "inside": session, "token_file": "", "started_at": int(time.time())},
        )


def _controller() -> Any:
    """The controller's handle in the Ray cluster that this process is attached to; None without one."""
    import ray

    try:
        return ray.get_actor(CONTROLLER_HOST, NAMESPACE)
    except ValueError:
        return None


def leave_nothing(sessions: list[str]) -> None:
    """End every process of these, and remove their folders."""
    for session in sessions:
        stop_session(session)
        shutil.rmtree(session, ignore_errors=True)


def _init_ray(sessions: list[str], wanted: ClusterOptions) -> Any:
    """Start Ray in a folder of its own, which is noted in `sessions` first. Raises Unavailable."""
    import ray

    for left in reversed(range(START_TRIES)):
        session = short_folder(sessions)
        os.environ["RAY_TMPDIR"] = session
        try:
            keep_ray_off_stdout()
            with held_back(), bare_nodes():
                return ray.init(
                    address="local",
                    num_cpus=wanted.cpus or os.cpu_count(),
                    object_store_memory=wanted.object_store_bytes,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    namespace=NAMESPACE,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=ray_folder(session),
                )
        except Exception as error:
            ray.shutdown()
            if not left or SLOW_START not in str(error):
                raise Unavailable(f"Ray did not start: {first_line(error)}") from error
            stop_session(session)
    raise AssertionError("the last try returns or raises")


def start_controller(settings: dict[str, Any], *, undo: bool = False) -> None:
    """Start the controller, or find it running and add the bookies that it lacks; returns when they are up, and the
    gateways of clients of Pulsar are, or cannot be started.

    undo: a controller that this call has started ends again with all that it started, if the call fails; for a Ray
    cluster that lives on, in which the next attempt would find it with its old settings.
    Raises Unavailable, and what the bookies' start raises.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    from sluice.actors.messages import AddBookies, StartGateways
    from sluice.cluster.launch.build import make_host
    from sluice.cluster.node.own_node import own_node

    found = handle = None
    try:
        found = _controller()
        if not found:
            forget_ports(Path(settings["data_dir"]))
        handle = found or make_host(CONTROLLER_HOST, settings, restarts=-1, node=own_node())
        ray.get(handle.ready.remote(), timeout=READY_TIMEOUT)
        if found:
            _ask(AddBookies(ids=settings["bookies"]))
        if wanted_ports(settings):
            _ask(StartGateways())
    except BaseException as error:
        if undo and handle is not None and not found:
            stop_hosts()
        if isinstance(error, RayTaskError):
            raise error.cause if isinstance(error.cause, Exception) else Unavailable(str(error)) from None
        if isinstance(error, RayError):
            raise Unavailable(f"the controller did not start: {error}") from None
        raise


def _ask(request: Request[Any]) -> None:
    from sluice.cluster.wire.net import CONTROLLER, ask_from_thread

    ask_from_thread(CONTROLLER, request, round(READY_TIMEOUT * 1000), "the controller")


def stop_hosts() -> None:
    """End every Sluice process of the cluster that this process is attached to: brokers first, then bookies."""
    import ray
    from ray.exceptions import RayError

    if not ray.is_initialized():
        return
    try:
        named = [(row["namespace"], row["name"]) for row in ray.util.list_named_actors(all_namespaces=True)]
    except RayError:
        return
    # Pools of workers first, of these the keepers, which would start others; then the controller, after the candidates
    # that would take its place; bookies last.
    for space, name in sorted(named, key=_order_of_ends):
        if space in (NAMESPACE, POOLS_NAMESPACE):
            with contextlib.suppress(ValueError, RayError):
                ray.kill(ray.get_actor(name, space))


def _order_of_ends(named: tuple[str, str]) -> tuple[bool, bool, bool, bool, str]:
    space, name = named
    controller = is_controller_host(name)
    return space != POOLS_NAMESPACE, not controller, name == CONTROLLER_HOST, name.startswith("bookie"), name


# -- a cluster that stays ---------------------------------------------------------------------------------------------


def forget(values: Configuration) -> str:
    """Set aside the data of a folder that the metadata store does not know; returns what was moved, and where.

    Raises Invalid if a cluster runs on the folder, or if the two belong together; Unavailable.
    """
    options = values.cluster_options()
    root = prepare_folder(options.data_dir)
    with claimed(root):
        state = read_state(root)
        if state is not None and runs(state):
            raise Invalid(f"a cluster runs on {root}: end it with `{COMMAND} down` before its data is given up")
        return identity.forget(root, options.settings()["metadata"], options.s3_endpoint_url).sentence()


def up(values: Configuration, nodes: int = 1) -> dict[str, Any]:
    """Start a cluster that stays when this process ends, or Sluice in the Ray cluster at `values.address`.

    nodes: Ray nodes on this machine; missing ones are added. What runs already is left running, what died is started
    again over the same data. Raises Invalid, Unavailable; then nothing is left of what this call started.
    The answer names the alarms of the cluster, whether nothing at all can be written to it, and which options a cluster
    that ran already does not take over (cluster.settings.ignored_options).
    """
    from sluice.cluster.client.alarms import condition

    require("a cluster of several processes (one process: --embedded)", "ray")
    options = values.cluster_options()
    root = prepare_folder(options.data_dir)
    with claimed(root):
        state = read_state(root)
        if state is not None and not runs(state):
            _forget(root, state)
            state = None
        fresh = state is None
        if state is None:
            state = {"address": values.address, "session": "", "token_file": "", "started_at": int(time.time())}
        elif values.address not in (None, state["address"]):
            raise Invalid(f"a cluster at {state['address']} runs on {root}; end it with `{COMMAND} down` first")
        if fresh:
            # A cluster that runs goes on without its S3 server; one that starts is told at once what is wrong.
            check_safeguards(options)
            if state["address"]:
                _check_ray(state, options)
            check_stores((options.metadata, options.objects), options.s3_endpoint_url)
            options = identified(options)
        else:
            options = replace(options, cluster=identity.of(root))
        try:
            if state["address"] is None:
                _start_ray(root, state, options)
            without_effect = note(state, options, nodes, fresh=fresh)
            _add_nodes(state, nodes, options)
            join(str(state["address"]), token_of(state))
            start_controller(options.settings(), undo=not state["session"])
            write_state(root, state)
        except BaseException:
            if fresh and state["session"]:
                _end(root, state)
            raise
    answer = {"address": state["address"], "data_dir": str(root), "nodes": sum(node["alive"] for node in known_nodes())}
    return answer | {"kept": without_effect} | condition() | pulsar_of(root, options.settings(), own_address())


def _check_ray(state: dict[str, Any], options: ClusterOptions) -> None:
    """Attach this process to a Ray cluster that others started, and see whether these options fit it.

    Before anything is written: what the first attempt leaves in the data folder is held against the second.
    """
    join(str(state["address"]), token_of(state))
    if _controller() is None:
        check_machines(options, [node["address"] for node in known_nodes() if node["alive"]])


def _start_ray(root: Path, state: dict[str, Any], options: ClusterOptions) -> None:
    """Start a head node. The state file names the session before anything runs in it, so that `down` finds it."""
    state["token_file"] = str(root / TOKEN_FILE)
    prepare(root / TOKEN_FILE)
    state["address"], state["session"] = "", short_folder()
    write_state(root, state)
    state["address"] = start_head(state["session"], cpus=options.cpus, object_store_bytes=options.object_store_bytes)
    write_state(root, state)


def _add_nodes(state: dict[str, Any], nodes: int, options: ClusterOptions) -> None:
    """Bring a session that `up` started to this number of live nodes."""
    if state["session"]:
        prepare(token_of(state))  # this process may know nothing of the cluster yet
        for _ in range(nodes - count_nodes(state["session"])):
            add_node(
                state["session"], state["address"], cpus=options.cpus, object_store_bytes=options.object_store_bytes
            )
    elif nodes > 1:
        raise Invalid("nodes can be added only to a Ray cluster that was started here")


def down(data_dir: Path) -> dict[str, Any]:
    """End the cluster of a data folder: Sluice's own processes first, then the Ray nodes that `up` started."""
    if not data_dir.is_dir():
        raise NotFound(f"no cluster was started on {data_dir}")
    if (ended := standalone.down(data_dir)) is not None:
        return {"ended": ended}
    with claimed(data_dir):
        state = read_state(data_dir)
        if state is None:
            raise NotFound(f"no cluster was started on {data_dir}")
        return {"ended": _end(data_dir, state)}


def _end(root: Path, state: dict[str, Any]) -> int:
    """End the processes politely where that is possible, and then by process id."""
    try:
        _stop(state)
    except Exception:  # an interrupt that meets the import of Ray halfway leaves a library that can do nothing
        logger.debug("the cluster could not be ended politely", exc_info=True)
    finally:
        ended = _forget(root, state)
    return ended


def _stop(state: dict[str, Any]) -> None:
    import ray

    if state["address"] and answers(state["address"]):
        # A cluster that lets nobody in is ended all the same: by process id, like one that does not answer.
        with contextlib.suppress(SluiceError):
            join(str(state["address"]), token_of(state))
            stop_hosts()
    ray.shutdown()


def _forget(data_dir: Path, state: dict[str, Any]) -> int:
    """End the remaining processes of a session and remove its traces; the data stays."""
    ended = 0
    if state.get("session"):
        ended = stop_session(state["session"])
        shutil.rmtree(state["session"], ignore_errors=True)
    for trace in (STATE_FILE, DOOR_FILE):
        (data_dir / trace).unlink(missing_ok=True)
    return ended
