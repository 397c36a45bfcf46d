"""Statuses of replies: the code that a client acts on, and a text for its user.

Errors travel in the status of a normal reply. Clients decide by the number alone; they know no
others than those of ``Code``.
Source: rocketmq-proxy 5.5.0 ``ResponseBuilder``, ``SendMessageActivity``, ``AckMessageActivity``.
"""

from collections.abc import Sequence
from typing import Any

from reput.broker.access import rules
from reput.errors import (
    AccessRefused,
    BrokerError,
    InvalidProtobuf,
    Overloaded,
    ReputError,
    RequestTimedOut,
    broker_error,
)
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.grpc.backend import UnknownBroker
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import STATUS, Code

__all__ = [
    "OK", "STORED", "Code", "StatusError", "check", "of_entries", "of_error", "of_reply", "status",
]  # fmt: skip

_CODES = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    2017: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    2018: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
"""Code by the response code of a broker; all others are INTERNAL_SERVER_ERROR."""
_UNUSABLE_RECEIPT = frozenset({ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL})
"""Response codes for a handle whose message is not held: push consumers repeat a request for ever,
unless the code is INVALID_RECEIPT_HANDLE."""
_UNPARSED = "parse the consumer's subscription failed"
STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Response codes of sends whose message is in the store."""


class StatusError(Exception):
    """A request fails with a status.

    Args:
        code: The code.
        message: The reason, for the user of the client.
    """

    def __init__(self, code: Code, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code.name} ({code.value}): {message}")


def status(code: Code, message: str) -> dict[str, Any]:
    """Return a Status."""
    return {"code": code.value, "message": message}


OK = protobuf.Encoded(STATUS, status(Code.OK, "OK"))


def of_error(error: BaseException) -> dict[str, Any]:
    """Return the status of an error, without details for an unexpected error."""
    if isinstance(error, StatusError):
        return status(error.code, error.message)
    if isinstance(error, AccessRefused):
        return status(Code.UNAUTHORIZED, error.remark)
    if isinstance(error, rules.AccessRefused):
        return status(Code.UNAUTHORIZED, str(error))
    if isinstance(error, UnknownBroker):
        return status(Code.BAD_REQUEST, str(error))
    if isinstance(error, RequestTimedOut):
        return status(Code.PROXY_TIMEOUT, str(error))
    if isinstance(error, Overloaded):
        return status(Code.TOO_MANY_REQUESTS, str(error))
    if isinstance(error, InvalidProtobuf):
        return status(Code.BAD_REQUEST, str(error))
    if isinstance(error, BrokerError):
        code, text = _code(error.response_code), error.remark or str(error.response_code)
        if code is Code.ILLEGAL_FILTER_EXPRESSION and _UNPARSED not in text:
            text = f"{_UNPARSED}: {text}"
        return status(code, text)
    if isinstance(error, ReputError):
        return status(_code(error.response_code), str(error))
    return status(Code.INTERNAL_SERVER_ERROR, "internal server error")


def of_reply(reply: Command) -> dict[str, Any]:
    """Return the status of a broker's reply to a send."""
    if reply.code == ResponseCode.SUCCESS:
        return OK
    if reply.code in STORED:
        name = ResponseCode(reply.code).name
        return status(_CODES[reply.code], f"send message failed, sendStatus={name}")
    return of_error(broker_error(reply.code, reply.remark))


def check(reply: Command, *, of_receipt: bool = False) -> None:
    """Check that a broker's reply is a success.

    Args:
        reply: The reply.
        of_receipt: The request was about a received message.

    Raises:
        StatusError: It is none.
    """
    if reply.code == ResponseCode.SUCCESS:
        return
    if of_receipt and reply.code in _UNUSABLE_RECEIPT:
        text = reply.remark or "the message is not held by this handle"
        raise StatusError(Code.INVALID_RECEIPT_HANDLE, text)
    failure = of_error(broker_error(reply.code, reply.remark))
    raise StatusError(Code(failure["code"]), failure["message"])


def of_entries(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the status of a reply from the statuses of its entries."""
    codes = {entry["status"]["code"] for entry in entries}
    if not codes:
        return status(Code.INTERNAL_SERVER_ERROR, "ack message result is empty: no entries")
    code = Code(codes.pop()) if len(codes) == 1 else Code.MULTIPLE_RESULTS
    return OK if code is Code.OK else status(code, code.name)


def _code(response_code: int) -> Code:
    return _CODES.get(response_code, Code.INTERNAL_SERVER_ERROR)
