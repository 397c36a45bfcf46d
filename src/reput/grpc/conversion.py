"""Messages and handles: what 5.x clients send and get, and what brokers store.

Handles contain all that is needed to use them, so that a restart loses none.
Source: rocketmq-proxy 5.5.0 ``SendMessageActivity``, ``GrpcConverter``; rocketmq-common 5.5.0
``ReceiptHandle``, ``TopicMessageType``.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reput.errors import InvalidHeader, excerpt
from reput.format import message_id, pop_codec, properties as props, recall_handle
from reput.format.message import Host, StoredMessage
from reput.format.pop_codec import Handle
from reput.format.reserved_properties import RESERVED_PROPERTIES
from reput.format.sys_flag import COMPRESSED, TRANSACTION_PREPARED
from reput.grpc.statuses import StatusError
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import Code, DigestType, Encoding, MessageType

BORN_HOST = "__BORNHOST"
TRACE_CONTEXT = "TRACE_CONTEXT"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
_INT_MAX = (1 << 31) - 1


# --- messages of producers --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message of a producer, as it goes to a broker."""

    topic: str
    properties: dict[str, str]
    sys_flag: int
    born_ms: int
    body: bytes
    message_id: str
    message_type: str
    """Name of a ``MessageType``: what the type of the topic must be."""
    sharding_key: str | None
    """Message group, or else lite topic, which selects the queue."""


def outgoing(message: Mapping[str, Any], address: tuple[str, int], now_ms: int) -> Outgoing:
    """Convert a checked message of a SendMessageRequest (``validation.check_message``).

    A tag, property or name that is empty is left out: a property string cannot hold it.

    Args:
        message: The Message.
        address: Host and port of the client, for a message without born host.
        now_ms: Born time of a message without one, ms since the epoch.
    """
    topic = message["topic"]["name"]
    system = message.get("system_properties", {})
    properties = {key: text for key, text in message.get("user_properties", {}).items() if key}
    is_transaction = system.get("message_type") == MessageType.TRANSACTION
    group, lite_topic = system.get("message_group", ""), system.get("lite_topic", "")
    born = system.get("born_timestamp")
    born_ms = now_ms if born is None else protobuf.timestamp_ms(born)
    properties[props.TAGS] = system.get("tag", "")
    properties[props.KEYS] = props.KEY_SEPARATOR.join(system.get("keys", ()))
    properties[props.UNIQ_KEY] = system.get("message_id", "")
    if is_transaction:
        properties[props.TRANSACTION_PREPARED] = "true"
        recovery = system.get("orphaned_transaction_recovery_duration")
        if recovery is not None:
            properties[props.CHECK_IMMUNITY_TIME] = f"{recovery.get('seconds', 0)}"
    deliver = system.get("delivery_timestamp")
    if deliver is not None:
        properties[props.TIMER_DELIVER_MS] = f"{protobuf.timestamp_ms(deliver)}"
    if "priority" in system:
        properties[props.PRIORITY] = f"{system['priority']}"
    properties[props.RECONSUME_TIME] = f"{system.get('delivery_attempt', 0)}"
    properties[props.PRODUCER_GROUP] = topic
    if group:
        properties[props.SHARDING_KEY] = group
    if lite_topic:
        properties[props.LITE_TOPIC] = lite_topic
    if system.get("trace_context"):
        properties[TRACE_CONTEXT] = system["trace_context"]
    properties[BORN_HOST] = system.get("born_host", "").strip() or address_text(*address)
    properties[props.BORN_TIMESTAMP] = f"{born_ms}"
    properties = {key: text for key, text in properties.items() if text}
    is_compressed = system.get("body_encoding") == Encoding.GZIP
    return Outgoing(
        topic,
        properties,
        (COMPRESSED if is_compressed else 0) | (TRANSACTION_PREPARED if is_transaction else 0),
        born_ms,
        message.get("body", b""),
        system.get("message_id", ""),
        type_of(properties).name,
        group or lite_topic or None,
    )


def type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message by its properties."""
    if properties.get(props.TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return MessageType.DELAY
    if props.SHARDING_KEY in properties:
        return MessageType.FIFO
    if props.PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.LITE if props.LITE_TOPIC in properties else MessageType.NORMAL


_DELAYS = frozenset(
    {props.DELAY, props.TIMER_DELIVER_MS, props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS}
)


def address_text(host: str, port: int) -> str:
    """Return an address as text; one of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- messages for consumers -------------------------------------------------------


def incoming(
    message: StoredMessage,
    *,
    topic: str = "",
    receipt_handle: str = "",
    invisible_ms: int | None = None,
    delivery_attempt: int | None = None,
) -> dict[str, Any]:
    """Convert a stored message to a Message.

    The name of the topic has its namespace: Java splits it off, and then takes an ack that repeats
    both for one of another topic. The body is as stored, its digest too.

    Args:
        message: The stored message.
        topic: The topic that the client reads, if the message is stored in a retry topic.
        receipt_handle: Handle of the receipt, if it was received.
        invisible_ms: Invisible time of the receipt, ms.
        delivery_attempt: Number of this delivery, from 1; by default by the stored count.
    """
    properties = message.properties
    digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    system: dict[str, Any] = {
        "message_id": message_id.message_id(message),
        "body_digest": {"type": DigestType.MD5.value, "checksum": digest},
        "body_encoding": (
            Encoding.GZIP if message.sys_flag & COMPRESSED else Encoding.IDENTITY
        ).value,
        "message_type": type_of(properties).value,
        "born_timestamp": protobuf.from_ms(message.born_timestamp),
        "born_host": properties.get(BORN_HOST) or _address(message.born_host),
        "store_timestamp": protobuf.from_ms(message.store_timestamp),
        "store_host": f"{message.store_host}",
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "delivery_attempt": delivery_attempt or message.reconsume_times + 1,
    }
    keys = message.keys
    if keys:
        system["keys"] = keys
    for name, key in _TEXTS:
        if key in properties:
            system[name] = properties[key]
    deliver_ms = props.number(properties.get(props.TIMER_DELIVER_MS))
    if deliver_ms is not None:
        system["delivery_timestamp"] = protobuf.from_ms(deliver_ms)
    priority = props.number(properties.get(props.PRIORITY), _INT_MAX)
    if priority is not None:
        system["priority"] = priority
    if receipt_handle:
        system["receipt_handle"] = receipt_handle
    if invisible_ms is not None:
        system["invisible_duration"] = protobuf.from_ms(invisible_ms)
    origin, origin_id = properties.get(DLQ_ORIGIN_TOPIC), properties.get(DLQ_ORIGIN_MESSAGE_ID)
    if origin and origin_id:
        system["dead_letter_queue"] = {"topic": origin, "message_id": origin_id}
    return {
        "topic": {"name": topic or message.topic},
        "user_properties": {
            key: text for key, text in properties.items() if key not in RESERVED_PROPERTIES
        },
        "system_properties": system,
        "body": message.body,
    }


_TEXTS = (
    ("tag", props.TAGS),
    ("message_group", props.SHARDING_KEY),
    ("lite_topic", props.LITE_TOPIC),
    ("trace_context", TRACE_CONTEXT),
)


def _address(host: Host) -> str:
    """Return the address of a host without its port."""
    return f"{host}".rpartition(":")[0].strip("[]")


# --- handles --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Receipt:
    """Handle of a received message: a remoting handle, and where the message is stored."""

    handle: Handle
    physical_offset: int
    """Physical offset of the message; -1 if the client's text does not contain it."""
    lite_topic: str = ""
    """Lite topic of the message; empty if it has none."""

    def __str__(self) -> str:
        text = f"{self.handle} {self.physical_offset}"
        return f"{text} ${self.lite_topic}" if self.lite_topic else text

    @property
    def visible_ms(self) -> int:
        """Time from which the message is visible again, ms since the epoch."""
        return self.handle.pop_ms + self.handle.invisible_ms

    def check(self, now_ms: int) -> None:
        """Check that the invisible time has not ended. Raises ``StatusError``."""
        if self.visible_ms <= now_ms:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")

    @classmethod
    def parse(cls, text: str) -> "Receipt":
        """Parse a handle of this front or of Java's proxy.

        After a change of the invisible time, Java's proxy in local mode writes 0 for the physical
        offset, then the true one, and keeps the start offset of the old checkpoint; that of the new
        one is the message's.

        Raises:
            StatusError: The text is no handle.
        """
        match = _RECEIPT.match(text)
        if match is None:
            raise StatusError(
                Code.INVALID_RECEIPT_HANDLE,
                f"receipt handle {excerpt(text)!r} is invalid; it has: start offset, pop time, "
                "invisible time, revive queue, 0 to 2 for the kind of topic, broker name, "
                "queue id, queue offset, physical offset",
            )
        start, pop_ms, invisible_ms, revive_queue_id, kind, broker_name = match.groups()[:6]
        queue_id, queue_offset, physical_offset, moved_offset, lite_topic = match.groups()[6:]
        handle = Handle(
            int(queue_offset if moved_offset else start),
            int(pop_ms),
            int(invisible_ms),
            int(revive_queue_id),
            kind,
            broker_name,
            int(queue_id),
            int(queue_offset),
        )
        return cls(handle, int(moved_offset or physical_offset or -1), lite_topic or "")


_NUMBER = r"([0-9]{1,18})"
_RECEIPT = re.compile(
    rf"{_NUMBER} {_NUMBER} {_NUMBER} ([0-9]{{1,9}}) "
    rf"([{pop_codec.NORMAL}{pop_codec.RETRY}{pop_codec.RETRY_V2}]) (\S{{1,255}}) "
    rf"([0-9]{{1,9}}) {_NUMBER}(?: (-1|[0-9]{{1,18}})(?: {_NUMBER})?"
    r"(?: \$([A-Za-z0-9_-]{1,64}))?)?\Z"
)


def broker_of_recall_handle(text: str) -> str:
    """Return the broker that stores a timer message. Raises ``StatusError``."""
    try:
        return recall_handle.decode(text).broker_name
    except InvalidHeader as error:
        raise StatusError(Code.INTERNAL_SERVER_ERROR, str(error)) from error
