"""The controls of a test's broker over HTTP, for tests in other languages: ``POST /test/advance``.

    HTTP thread: JSON -> arguments  --calls-->  event loop of the brokers: ``Controls``

A request is JSON, and has the Content-Type of JSON; one with an Origin is refused. So no page in a
browser can use a port that is open on the same machine.
"""

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from reput.client.message import ReceivedMessage
from reput.errors import InvalidOption, ReputError
from reput.format.codes import ResponseCode
from reput.remoting.http_listener import HttpAnswer, HttpListener, HttpPost, on_loop
from reput.testing.controls import Controls

PREFIX = "/test/"
_TIMEOUT_MS_MAX = 600_000
_MORE_MS = 70_000
"""Time that a call may take beyond its own timeout, in ms: an advance has a minute."""
MESSAGES_MAX = 10_000
"""Messages of one answer."""

_A = TypeVar("_A", bound=msgspec.Struct)
_log = logging.getLogger(__name__)


class _Arguments(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Arguments of a call; the names in JSON are in camel case."""


class Nothing(_Arguments):
    """No arguments."""


class Advance(_Arguments):
    """Arguments of ``advance``."""

    ms: int


class Topic(_Arguments):
    """Arguments of ``create-topic``."""

    topic: str
    queues: int = 4


class Messages(_Arguments):
    """Arguments of ``messages``."""

    topic: str
    at_least: int = 0
    timeout_ms: int = 5_000


class Group(_Arguments):
    """Arguments of ``wait-until-consumed``."""

    group: str
    timeout_ms: int = 30_000


class Failure(_Arguments):
    """Arguments of ``fail-next``."""

    count: int = 1
    code: int = ResponseCode.SYSTEM_BUSY
    remark: str | None = None
    request: str = "send"


class Drop(_Arguments):
    """Arguments of ``drop-next``."""

    count: int = 1
    request: str = "send"
    stored: bool = False


class Delay(_Arguments):
    """Arguments of ``slow``."""

    delay_ms: int
    request: str = "send"


Call = Callable[[Controls, Any], Awaitable[dict[str, Any]]]
"""Carries out a call on the brokers' event loop; returns the document of its answer."""


async def _advance(controls: Controls, given: Advance) -> dict[str, Any]:
    await controls.advance(given.ms)
    return {"nowMs": controls.clock.now_ms()}


async def _create_topic(controls: Controls, given: Topic) -> dict[str, Any]:
    if given.queues < 1:
        raise InvalidOption("queues", given.queues, "1 or more")
    await controls.create_topic(given.topic, given.queues)
    return {}


async def _clear(controls: Controls, _: Nothing) -> dict[str, Any]:
    await controls.clear()
    return {}


async def _messages(controls: Controls, given: Messages) -> dict[str, Any]:
    _check_timeout(given.timeout_ms)
    messages = await controls.messages(given.topic, given.at_least, given.timeout_ms)
    if len(messages) > MESSAGES_MAX:
        raise InvalidOption("topic", given.topic, f"one with at most {MESSAGES_MAX} messages")
    return {"messages": [_document(message) for message in messages]}


async def _wait_until_consumed(controls: Controls, given: Group) -> dict[str, Any]:
    _check_timeout(given.timeout_ms)
    await controls.until_consumed(given.group, given.timeout_ms)
    return {}


async def _fail_next(controls: Controls, given: Failure) -> dict[str, Any]:
    controls.faults.refuse_next(given.count, given.code, given.remark, given.request)
    return {}


async def _drop_next(controls: Controls, given: Drop) -> dict[str, Any]:
    controls.faults.drop_next(given.count, given.request, is_served=given.stored)
    return {}


async def _slow(controls: Controls, given: Delay) -> dict[str, Any]:
    controls.faults.slow(given.delay_ms, given.request)
    return {}


async def _drop_connections(controls: Controls, _: Nothing) -> dict[str, Any]:
    return {"closed": controls.faults.drop_connections()}


async def _restart(controls: Controls, _: Nothing) -> dict[str, Any]:
    await controls.restart()
    return {}


CALLS: dict[str, tuple[type[_Arguments], Call]] = {
    "advance": (Advance, _advance),
    "clear": (Nothing, _clear),
    "create-topic": (Topic, _create_topic),
    "drop-connections": (Nothing, _drop_connections),
    "drop-next": (Drop, _drop_next),
    "fail-next": (Failure, _fail_next),
    "messages": (Messages, _messages),
    "restart": (Nothing, _restart),
    "slow": (Delay, _slow),
    "wait-until-consumed": (Group, _wait_until_consumed),
}
"""Arguments and function of a call, by the end of its path."""


class HttpControls:
    """Serves the controls of brokers over HTTP.

    Args:
        controls: The controls, on the running event loop.
        host: Address to listen on.
        port: Port to listen on; 0 for any free port.
    """

    def __init__(self, controls: Controls, *, host: str, port: int = 0) -> None:
        self._controls = controls
        self._loop = asyncio.get_running_loop()
        self._listener = HttpListener(self._list, host=host, port=port, post=self._post)

    @property
    def port(self) -> int:
        """Port it listens on, after ``start``."""
        return self._listener.port

    def start(self) -> None:
        """Start listening.

        Raises:
            OSError: The address is in use, or does not belong to this machine.
        """
        self._listener.start()

    async def stop(self) -> None:
        """Stop listening; running calls are answered or cancelled."""
        await self._listener.stop()

    async def _list(self, path: str) -> HttpAnswer:
        status = HTTPStatus.OK if path.partition("?")[0] == PREFIX else HTTPStatus.NOT_FOUND
        return _answer(status, {"post": [PREFIX + name for name in CALLS]})

    async def _post(self, request: HttpPost) -> HttpAnswer:
        name = request.path.removeprefix(PREFIX)
        if name not in CALLS or not request.path.startswith(PREFIX):
            return await self._list("")
        if "origin" in request.headers:
            return _answer(HTTPStatus.FORBIDDEN, {"error": "requests of web pages are refused"})
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            text = "Content-Type must be application/json"
            return _answer(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"error": text})
        arguments, call = CALLS[name]
        try:
            given = msgspec.json.decode(request.body or b"{}", type=arguments)
            timeout_ms = getattr(given, "timeout_ms", 0) + _MORE_MS
            document = await on_loop(self._loop, self._run(call, given), timeout_ms)
        except (msgspec.DecodeError, ReputError, UnicodeDecodeError) as error:
            names = ", ".join(field.encode_name for field in msgspec.structs.fields(arguments))
            text = f"{error}; fields of {name}: {names or 'none'}"
            return _answer(HTTPStatus.BAD_REQUEST, {"error": text})
        except TimeoutError as error:
            return _answer(HTTPStatus.REQUEST_TIMEOUT, {"error": str(error) or "it takes too long"})
        return _answer(HTTPStatus.OK, document)

    async def _run(self, call: Call, given: Any) -> dict[str, Any]:
        await self._controls.until_open()
        return await call(self._controls, given)


def _check_timeout(timeout_ms: int) -> None:
    if not 0 <= timeout_ms <= _TIMEOUT_MS_MAX:
        raise InvalidOption("timeoutMs", timeout_ms, f"0 to {_TIMEOUT_MS_MAX}")


def _answer(status: HTTPStatus, document: dict[str, Any]) -> HttpAnswer:
    return HttpAnswer(status, "application/json", json.dumps(document).encode() + b"\n")


def _document(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message as JSON: the body as text if it is UTF-8, and always in base64."""
    body = message.body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "tags": message.tags,
        "keys": message.keys,
        "body": text,
        "bodyBase64": base64.b64encode(body).decode(),
        "properties": dict(message.properties),
        "storeTimestamp": message.stored.store_timestamp,
    }
