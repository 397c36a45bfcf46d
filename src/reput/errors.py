"""Every exception that reput raises on purpose, by the caller's possible reaction.

    ReputError
    ├── CorruptRecord        bytes of a store are damaged; with place and reason
    ├── StoreUnavailable     a folder cannot be read as a store (not one, running, DLedger)
    ├── NotInStore           the store is readable, but has no such message
    ├── WriteFailed          the system failed to write or sync; new data is not durable
    │   ├── DiskFull         no space left: free some, or add a folder, and retry
    │   └── OutOfResources   no descriptor or memory left: retry
    ├── InvalidOption        a setting or argument is wrong; with its allowed values
    ├── InvalidHeader        a field of a request or reply is missing or wrong
    ├── InvalidBody          a JSON body is not as expected
    ├── InvalidProtobuf      bytes are no message of protobuf, or values are not one's fields
    ├── RequestRefused       a request cannot be served; with a response code
    │   └── LimitExceeded    it exceeds a limit; with the limit's name
    └── RemotingError        communication between two processes failed
        ├── NotAFrame        bytes that are not a frame: the connection is closed
        ├── Http2Error       frames against the rules of HTTP/2: a stream or connection is closed
        ├── CallFailed       a gRPC call fails; with its status
        ├── TlsFailed        no common secret, or bytes that are not encrypted by it; the same
        ├── Unreachable      no connection could be opened
        ├── ConnectionLost   it was closed before the reply came
        ├── RequestTimedOut  no reply came in time
        ├── Overloaded       too many requests wait for a reply
        └── BrokerError         the reply is an error; with its code and remark
            └── AccessRefused    credentials or permissions do not suffice; with the reason

Bugs are assertions and never one of these. ``retriable`` means that a retry, perhaps with another
broker, may succeed; ``refresh_route`` that the route must be fetched again first.
"""

import re
from collections.abc import Iterable, Sequence

EXCERPT_LETTERS = 200
"""Characters of foreign text that an error repeats."""
V5_0_0 = 413
"""Number of RocketMQ's version 5.0.0 in commands."""
REMARK_LETTERS = 1_000
"""Characters of an error in a reply or a line of the log."""


def excerpt(text: str, letters: int = EXCERPT_LETTERS) -> str:
    """Shorten a long text for an error message."""
    if len(text) <= letters:
        return text
    return f"{text[:letters]}... ({len(text)} characters)"


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a misspelt one, or None."""
    import difflib  # imported late, as every start would wait for it

    by_letters = {known_name.lower(): known_name for known_name in known}
    close = difflib.get_close_matches(name.lower(), by_letters, n=1, cutoff=0.8)
    return by_letters[close[0]] if close else None


def one_of(name: str, known: Iterable[str], shown_count: int = 100) -> str:
    """Return known names as a phrase, which asks for the one most similar to a misspelt name."""
    names = list(known)
    similar = similar_name(name, names)
    shown = ", ".join(names[:shown_count]) + (", ..." if len(names) > shown_count else "")
    return f"{shown}; did you mean {similar!r}?" if similar else shown


class ReputError(Exception):
    """Base of all errors that reput raises on purpose."""

    retriable = False
    """True if the same request may succeed later, or with another broker."""
    refresh_route = False
    """True if the known route of the topic is outdated."""
    response_code = 1
    """Response code for a peer whose request fails with this error: SYSTEM_ERROR."""
    reply_fields: dict[str, str] | None = None
    """Further fields of that response, by name."""

    def code_for(self, version: int) -> int:
        """Return the response code for a peer that has this version of RocketMQ."""
        return self.response_code


class CorruptRecord(ReputError):
    """Bytes that should be a record, a unit or an entry are not.

    Args:
        reason: The problem, as a sentence without the place.
        physical_offset: Commit log offset of the damage, if it has one.
        file: File that contains it, if known.
        length: Bytes up to the next readable record, if known.
    """

    def __init__(
        self,
        reason: str,
        *,
        physical_offset: int | None = None,
        file: str | None = None,
        length: int | None = None,
    ) -> None:
        self.reason = reason
        self.physical_offset = physical_offset
        self.file = file
        self.length = length
        place = []
        if file is not None:
            place.append(file)
        if physical_offset is not None:
            place.append(f"physical offset {physical_offset}")
        if length is not None:
            place.append(f"{length} bytes")
        super().__init__(f"{', '.join(place)}: {reason}" if place else reason)


class StoreUnavailable(ReputError):
    """The folder cannot be read as a RocketMQ store; the text contains the reason and a remedy."""


class NotInStore(ReputError):
    """The store has nothing at this offset, id or queue."""


class WriteFailed(ReputError):
    """The operating system failed to write, sync or create a file.

    Args:
        path: The file or folder.
        reason: The failed operation, and the system's message.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class DiskFull(WriteFailed):
    """The file system, a quota or a limit of the process has no space for a file's bytes.

    Args:
        path: The file.
        asked_bytes: Number of bytes that were requested.
        reason: The system's message.
    """

    def __init__(self, path: str, asked_bytes: int, reason: str) -> None:
        self.asked_bytes = asked_bytes
        super().__init__(path, f"no room for {asked_bytes} bytes: {reason}")


class OutOfResources(WriteFailed):
    """The process or the machine has no descriptor, or no memory, left to open a file or folder.

    The file itself was not touched, so nothing is known to be lost: a retry may succeed as soon as
    others are released.
    """


class InvalidOption(ReputError):
    """An option or argument has a value that is not allowed.

    Args:
        name: The option as given.
        value: The value as given.
        allowed: The allowed values, as a phrase.
    """

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(f"option {excerpt(name)!r} is {excerpt(repr(value))}; allowed: {allowed}")


class InvalidOptions(InvalidOption):
    """Several options have values that are not allowed.

    Args:
        problems: All of them, at least two; the first one is this error's own.
    """

    def __init__(self, problems: Sequence[InvalidOption]) -> None:
        first = problems[0]
        super().__init__(first.name, first.value, first.allowed)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        """Return all problems as one line."""
        return "; ".join(f"{problem}" for problem in self.problems)


class InvalidHeader(ReputError):
    """A header field of a request or reply is missing or wrong; the text contains which and why."""


class InvalidBody(ReputError):
    """The body of a request or reply is not the expected JSON; the text contains the position."""


class InvalidProtobuf(ReputError):
    """Bytes or values are no message of protobuf; the text contains message, field and position."""


class RequestRefused(ReputError):
    """A request cannot be served.

    Args:
        code: The response code.
        remark: The reason, as a sentence.
        old_code: The response code for peers before 5.0, where brokers of 4.9 have another.
    """

    def __init__(self, code: int, remark: str, *, old_code: int | None = None) -> None:
        self.response_code = code
        self._old_code = code if old_code is None else old_code
        super().__init__(remark)

    def code_for(self, version: int) -> int:
        """Return the response code for a peer that has this version of RocketMQ."""
        return self.response_code if version >= V5_0_0 else self._old_code


class LimitExceeded(RequestRefused):
    """A request or a client exceeds a limit (``reput.limits``).

    Args:
        limit: The name of the limit.
        remark: The exceeded quantity and its maximum, as a sentence.
        code: The response code.
        old_code: The response code for peers before 5.0, where brokers of 4.9 have another.
    """

    def __init__(self, limit: str, remark: str, code: int, *, old_code: int | None = None) -> None:
        self.limit = limit
        super().__init__(code, remark, old_code=old_code)


class RemotingError(ReputError):
    """A failure of communication between two processes."""


class NotAFrame(RemotingError):
    """Bytes are not a frame of the protocol: later bytes cannot be decoded either."""


class Http2Error(RemotingError):
    """A peer breaks a rule of HTTP/2, or exceeds a limit.

    Args:
        code: The error code of RST_STREAM or GOAWAY.
        reason: The broken rule.
        stream_id: The stream that is reset; 0: the connection is closed.
        limit: Name of an exceeded limit.
    """

    def __init__(self, code: int, reason: str, stream_id: int = 0, limit: str = "") -> None:
        self.code = code
        self.reason = reason
        self.stream_id = stream_id
        self.limit = limit
        super().__init__(reason)


class CallFailed(RemotingError):
    """A gRPC call fails.

    Args:
        status: Status of gRPC, such as 12 for UNIMPLEMENTED.
        reason: The message for the client.
    """

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class TlsFailed(RemotingError):
    """TLS cannot be agreed on, or was broken; the text contains OpenSSL's reason."""


class NotAProxyHeader(RemotingError):
    """A connection of a proxy does not begin with a header of the PROXY protocol."""


class Unreachable(RemotingError):
    """No connection could be opened.

    Args:
        address: Remote address, ``host:port``.
        reason: The system's message.
    """

    retriable = True
    refresh_route = True

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"cannot connect to {address}: {reason}")


class ConnectionLost(RemotingError):
    """The connection was closed before the reply: the request may have been served.

    Args:
        address: Remote address, ``host:port``.
        reason: Which side closed it, if known.
    """

    retriable = True
    refresh_route = True

    def __init__(self, address: str, reason: str = "closed by the other side") -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"connection to {address} lost: {reason}")


class RequestTimedOut(RemotingError):
    """No reply came in time: the request may have been served.

    Args:
        address: Remote address.
        code: The request code.
        timeout_ms: The timeout, in ms.
    """

    retriable = True

    def __init__(self, address: str, code: int, timeout_ms: int) -> None:
        self.address = address
        self.code = code
        self.timeout_ms = timeout_ms
        super().__init__(f"{address} did not answer request {code} within {timeout_ms} ms")


class Overloaded(RemotingError):
    """Too many requests wait for a reply; the text contains the limit."""

    retriable = True
    response_code = 2


class BrokerError(RemotingError):
    """A reply whose code is not success.

    Args:
        code: The response code.
        remark: The remark of the reply.
        address: Remote address.
    """

    _RETRIABLE = frozenset({1, 2, 14, 16, 17, 204, 205, 215, 1500})
    _REFRESH = frozenset({16, 17})

    def __init__(self, code: int, remark: str | None, address: str = "") -> None:
        self.response_code = code
        self.remark = remark or ""
        self.address = address
        self.retriable = code in self._RETRIABLE
        self.refresh_route = code in self._REFRESH
        place = f"{address} answers " if address else ""
        super().__init__(f"{place}code {code}: {self.remark or 'no remark'}")


class AccessRefused(BrokerError):
    """The server's access control refuses a request.

    ``response_code`` is 16 (NO_PERMISSION) also where the reply has code 1, as in access control
    1.0.

    Args:
        code: The response code of the reply.
        remark: The remark of the reply.
        address: Remote address.
        problem: The reason, as a sentence.
    """

    def __init__(self, code: int, remark: str, address: str, problem: str) -> None:
        super().__init__(16, remark, address)
        self.problem = problem
        self.retriable = self.refresh_route = False
        place = address or "the server"
        self.args = (f"{place} refuses access: {problem} (code {code}: {remark})",)


def broker_error(code: int, remark: str | None, address: str = "") -> BrokerError:
    """Return the error of a reply whose code is not success: ``AccessRefused`` if it is one."""
    text = remark or ""
    if code in _ACCESS_CODES:
        for pattern, problem in _ACCESS_PROBLEMS:
            match = pattern.search(text)
            if match is not None:
                plain = _JAVA_PLACE.sub("", _JAVA_CLASS.sub("", text))
                return AccessRefused(code, plain, address, match.expand(problem))
    return BrokerError(code, remark, address)


_ACCESS_CODES = frozenset({1, 16})
_JAVA_CLASS = re.compile(r"^(?:[\w.]+\.)?\w+Exception: ")
_JAVA_PLACE = re.compile(r", (?:org\.apache|java)\.[\w.$]+\([^()]*\)$")
_ACCESS_PROBLEMS = tuple(
    (re.compile(pattern), problem)
    for pattern, problem in (
        (
            r"No accessKey is configured|username cannot be null",
            "it asks for credentials, and this client has none (accessKey, secretKey)",
        ),
        (
            r"No acl config for ([^,\s]+)|User:([^,\s]+) (?:is )?not found",
            r"it does not know access key \1\2",
        ),
        (r"User:([^,\s]+) is disabled", r"user \1 is disabled"),
        (
            r"[Cc]heck signature failed(?: for accessKey=([^,\s]+))?",
            "the secret key is not that of the access key, or the security token is wrong",
        ),
        (
            r"No (?:default )?permission for (topic|group):([^,\s]+)",
            r"the access key has no permission for \1 \2",
        ),
        (
            r"Need admin permission for request code=(\d+), but accessKey=([^,\s]+)",
            r"request \1 is for admins, and access key \2 is none",
        ),
        (
            r"User:([^,\s]+) has no permission to access ([^,\s]+)",
            r"user \1 has no permission for \2",
        ),
    )
)
"""Remarks of refusals, and the problem.

Source: rocketmq 4.9.7 ``PlainPermissionManager``; 5.5.0 ``DefaultAuthenticationHandler``,
``AclAuthorizationHandler``.
"""
