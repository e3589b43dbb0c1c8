"""A state file is compared with the machine before its address is believed."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from sluice.cluster.launch.discovery import find
from sluice.cluster.node.folder import STATE_FILE


def test_a_cluster_inside_a_ray_that_ended_is_not_found(tmp_path: Path) -> None:
    """Another program may have its port; a second run of the same program waited for it, or failed for ever."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        state = {"address": address, "session": "", "token_file": ""}
        (tmp_path / STATE_FILE).write_text(json.dumps(state | {"inside": "/tmp/ray/session_that_has_ended"}))
        assert find(tmp_path) is None
        (tmp_path / STATE_FILE).write_text(json.dumps(state))
        assert find(tmp_path) == (address, None)
