"""A client of etcd: its JSON gateway over HTTP/1.1, as much of it as a quorum store needs.

    call("/v3/kv/txn", Transaction) -> one of the members -> TransactionReply
         no connection to a member            -> the next member
         sent, and no answer or a wrong one   -> EtcdFailed: the outcome is unknown

Bytes are base64 in JSON, and numbers of 64 bits are strings; msgspec reads both as they are meant.
Source: etcd 3.4 to 3.6 ``rpc.proto``, ``kv.proto``.
"""

import asyncio
import ssl
from typing import TypeVar

import h11
import msgspec

from reput.controller import limits
from reput.controller.etcd_address import Endpoint
from reput.errors import ReputError, excerpt

CONNECTIONS_MAX = 8
"""Requests at the same time; others wait."""
_READ_BYTES = 64 * 1024
_OK = 200
_SHOWN = 120

# --- messages -------------------------------------------------------------------------------------


class ReplyHeader(msgspec.Struct):
    """Part of each reply."""

    revision: int = 0
    """Revision of the whole etcd."""


class KeyValue(msgspec.Struct):
    """A key with its value."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class Range(msgspec.Struct, omit_defaults=True):
    """Reads a key, or all keys from ``key`` up to ``range_end``."""

    key: bytes
    range_end: bytes = b""


class RangeReply(msgspec.Struct):
    """Reply to ``Range``."""

    header: ReplyHeader | None = None
    kvs: list[KeyValue] = []


class Put(msgspec.Struct, omit_defaults=True):
    """Replaces a value; the key lives as long as its lease."""

    key: bytes
    value: bytes
    lease: int = 0


class Delete(msgspec.Struct):
    """Deletes a key."""

    key: bytes


class Operation(msgspec.Struct, omit_defaults=True):
    """A step of a transaction: one of these."""

    request_range: Range | None = None
    request_put: Put | None = None
    request_delete_range: Delete | None = None


class Compare(msgspec.Struct, omit_defaults=True):
    """A condition: a number of a key is equal to a value; it is 0 if the key does not exist."""

    key: bytes
    target: str
    """``MOD`` or ``CREATE``."""
    mod_revision: int | None = None
    create_revision: int | None = None


class Transaction(msgspec.Struct, omit_defaults=True):
    """If all conditions hold, the steps ``success``, else ``failure``."""

    compare: list[Compare] = []
    success: list[Operation] = []
    failure: list[Operation] = []


class OperationReply(msgspec.Struct):
    """The result of a step."""

    response_range: RangeReply | None = None


class TransactionReply(msgspec.Struct):
    """Reply to ``Transaction``."""

    header: ReplyHeader
    succeeded: bool = False
    responses: list[OperationReply] = []


class LeaseGrant(msgspec.Struct):
    """Asks for a lease of some seconds."""

    ttl: int = msgspec.field(name="TTL")


class LeaseReply(msgspec.Struct):
    """A lease, and its time to live in seconds; 0: it has expired."""

    id: int = msgspec.field(name="ID")
    ttl: int = msgspec.field(name="TTL", default=0)


class LeaseId(msgspec.Struct):
    """Names a lease."""

    id: int = msgspec.field(name="ID")


class KeepAliveReply(msgspec.Struct):
    """Reply to a renewal, which is a stream with one part: one of these."""

    result: LeaseReply | None = None
    error: dict[str, object] | None = None


class Empty(msgspec.Struct):
    """Reply without anything of interest."""


T = TypeVar("T")


def of_create(key: bytes, revision: int) -> Compare:
    """Return the condition that a key was created with a revision; 0: does not exist."""
    return Compare(key, "CREATE", create_revision=revision)


def of_change(key: bytes, revision: int) -> Compare:
    """Return the condition that a key was changed last with a revision; 0: does not exist."""
    return Compare(key, "MOD", mod_revision=revision)


# --- the client -----------------------------------------------------------------------------------


class EtcdFailed(ReputError):
    """etcd did not do what it was asked for, as far as is known: the outcome is unknown."""


class NotAnEtcd(EtcdFailed):
    """What answers is no etcd, or not one that has the JSON gateway of 3.4 and later."""


class _Unsent(Exception):
    """The request has not been sent."""


class EtcdClient:
    """Asks the members of an etcd.

    Args:
        endpoints: The members; one that fails is asked last.
        tls: Makes TLS connections; None: plain ones.
    """

    def __init__(self, endpoints: tuple[Endpoint, ...], tls: ssl.SSLContext | None = None) -> None:
        self._endpoints = list(endpoints)
        self._tls = tls
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)

    def __str__(self) -> str:
        """Return the URLs of the members."""
        return ",".join(map(str, sorted(self._endpoints)))

    async def call(self, path: str, message: object, reply_type: type[T], timeout_s: float) -> T:
        """Return the reply to a request.

        Args:
            path: Path of the function, as ``/v3/kv/txn``.
            message: The request.
            reply_type: Type of the reply.
            timeout_s: Time for everything, with connecting.

        Raises:
            NotAnEtcd: The answer is not one of etcd.
            EtcdFailed: There is no answer, or etcd refuses; a change is done, or not.
        """
        body = msgspec.json.encode(message)
        endpoint, problems = self._endpoints[0], []
        try:
            async with asyncio.timeout(timeout_s), self._room:
                for endpoint in list(self._endpoints):
                    try:
                        connection = await self._connection(endpoint, timeout_s)
                    except _Unsent as error:
                        problems.append(f"{endpoint}: {error}")
                        self._demote(endpoint)
                        continue
                    status, answer = await self._ask(connection, path, body)
                    return _decoded(endpoint, path, status, answer, reply_type)
        except h11.ProtocolError as error:
            raise NotAnEtcd(f"{endpoint} does not speak HTTP as etcd does: {error}") from error
        except TimeoutError:
            problems.append(f"{endpoint} has not answered {path} within {timeout_s:.1f} s")
        except (OSError, EOFError) as error:
            problems.append(f"{endpoint} has not answered {path}: {error}")
        self._demote(endpoint)
        raise EtcdFailed("; ".join(problems))

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()

    def _demote(self, endpoint: Endpoint) -> None:
        """Ask a member last, and close its connections."""
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)
        for connection in [idle for idle in self._idle if idle.endpoint == endpoint]:
            self._idle.remove(connection)
            connection.close()

    async def _connection(self, endpoint: Endpoint, timeout_s: float) -> "_Connection":
        """Return an idle connection, or a new one. Raises ``_Unsent``."""
        for connection in [idle for idle in self._idle if idle.endpoint == endpoint]:
            self._idle.remove(connection)
            if connection.is_open:
                return connection
            connection.close()
        return await _connected(endpoint, self._tls, timeout_s / len(self._endpoints))

    async def _ask(self, connection: "_Connection", path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of an answer, and keep the connection if it can be used again."""
        is_reusable = False
        try:
            status, answer, is_reusable = await connection.ask(path, body)
            return status, answer
        finally:
            if is_reusable:
                self._idle.append(connection)
            else:
                connection.close()


async def _connected(
    endpoint: Endpoint, tls: ssl.SSLContext | None, timeout_s: float
) -> "_Connection":
    """Return a new connection. Raises ``_Unsent``."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls)
    except TimeoutError as error:
        raise _Unsent(f"no connection within {timeout_s:.1f} s") from error
    except (OSError, ssl.SSLError) as error:
        raise _Unsent(error.strerror or str(error)) from error
    return _Connection(endpoint, reader, writer)


class _Connection:
    """A connection that serves one request at a time."""

    def __init__(
        self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    @property
    def is_open(self) -> bool:
        """True if the member has not closed it, as far as is known."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()

    async def ask(self, path: str, body: bytes) -> tuple[int, bytes, bool]:
        """Return status and body of an answer, and whether another request may follow.

        Raises:
            LimitExceeded: The body is too large.
            OSError, EOFError, h11.ProtocolError: There is no answer.
        """
        request = h11.Request(
            method="POST",
            target=path,
            headers=[
                ("Host", f"{self.endpoint.host}:{self.endpoint.port}"),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
            ],
        )
        parts = [request, h11.Data(data=body), h11.EndOfMessage()]
        self._writer.write(b"".join(self._http.send(part) or b"" for part in parts))
        status, answer = 0, bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise EOFError("the connection was closed")
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                answer += event.data
                limits.CONTROLLER_ETCD_BYTES.check(len(answer), str(self.endpoint))
            elif isinstance(event, h11.EndOfMessage):
                break
            elif not isinstance(event, h11.InformationalResponse):
                raise EOFError("the connection was closed")
        is_reusable = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if is_reusable:
            self._http.start_next_cycle()
        return status, bytes(answer), is_reusable


class _Error(msgspec.Struct):
    """What etcd answers if it refuses."""

    code: int
    message: str = ""
    error: str = ""


def _decoded(endpoint: Endpoint, path: str, status: int, answer: bytes, reply_type: type[T]) -> T:
    """Return a reply. Raises ``EtcdFailed``."""
    try:
        if status == _OK:
            return msgspec.json.decode(answer, type=reply_type, strict=False)
        error = msgspec.json.decode(answer, type=_Error)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        shown = excerpt(repr(answer.decode("utf-8", "replace")), _SHOWN)
        raise NotAnEtcd(
            f"{endpoint} has answered {path} with {status} and {shown}: "
            "this is no etcd 3.4 or later"
        ) from problem
    raise EtcdFailed(f"{endpoint} refuses {path}: {error.message or error.error}")
