"""A server that replies to pulls as a test says, on one connection after the other."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from reput.format import command as commands
from reput.format.command import LENGTH, Command

_DEADLINE_S = 30.0
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
        self._listener.settimeout(_DEADLINE_S)
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
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(_DEADLINE_S)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(_DEADLINE_S)
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
