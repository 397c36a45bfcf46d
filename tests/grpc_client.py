"""A client of the 5.x service for tests: grpcio for the transport, our tables for the messages."""

import hashlib
import hmac
import queue
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import grpc

from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS, SERVICE, ClientType

OK = 20_000
TIMEOUT_S = 20.0


class GrpcClient:
    """A client with a Telemetry stream.

    Args:
        endpoint: ``host:port``.
        client_id: Its id.
        user: Name and password of its user; None: it sends none.
    """

    def __init__(
        self, endpoint: str, client_id: str = "client", user: tuple[str, str] | None = None
    ) -> None:
        self.commands: queue.Queue[dict[str, Any]] = queue.Queue()
        """TelemetryCommands of the server."""
        self._metadata: tuple[tuple[str, str], ...] = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
        )
        if user is not None:
            self._metadata += signed(*user)
        self._channel = grpc.insecure_channel(endpoint)
        self._sent: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stream: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._sent.put(None)
        self._channel.close()

    def call(self, name: str, timeout_s: float = TIMEOUT_S, **request: Any) -> dict[str, Any]:
        """Call a unary method; return the reply."""
        method = METHODS[name]
        stub = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda values: protobuf.encode(method.request, values),
            response_deserializer=lambda data: protobuf.decode(method.reply, data),
        )
        reply: dict[str, Any] = stub(request, metadata=self._metadata, timeout=timeout_s)
        return reply

    def receive(self, timeout_s: float = TIMEOUT_S, **request: Any) -> list[dict[str, Any]]:
        """Call ReceiveMessage; return the replies."""
        return list(self.begin_receive(timeout_s, **request))

    def begin_receive(self, timeout_s: float = TIMEOUT_S, **request: Any) -> Any:
        """Begin to call ReceiveMessage; return the call, which yields the replies."""
        method = METHODS["ReceiveMessage"]
        stub = self._channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=lambda values: protobuf.encode(method.request, values),
            response_deserializer=lambda data: protobuf.decode(method.reply, data),
        )
        return stub(request, metadata=self._metadata, timeout=timeout_s)

    def messages(self, group: str, topic: str, **more: Any) -> list[dict[str, Any]]:
        """Receive messages of a topic for a group; an empty list if there are none."""
        replies = self.receive(**receive_request(group, topic, **more))
        return [reply["message"] for reply in replies if "message" in reply]

    def telemetry(self, **settings: Any) -> dict[str, Any]:
        """Open the Telemetry stream, or use it again; return the answer to the settings."""
        if self._stream is None:
            table = METHODS["Telemetry"].request
            stub = self._channel.stream_stream(
                f"/{SERVICE}/Telemetry",
                request_serializer=lambda values: protobuf.encode(table, values),
                response_deserializer=lambda data: protobuf.decode(table, data),
            )
            self._stream = stub(self._requests(), metadata=self._metadata)
        self._sent.put({"settings": settings})
        command: dict[str, Any] = next(self._stream)
        return command

    def next_command(self) -> dict[str, Any]:
        """Return the next command of the server."""
        command: dict[str, Any] = next(self._stream)
        return command

    def answer(self, **command: Any) -> None:
        """Send a TelemetryCommand."""
        self._sent.put(command)

    def _requests(self) -> Iterator[dict[str, Any]]:
        while (command := self._sent.get()) is not None:
            yield command

    def produce(self, *topics: str) -> dict[str, Any]:
        """Send the settings of a producer."""
        return self.telemetry(
            client_type=int(ClientType.PRODUCER),
            publishing={"topics": [{"name": topic} for topic in topics]},
        )

    def consume(
        self, group: str, *topics: str, kind: int = ClientType.SIMPLE_CONSUMER
    ) -> dict[str, Any]:
        """Send the settings of a consumer."""
        return self.telemetry(
            client_type=int(kind),
            subscription={
                "group": {"name": group},
                "subscriptions": [
                    {"topic": {"name": topic}, "expression": {"type": 1, "expression": "*"}}
                    for topic in topics
                ],
            },
        )


def receive_request(group: str, topic: str, **more: Any) -> dict[str, Any]:
    """Return a ReceiveMessageRequest for any messages of a topic."""
    return {
        "group": {"name": group},
        "message_queue": {"topic": {"name": topic}, "id": -1, "broker": {"name": "broker-a"}},
        "filter_expression": {"type": 1, "expression": "*"},
        "batch_size": 32,
        "invisible_duration": {"seconds": 30},
        "long_polling_timeout": {"seconds": 5},
        **more,
    }


def message(topic: str, body: bytes = b"body", key: str = "01", **system: Any) -> dict[str, Any]:
    """Return a Message to send."""
    properties = {
        "message_id": key,
        "message_type": 1,
        "born_host": "host",
        "born_timestamp": protobuf.from_ms(time.time_ns() // 1_000_000),
        **system,
    }
    return {"topic": {"name": topic}, "body": body, "system_properties": properties}


def signed(name: str, password: str, date: str = "20261124T120000Z") -> tuple[tuple[str, str], ...]:
    """Return the headers that the SDKs send for a user: an HMAC-SHA1 of the date."""
    signature = hmac.new(password.encode(), date.encode(), hashlib.sha1).hexdigest().upper()
    text = f"Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return ("x-mq-date-time", date), ("authorization", f"MQv2-HMAC-SHA1 {text}")
