"""The S3 servers of the tests listen on the loopback alone."""

from __future__ import annotations

import psutil
import pytest

from tests.s3server import S3Server, s3_server  # noqa: F401 (fixture)


@pytest.mark.s3
def test_the_server_listens_on_the_loopback_alone(s3_server: S3Server) -> None:  # noqa: F811
    """With everything that it offers besides S3."""
    assert s3_server.process is not None
    processes = [psutil.Process(s3_server.process), *psutil.Process(s3_server.process).children(recursive=True)]
    found = [
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
        for process in processes
        for each in process.net_connections("inet")
        if each.status in ("LISTEN", "NONE")
    ]
    assert found
    assert {host for host, _ in found} <= {"127.0.0.1", "::1"}, found
