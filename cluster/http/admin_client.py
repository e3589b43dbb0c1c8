"""A caller of the admin HTTP interface: the port and the token come from the data folder of a running cluster."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from sluice.cluster.base.version import COMMAND
from sluice.cluster.http.guard import PORT_FILE, STATUS, TOKEN_FILE
from sluice.storage.errors import Invalid, NotFound, SluiceError, Unavailable

SILENCE_SECONDS = 30


class AdminClient:
    """The admin HTTP server of the cluster on a data folder.

    token: credentials of a role, in place of the operator's. Raises NotFound if no cluster has left its port there.
    """

    def __init__(self, data_dir: Path, token: str | None = None) -> None:
        try:
            self.port = int((data_dir / PORT_FILE).read_text())
            self.token = token or (data_dir / TOKEN_FILE).read_text().strip()
        except (OSError, ValueError):
            raise NotFound(f"no cluster runs on {data_dir.absolute()}; start one with `{COMMAND} up`") from None

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of the answer, None for an empty one. body: sent as JSON, unless it is None.

        Raises the error that the status stands for, and Unavailable if no cluster answers.
        """
        answer = self.open(path, method, None if body is None else json.dumps(body))
        try:
            text = answer.read()
            return json.loads(text) if text else None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._away(error) from None

    def open(self, path: str, method: str = "GET", body: str | None = None) -> http.client.HTTPResponse:
        """Return an answer that is to be read. Raises as `ask`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SILENCE_SECONDS)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._away(error) from None
        if answer.status >= 300:
            raise self._refused(answer)
        return answer

    def _refused(self, answer: http.client.HTTPResponse) -> SluiceError:
        try:
            reason = str(json.loads(answer.read()).get("reason", answer.reason))
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            return self._away(error)  # another program may have the port by now
        return next((kind for kind, status in STATUS if status == answer.status), Invalid)(reason)

    def _away(self, error: Exception) -> Unavailable:
        return Unavailable(f"no cluster answers at 127.0.0.1:{self.port} ({error}); start it again with `{COMMAND} up`")
