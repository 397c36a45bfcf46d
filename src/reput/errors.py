"""Every exception that reput raises on purpose, by what the caller may do about it.

    ReputError
    ├── CorruptRecord        bytes of a store are damaged; says where and how
    ├── StoreUnavailable     a folder cannot be read as a store (not one, running, RocksDB mode)
    ├── NotInStore           the store is fine, what was asked for is not in it
    ├── WriteFailed          the system did not write or sync, so nothing new is durable
    │   ├── DiskFull         there is no room: free some, or add a folder, and try again
    │   └── OutOfResources   no descriptor or memory was left to begin with: try again
    ├── InvalidOption        a setting or argument is wrong; says which and what is allowed
    ├── InvalidHeader        a field of a request or reply is missing or wrong
    ├── InvalidBody          a JSON body is not what it should be
    ├── RequestRefused       a request cannot be served; with the response code that says why
    │   └── LimitExceeded    it asks for more than a limit allows; with the limit's name
    └── RemotingError        what happens between two processes
        ├── NotAFrame        bytes that are no frame: the connection is closed
        ├── Unreachable      no connection could be made
        ├── ConnectionLost   it was closed while a reply was awaited
        ├── RequestTimedOut  no reply came in time
        ├── Overloaded       too many requests wait for a reply
        └── BrokerError         the reply says no; its code and remark say why

Bugs are assertions and never one of these. What a caller may do is in ``retriable`` (the same
again, perhaps elsewhere) and ``refresh_route`` (ask the name server first).
"""

EXCERPT_LETTERS = 200
"""How much of what somebody wrote an error repeats."""
REMARK_LETTERS = 1_000
"""How much of an error a reply or a line of the log has."""


def excerpt(text: str, letters: int = EXCERPT_LETTERS) -> str:
    """Return a text as an error repeats it: its beginning, where it is long."""
    if len(text) <= letters:
        return text
    return f"{text[:letters]}... ({len(text)} letters)"


class ReputError(Exception):
    """Base of all errors that reput raises on purpose."""

    retriable = False
    """Whether the same may succeed later, or with another broker."""
    refresh_route = False
    """Whether what is known of the topic's route is outdated."""
    response_code = 1
    """What a peer is told whose request ends so: SYSTEM_ERROR."""
    reply_fields: dict[str, str] | None = None
    """What it is told besides, by name."""


class CorruptRecord(ReputError):
    """Bytes that should be a record, a unit or an entry are not.

    Args:
        reason: What is wrong, as a sentence without the place.
        physical_offset: Commit log offset of the damage, where it has one.
        file: File that holds it, where known.
        length: Bytes up to the next readable record, where known.
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
    """The folder cannot be read as a RocketMQ store; the text says why and what to do."""


class NotInStore(ReputError):
    """Nothing in the store answers to this offset, id or queue."""


class WriteFailed(ReputError):
    """The operating system did not write, sync or make a file.

    Args:
        path: The file or folder.
        reason: What was tried, and what the system said.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class DiskFull(WriteFailed):
    """The file system, a quota or a limit of the process has no room for a file's bytes.

    Args:
        path: The file.
        asked_bytes: How much room was asked for.
        reason: What the system said.
    """

    def __init__(self, path: str, asked_bytes: int, reason: str) -> None:
        self.asked_bytes = asked_bytes
        super().__init__(path, f"no room for {asked_bytes} bytes: {reason}")


class OutOfResources(WriteFailed):
    """The process or the machine has no descriptor, or no memory, left to open a file or folder.

    Nothing was tried on the file itself, so nothing is known to be lost: the same may succeed as
    soon as others give some back.
    """


class InvalidOption(ReputError):
    """An option or argument has a value that is not allowed.

    Args:
        name: The option as the user wrote it.
        value: What was given.
        allowed: What would have been accepted, as a phrase.
    """

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(f"option {excerpt(name)!r} is {excerpt(repr(value))}; allowed: {allowed}")


class InvalidHeader(ReputError):
    """A header field of a request or reply is missing or wrong; the text says which and why."""


class InvalidBody(ReputError):
    """The body of a request or reply is not the JSON that it should be; the text says where."""


class RequestRefused(ReputError):
    """A request cannot be served.

    Args:
        code: The response code that says why.
        remark: Why, as a sentence.
    """

    def __init__(self, code: int, remark: str) -> None:
        self.response_code = code
        super().__init__(remark)


class LimitExceeded(RequestRefused):
    """A request or a client asks for more than a limit allows (``reput.limits``).

    Args:
        limit: The name of the limit.
        remark: What is over it, and what is allowed, as a sentence.
        code: The response code.
    """

    def __init__(self, limit: str, remark: str, code: int) -> None:
        self.limit = limit
        super().__init__(code, remark)


class RemotingError(ReputError):
    """Something went wrong between two processes."""


class NotAFrame(RemotingError):
    """Bytes are no frame of the protocol: nothing behind them can be read either."""


class Unreachable(RemotingError):
    """No connection could be made.

    Args:
        address: Whom to, ``host:port``.
        reason: What the system said.
    """

    retriable = True
    refresh_route = True

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"cannot connect to {address}: {reason}")


class ConnectionLost(RemotingError):
    """The connection was closed while a reply was awaited: the request may have been served.

    Args:
        address: Whom to, ``host:port``.
        reason: Who closed it, where known.
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
        address: Who was asked.
        code: What was asked for.
        timeout_ms: How long was waited.
    """

    retriable = True

    def __init__(self, address: str, code: int, timeout_ms: int) -> None:
        self.address = address
        self.code = code
        self.timeout_ms = timeout_ms
        super().__init__(f"{address} did not answer request {code} within {timeout_ms} ms")


class Overloaded(RemotingError):
    """Too many requests wait for a reply; the text says how many are allowed."""

    retriable = True
    response_code = 2


class BrokerError(RemotingError):
    """A reply whose code is not success.

    Args:
        code: The response code.
        remark: What the other side says.
        address: Who says it.
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
