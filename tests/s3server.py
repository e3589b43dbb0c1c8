"""A real S3 server process for tests, on a free loopback port: MinIO if it is installed, else ministack.

The tests look for MinIO on PATH, in the variable SLUICE_MINIO and in `.cache/bin` of the repository
(deploy/s3/README.md says how to build it there), and use it over its API alone. ministack comes with the development
dependencies. It is an emulator, accepts any credentials, and keeps objects across a kill only if they are written once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.kit.machines import Machine

ACCESS_KEY = "sluice-test"
SECRET_KEY = "sluice-test-secret"
START_SECONDS = 60
_ROOT = Path(__file__).resolve().parent.parent


def minio_binary() -> str | None:
    """Return the path of MinIO's binary, or None."""
    named = os.environ.get("SLUICE_MINIO")
    if named:
        return named
    cached = _ROOT / ".cache" / "bin" / "minio"
    return shutil.which("minio") or (str(cached) if os.access(cached, os.X_OK) else None)


def ministack_binary() -> str | None:
    """Return the path of ministack, or None."""
    beside = Path(sys.executable).parent / "ministack"
    return str(beside) if beside.exists() else shutil.which("ministack")


def available_kinds() -> list[str]:
    """Return the servers that can be started here, best first."""
    return [kind for kind, path in (("minio", minio_binary()), ("ministack", ministack_binary())) if path]


class S3Server:
    """A server process over one folder. It can be killed and started again with the same port and data."""

    def __init__(self, kind: str, folder: Path, machine: Machine | None = None) -> None:
        """machine: where it runs and listens; without one here, on the loopback."""
        self.kind = kind
        self.folder = folder
        self._machine = machine
        self._host = "127.0.0.1" if machine is None else machine.address
        self.port = _free_port()
        self.endpoint = f"http://{self._host}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it answers. Raises RuntimeError with its last output."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command, extra = self._command()
        if self._machine is not None:
            command = self._machine.here(command)
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | extra, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.kind} did not start:\n{(self.folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.05)

    @property
    def process(self) -> int | None:
        """The id of the process, None while there is none."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """Send SIGKILL, which leaves no chance to write anything. Fine if the server does not run."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Send SIGSTOP: the server keeps its connections and answers nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Send SIGCONT."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def client(self) -> Any:
        """Return a plain boto3 client with the server's credentials."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 5, "mode": "standard"}, s3={"addressing_style": "path"}),
        )

    def make_bucket(self, name: str) -> str:
        """Create a bucket, or do nothing if it is there."""
        client = self.client()
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=name)
        return name

    def _command(self) -> tuple[list[str], dict[str, str]]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        if self.kind == "minio":
            binary = minio_binary()
            assert binary is not None
            extra = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off"}
            extra |= {"MINIO_UPDATE": "off", "MINIO_CALLHOME_ENABLE": "off"}
            return [binary, "server", "--quiet", "--address", f"{self._host}:{self.port}", str(data)], extra
        binary = ministack_binary()
        assert binary is not None
        extra = {"SERVICES": "s3", "S3_PERSIST": "1", "PERSIST_STATE": "1", "BIND_HOST": self._host}
        # What it offers besides would listen on all interfaces, whatever BIND_HOST says.
        extra |= {"IOT_MTLS_ENABLED": "0", "SFTP_ENABLED": "0", "SFTP_HOST": self._host}
        extra |= {"GATEWAY_PORT": str(self.port), "S3_DATA_DIR": str(data), "STATE_DIR": str(self.folder / "state")}
        return [binary], extra

    def _answers(self) -> bool:
        if self._machine is not None:
            program = f"import socket; socket.create_connection(({self._host!r}, {self.port}), 2)"
            return self._machine.try_to_run([sys.executable, "-c", program])[0] == 0
        path = "/minio/health/ready" if self.kind == "minio" else "/_ministack/health"
        try:
            with urllib.request.urlopen(self.endpoint + path, timeout=2) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return self.kind != "minio" and error.code < 500
        except OSError:
            return False


@pytest.fixture(scope="session", params=available_kinds() or ["none"])
def s3_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server of each kind that is installed, once per session."""
    if request.param == "none":
        pytest.skip("neither MinIO nor ministack is installed")
    server = S3Server(request.param, tmp_path_factory.mktemp(request.param))
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give boto3's own chain the server's credentials, and hide all others of this machine."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
