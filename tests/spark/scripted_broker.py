"""A server that replies to pulls as a test says, on one connection after the other."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from reput.format import command as commands
from reput.format.command import LENGTH, Command

_END_SECONDS = 30.0
"""Longest time until the thread ends, in s. The server itself waits for ever: Spark may be slow."""
Replies = Callable[[Sequence[Command]], Sequence[bytes] | None]
"""Returns frames in reply to requests that arrived together; None closes the connection."""


class ScriptedBroker:
    """The server. Context manager.

    Args:
        replies: Its replies.
    """

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for waiting in (self._listener, self._connection):
            if waiting is not None:
                with contextlib.suppress(OSError):  # it is closed already
                    waiting.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_SECONDS)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connection = connection
            with connection:
                for requests in _requests(connection):
                    frames = self._replies(requests)
                    if frames is None:
                        break
                    connection.sendall(b"".join(frames))


def _requests(connection: socket.socket) -> Iterator[list[Command]]:
    data = b""
    while True:
        try:
            part = connection.recv(1 << 16)
        except OSError:
            return
        if not part:
            return
        data += part
        requests = []
        while len(data) >= LENGTH.size and len(data) >= LENGTH.size + LENGTH.unpack_from(data)[0]:
            end = LENGTH.size + LENGTH.unpack_from(data)[0]
            requests.append(commands.decode(data[LENGTH.size : end]))
            data = data[end:]
        if requests:
            yield requests
