"""Calls of a program at the begin and end of each operation of its clients.

    hooks.install(hook)         # an object with the four functions of ``ClientHook``
    hooks.install(None)

There is one hook for all clients of a process, those of ``reput.client.blocking`` too. Its
functions run in the task that does the operation, so that context variables which they set are
those of a listener. Without a hook an operation looks up one name.

The traces of ``enable_trace`` are no hook: each has fields of a broker's single reply.
``reput.client.otel`` is one.
"""

import contextlib
import enum
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from reput.client.message import Message, ReceivedMessage, SendResult

log = logging.getLogger(__name__)

Call = TypeVar("Call")


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """The client of an operation."""

    group: str
    """Group, without namespace."""
    namespace: str
    client_id: str = ""
    is_broadcasting: bool = False


class SendOperation(enum.Enum):
    """Kind of an operation of a producer."""

    SEND = "send"
    """A message or a batch; returns when a broker has stored it."""
    ONEWAY = "oneway"
    HALF = "half"
    """The half message of a transaction."""
    COMMIT = "commit"
    ROLLBACK = "rollback"


class ConsumeOperation(enum.Enum):
    """Kind of an operation of a consumer."""

    PROCESS = "process"
    """A call of the listener."""
    RECEIVE = "receive"
    """Messages were returned to the program, by ``poll`` or ``pop``."""
    ACK = "ack"
    NACK = "nack"


@dataclass(slots=True)
class SendCall:
    """An operation of a producer."""

    operation: SendOperation
    client: ClientFacts
    topic: str
    """Topic, without namespace."""
    messages: list[Message]
    """The messages; a hook may replace each by one with more properties before they are sent.
    Empty if a transaction ends without its message."""
    is_batch: bool = False
    result: SendResult | None = None
    """Result; at the end of a transaction, the result of its half message."""
    broker_address: str | None = None
    error: BaseException | None = None
    state: object = None
    """Value of the hook itself."""


@dataclass(slots=True)
class ConsumeCall:
    """An operation of a consumer."""

    operation: ConsumeOperation
    client: ClientFacts
    messages: Sequence[ReceivedMessage]
    """The messages; access to the fields of a damaged one raises ``CorruptRecord``."""
    begun_ms: int
    """Time of the begin, in ms since the epoch: receiving is reported when it has ended."""
    is_failure: bool = False
    """True if the listener asks for another delivery."""
    error: BaseException | None = None
    state: object = None
    """Value of the hook itself."""


class ClientHook(Protocol):
    """Functions of a program; exceptions in them are logged, and do not stop the operation."""

    def sending(self, call: SendCall) -> None:
        """Begin a send, before its messages are encoded."""

    def sent(self, call: SendCall) -> None:
        """End a send."""

    def consuming(self, call: ConsumeCall) -> None:
        """Begin an operation of a consumer."""

    def consumed(self, call: ConsumeCall) -> None:
        """End an operation of a consumer."""


installed: ClientHook | None = None
"""The hook of this process. Set it with ``install``."""


def install(hook: ClientHook | None) -> None:
    """Use a hook for all later operations; None: no hook."""
    global installed
    installed = hook


@contextlib.contextmanager
def sending(call: SendCall) -> Iterator[SendCall]:
    """Report a send to the hook. The block sets the result."""
    hook = installed
    if hook is None:
        yield call
        return
    _guarded(hook.sending, call)
    try:
        yield call
    except BaseException as error:
        call.error = error
        raise
    finally:
        _guarded(hook.sent, call)


@contextlib.contextmanager
def consuming(call: ConsumeCall) -> Iterator[ConsumeCall]:
    """Report an operation of a consumer to the hook. The block sets whether it failed."""
    hook = installed
    if hook is None:
        yield call
        return
    _guarded(hook.consuming, call)
    try:
        yield call
    except BaseException as error:
        call.error = error
        raise
    finally:
        _guarded(hook.consumed, call)


def received(client: ClientFacts, messages: Sequence[ReceivedMessage], begun_ms: int) -> None:
    """Report messages that a consumer returns to the program."""
    with consuming(ConsumeCall(ConsumeOperation.RECEIVE, client, messages, begun_ms)):
        pass


def _guarded(function: Callable[[Call], None], call: Call) -> None:
    try:
        function(call)
    except Exception:  # the outermost edge of a program's code
        log.exception("the client hook failed")
