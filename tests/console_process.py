"""``reput console`` as a child process of a test.

with ConsoleProcess(namesrv, folder, "--allow", "operate") as console:
    ...  # any client of HTTP, at console.url
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from console_forms import hidden_fields

START_S = 60.0
STOP_S = 20.0


class ConsoleProcess:
    """A console on a free port of loopback, running as a process.

    Args:
        namesrv: Address of a name server.
        folder: Folder for its audit log, created if missing.
        options: Further options of the command.

    Raises:
        AssertionError: It ended while it started, or takes too long; the text has its output.
    """

    def __init__(self, namesrv: str, folder: Path, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.audit = folder / "audit.jsonl"
        """Its audit log."""
        self._log = folder / "console.log"
        arguments = ["-n", namesrv, "--listen", "127.0.0.1:0", "--audit", str(self.audit)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reput", "console", *arguments, *options],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            self.url = self._read_url()
            """URL of its first page; ends with ``/``."""
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def _read_url(self) -> str:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        text, deadline = b"", time.monotonic() + START_S
        while not text.endswith(b"\n"):
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([descriptor], [], [], left_s)
            data = os.read(descriptor, 1000) if ready else b""
            assert data, f"the console does not start: {text!r} {self._log.read_text()}"
            text += data
        return text.decode().split("console: ")[1].split()[0]

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of its audit log."""
        if not self.audit.exists():
            return []
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return status and body of a page.

        Args:
            path: Below the URL of the console.
            **headers: Headers of the request.
        """
        return self._answer(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path: str, fields: dict[str, str]) -> tuple[int, str]:
        """Send a form, with the token of a page, and return status and body of the answer.

        Args:
            path: Below the URL of the console.
            fields: Fields of the form.
        """
        token = hidden_fields(self.get("dlq")[1])["csrf"]
        data = urlencode({**fields, "csrf": token}).encode()
        headers = {"Sec-Fetch-Site": "same-origin"}
        return self._answer(urllib.request.Request(self.url + path, data, headers))

    @staticmethod
    def _answer(request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=START_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def json(self, path: str, login: tuple[str, str] | None = None) -> Any:
        """Return the data of a page, which is there.

        Args:
            path: Below the URL of the console.
            login: Name and password of a user; a console without users ignores them.
        """
        headers = {"Accept": "application/json"}
        if login is not None:
            headers["Authorization"] = f"Basic {b64encode(':'.join(login).encode()).decode()}"
        status, text = self.get(path, **headers)
        assert status == 200, text
        return json.loads(text)

    def close(self) -> None:
        """Stop it, and wait for its end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
