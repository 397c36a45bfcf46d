"""A blocking connection to a broker for requests that are not the load itself."""

import itertools
import socket
from types import TracebackType
from typing import Self

from reput.cli import load_frames as frames
from reput.format import command
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import LENGTH, Command

TIMEOUT_S = 60.0


class Refused(RuntimeError):
    """A reply whose code is not success."""

    def __init__(self, code: int, remark: str | None) -> None:
        self.code = code
        super().__init__(f"code {code}: {remark}")


class BrokerConnection:
    """A connection to a broker.

    Args:
        address: Address of the broker, ``host:port``.
        timeout_s: Timeout of connecting and of each read.
    """

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self.socket.makefile("rb")
        self._opaques = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Write requests."""
        self.socket.sendall(data)

    def opaques(self, count: int) -> list[int]:
        """Return N unused opaques."""
        return list(itertools.islice(self._opaques, count))

    def reply(self) -> Command:
        """Return the next reply; requests of the broker are skipped.

        Raises:
            Refused: Its code is not success.
        """
        while True:
            head = self._stream.read(LENGTH.size)
            if len(head) < LENGTH.size:
                raise ConnectionError("the broker closed the connection")
            reply = command.decode(self._stream.read(LENGTH.unpack(head)[0]))
            if not reply.is_reply:
                continue
            if reply.code != ResponseCode.SUCCESS:
                raise Refused(reply.code, reply.remark)
            return reply

    def ask(self, requests: list[bytes]) -> list[Command]:
        """Return the replies to pipelined requests, in the order of their opaques."""
        self.send(b"".join(requests))
        replies = [self.reply() for _ in requests]
        return sorted(replies, key=lambda reply: reply.opaque)


def ask(address: str, code: RequestCode, fields: dict[str, str] | None = None) -> Command:
    """Return the reply to one request on a new connection.

    Raises:
        OSError: The broker cannot be reached.
        Refused: The code of the reply is not success.
    """
    with BrokerConnection(address, timeout_s=5) as connection:
        return connection.ask([frames.request(code, fields)])[0]


def queue_end(address: str, topic: str, queue_id: int) -> int:
    """Return the offset after the last message of a queue. Raises as ``ask``."""
    fields = {"topic": topic, "queueId": str(queue_id)}
    reply = ask(address, RequestCode.GET_MAX_OFFSET, fields)
    return int((reply.ext_fields or {})["offset"])
