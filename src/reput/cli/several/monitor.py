"""One ``/metrics`` and ``/health`` of several brokers.

    HTTP thread of the parent  --Unix socket of each broker-->  its metrics and health

The series of a broker that does not answer in time are missing: its ``reput_broker_up`` is 0, and
the health of all is failing.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from reput.cli.several import merged_metrics
from reput.cli.several.supervisor import State, Supervised
from reput.remoting.http_listener import NOT_FOUND, HttpAnswer, HttpListener

OURS = "/metrics"
QUEUES = "/metrics/queues"
ROCKETMQ = "/metrics/rocketmq"
"""Page of a broker's socket with RocketMQ's names."""
HEALTH = "/health"
HEALTH_TIMEOUT_S = 6.0
METRICS_TIMEOUT_S = 9.0
"""Time for the metrics of one broker, in seconds: a scrape has 10 by default."""
_ANSWER_BYTES_MAX = 256 * 1024 * 1024
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes


class Monitor:
    """Serves metrics and health of all brokers.

    Args:
        brokers: The brokers.
        host: Address to listen on.
        port: Port to listen on; 0: any.
        page: The page of each broker that is ``/metrics`` of all: ``OURS`` or ``ROCKETMQ``.
    """

    def __init__(
        self, brokers: Sequence[Supervised], host: str, port: int, *, page: str = OURS
    ) -> None:
        self._brokers = brokers
        self._page = page
        self.listener = HttpListener(self._answer, host=host, port=port)

    async def _answer(self, target: str) -> HttpAnswer:
        path, _, query = target.partition("?")
        if path == HEALTH:
            return await self._health()
        if path == OURS:
            return await self._metrics(self._page)
        if path == QUEUES and self._page == OURS:
            return await self._metrics(f"{QUEUES}?{query}")
        return NOT_FOUND

    async def _metrics(self, target: str) -> HttpAnswer:
        replies = await self._ask(target, METRICS_TIMEOUT_S)
        refused = [reply for reply in replies.values() if reply and reply.status == 400]
        if refused:
            return HttpAnswer(HTTPStatus.BAD_REQUEST, "text/plain", refused[0].body)
        texts = {
            name: reply.body
            for name, reply in replies.items()
            if reply is not None and reply.status == HTTPStatus.OK
        }
        own = {
            broker.member.name: _own_text(broker, is_up=broker.member.name in texts)
            for broker in self._brokers
        }
        both = merged_metrics.merge(own), merged_metrics.merge(texts)
        return HttpAnswer(HTTPStatus.OK, _TEXT, b"".join(both))

    async def _health(self) -> HttpAnswer:
        replies = await self._ask(HEALTH, HEALTH_TIMEOUT_S)
        problems: list[str] = []
        warnings: list[str] = []
        details: dict[str, Any] = {}
        for broker in self._brokers:
            name = broker.member.name
            document = _document(replies[name])
            details[name] = {
                "state": str(broker.state),
                "pid": broker.child.pid,
                "address": broker.child.address,
                "restarts": broker.restart_count,
                "health": document,
            }
            if broker.state is State.STOPPED:
                warnings.append(f"{name} was stopped")
            elif broker.state is State.FAILED:
                problems.append(f"{name} has ended ({broker.last_end}), and is started again")
            elif broker.state is State.STARTING:
                problems.append(f"{name} is starting")
            elif document is None:
                problems.append(f"{name} has not answered for {HEALTH_TIMEOUT_S:.0f} s")
            else:
                problems += [f"{name}: {text}" for text in document.get("problems", ())]
                warnings += [f"{name}: {text}" for text in document.get("warnings", ())]
        text = {
            "status": "failing" if problems else "ok",
            "problems": problems,
            "warnings": warnings,
            "brokers": details,
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        return HttpAnswer(status, _JSON, json.dumps(text, indent=2).encode() + b"\n")

    async def _ask(self, target: str, timeout_s: float) -> dict[str, _Reply | None]:
        """Return the reply of each broker; None if one does not answer."""
        replies = await asyncio.gather(
            *(_get(str(broker.socket), target, timeout_s) for broker in self._brokers)
        )
        return {
            broker.member.name: reply for broker, reply in zip(self._brokers, replies, strict=True)
        }


def _own_text(broker: Supervised, *, is_up: bool) -> bytes:
    """Return what the parent knows about a broker, in Prometheus' text format."""
    return (
        "# HELP reput_broker_up 1 if the broker has answered this scrape.\n"
        "# TYPE reput_broker_up gauge\n"
        f"reput_broker_up {int(is_up)}\n"
        "# HELP reput_broker_restarts_total Starts after a failure.\n"
        "# TYPE reput_broker_restarts_total counter\n"
        f"reput_broker_restarts_total {broker.restart_count}\n"
    ).encode()


async def _get(socket: str, target: str, timeout_s: float) -> _Reply | None:
    """Return the reply to a GET over a Unix socket; None after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(f"GET {target} HTTP/1.1\r\n\r\n".encode("latin-1"))
                await writer.drain()
                parts = []
                size = 0
                while (part := await reader.read(1 << 16)) and size < _ANSWER_BYTES_MAX:
                    parts.append(part)
                    size += len(part)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        return None
    return _Reply(int(words[1]), body)


def _document(reply: _Reply | None) -> dict[str, Any] | None:
    if reply is None:
        return None
    try:
        document = json.loads(reply.body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
