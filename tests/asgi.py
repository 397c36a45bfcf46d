"""A caller of ASGI applications: requests over HTTP without a socket."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message


@dataclass
class Answer:
    """A response."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def data(self) -> Any:
        """The body, from JSON."""
        return json.loads(self.body)

    def header(self, name: str) -> str:
        """Return the values of a header, joined; empty without it."""
        return ", ".join(value for key, value in self.headers if key == name.lower())


async def call(
    app: ASGIApp,
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
    client: str = "127.0.0.1",
) -> Answer:
    """Send a request and return the response.

    Args:
        app: The application.
        url: Path and query.
        method: Method of HTTP.
        headers: Headers; ``host`` is 127.0.0.1:8080 without one.
        form: Fields of a form, the body of a POST.
        client: Address of the client.
    """
    path, _, query = url.partition("?")
    body = urlencode(form).encode() if form is not None else b""
    sent = {"host": "127.0.0.1:8080", **(headers or {})}
    if form is not None:
        sent["content-type"] = "application/x-www-form-urlencoded"
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "client": (client, 40000),
        "server": ("127.0.0.1", 8080),
    }
    answer = Answer()

    requests = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for message in requests:
            return message
        await asyncio.Event().wait()  # the client stays connected
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
        else:
            answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return answer
