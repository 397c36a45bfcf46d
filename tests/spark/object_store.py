"""An S3-compatible server for tests: moto's, in a thread, with a log of its requests.

with ObjectStore() as server:
    server.upload(store, "bucket/store")
    StoreReader.open(server.uri("bucket/store"))
    assert len(server.requests) < 20
"""

import contextlib
import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote
from urllib.request import Request, urlopen

_TIMEOUT_S = 60
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "reader",
    "AWS_SECRET_ACCESS_KEY": "not a secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment for signed requests: set before Spark starts, which passes it to its workers."""


class StoreRequest(NamedTuple):
    """One request."""

    method: str
    path: str
    query: str
    range: str | None


class ObjectStore:
    """The server, at most one in a process; ``requests`` may be cleared."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from moto.server import DomainDispatcherApplication, create_backend_app
            from werkzeug.serving import make_server
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.requests: list[StoreRequest] = []
        self.address = f"127.0.0.1:{self._server.server_port}"

    def _serve(self, asked: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.requests.append(
            StoreRequest(
                asked["REQUEST_METHOD"],
                asked["PATH_INFO"],
                asked["QUERY_STRING"],
                asked.get("HTTP_RANGE"),
            )
        )
        answer: Iterable[bytes] = self._application(asked, start)
        return answer

    def __enter__(self) -> "ObjectStore":
        self._thread.start()
        self._send("POST", "moto-api/reset")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _send(self, method: str, path: str, data: bytes | None = None) -> None:
        kind = {"Content-Type": "application/octet-stream"}  # or moto parses it as a form
        asked = Request(f"http://{self.address}/{path}", data, kind, method=method)
        with urlopen(asked, timeout=_TIMEOUT_S) as answer:
            answer.read()

    def make_bucket(self, name: str) -> None:
        self._send("PUT", name)

    def upload(self, folder: Path, path: str) -> None:
        """Upload the files below a folder into an existing bucket."""
        for file in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
            name = quote(f"{path}/{file.relative_to(folder)}")
            self._send("PUT", name, file.read_bytes())

    @contextlib.contextmanager
    def demanding_credentials(self) -> Iterator[None]:
        """Refuse all requests within this context, which have no credentials issued by moto."""
        self._send("POST", "moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self._send("POST", "moto-api/reset-auth", b"inf")

    def uri(self, path: str) -> str:
        """Return the URI of a path for ``reput``."""
        return f"s3://{path}?endpoint_override={self.address}&scheme=http&region=us-east-1"
