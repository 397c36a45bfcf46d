"""Checks of what clients send: names, and messages before a send.

The texts are those of Java's proxy, so that users find them. What Java does not check, and what
would damage the stored property string, is refused too.
Source: rocketmq-proxy 5.5.0 ``GrpcValidator``, ``SendMessageActivity``, ``ProxyConfig``;
rocketmq-client 5.5.0 ``Validators``.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from reput.format import names
from reput.format.reserved_properties import RESERVED_PROPERTIES
from reput.grpc.statuses import StatusError
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import Code, MessageType

BODY_BYTES_MAX = 4 * 1024 * 1024
USER_PROPERTIES_MAX = 128
"""Maximum number of user properties of a message."""
USER_PROPERTY_BYTES_MAX = 16 * 1024
"""Maximum size of user properties, tag and keys of a message together, in bytes."""
SYSTEM_TEXT_BYTES_MAX = 8 * 1024
"""Maximum size of message id, born host and trace context together, in bytes; with the user
properties they fit the property string of a record."""
MESSAGE_GROUP_BYTES_END = 64
"""Size that a message group must stay below, in bytes."""
LITE_TOPIC_BYTES_MAX = 64
DELAY_MS_MAX = 24 * 3600 * 1000
RECOVERY_S_MAX = 3600
"""Maximum age of a half message before its first check, in s."""
GROUP_LETTERS_MAX = 120

_TOPICS_KEPT = 1_000
"""Names of topics whose check is remembered."""
_LEGAL_NAME = "^[%|a-zA-Z0-9_-]+$"
_LEGAL_LITE_TOPIC = re.compile(r"[A-Za-z0-9_-]+\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_topic(name: str) -> None:
    """Check that a topic has a legal name and is not of the system. Raises ``StatusError``."""
    if not name.strip():
        refusal = "The specified topic is blank"
    elif len(name) > names.TOPIC_LENGTH_MAX:
        refusal = f"The specified topic is longer than topic max length {names.TOPIC_LENGTH_MAX}."
    else:
        refusal = _topic_refusal(name)
    if refusal:
        raise StatusError(Code.ILLEGAL_TOPIC, refusal)


@functools.lru_cache(_TOPICS_KEPT)
def _topic_refusal(name: str) -> str:
    """Return why a topic's name is refused; empty if it is not."""
    if not names.is_legal_topic(name):
        return (
            f"The specified topic[{name}] contains illegal characters, allowing only {_LEGAL_NAME}"
        )
    return "cannot access system topic" if names.is_system_topic(name) else ""


def check_group(name: str) -> None:
    """Check that a group has a legal name and is not of the system. Raises ``StatusError``."""
    if not name.strip():
        text = "the specified group is blank"
    elif len(name) > GROUP_LETTERS_MAX:
        text = (
            f"the specified group[{names.printable(name)}] is longer than group max length: "
            f"{GROUP_LETTERS_MAX}."
        )
    elif not names.is_legal_group(name):
        text = (
            f"the specified group[{name}] contains illegal characters, allowing only {_LEGAL_NAME}"
        )
    elif name.startswith(names.SYSTEM_GROUP_PREFIX):
        text = "cannot use system consumer group"
    else:
        return
    raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, text)


def check_lite_topic(name: str) -> None:
    """Check the name of a lite topic. Raises ``StatusError``."""
    if not name.strip():
        text = "lite topic cannot be the char sequence of whitespace"
    elif len(name.encode()) > LITE_TOPIC_BYTES_MAX:
        text = f"lite topic exceed the max size {LITE_TOPIC_BYTES_MAX}"
    elif not _LEGAL_LITE_TOPIC.match(name):
        text = "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"
    else:
        return
    raise StatusError(Code.ILLEGAL_LITE_TOPIC, text)


def check_topic_of(messages: Sequence[Mapping[str, Any]]) -> None:
    """Check the topic of the messages of a send: at least one, all of one topic.

    Args:
        messages: Message dicts of a SendMessageRequest.

    Raises:
        StatusError: They are refused.
    """
    if not messages:
        raise StatusError(Code.MESSAGE_CORRUPTED, "no message to send")
    topics = [message.get("topic", {}).get("name", "") for message in messages]
    check_topic(topics[0])
    if len({*topics}) > 1:
        raise StatusError(Code.MESSAGE_CORRUPTED, "topic in message is not same")


def check_message(message: Mapping[str, Any], now_ms: int) -> None:
    """Check all of a message but its topic. Raises ``StatusError``."""
    body = message.get("body", b"")
    if not body:
        raise StatusError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > BODY_BYTES_MAX:
        text = f"message body cannot exceed the max {BODY_BYTES_MAX}"
        raise StatusError(Code.MESSAGE_BODY_TOO_LARGE, text)
    system = message.get("system_properties", {})
    size = _check_user_properties(message.get("user_properties", {}))
    tag = system.get("tag", "")
    _check_text(Code.ILLEGAL_MESSAGE_TAG, "tag", tag, forbidden="|")
    size += len(tag.encode())
    for key in system.get("keys", ()):
        _check_text(Code.ILLEGAL_MESSAGE_KEY, "key", key)
        size += len(key.encode())
    if size > USER_PROPERTY_BYTES_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {USER_PROPERTY_BYTES_MAX}",
        )
    _check_system_texts(system)
    _check_times(system, now_ms)
    if system.get("priority", 0) < 0:
        text = "The priority must be greater than or equal to 0"
        raise StatusError(Code.BAD_REQUEST, text)
    group = system.get("message_group", "")
    if group:
        if group.strip() and len(group.encode()) >= MESSAGE_GROUP_BYTES_END:
            text = f"message group exceed the max size {MESSAGE_GROUP_BYTES_END}"
            raise StatusError(Code.ILLEGAL_MESSAGE_GROUP, text)
        _check_text(Code.ILLEGAL_MESSAGE_GROUP, "message group", group)
    if system.get("lite_topic"):
        check_lite_topic(system["lite_topic"])


def _check_user_properties(properties: Mapping[str, str]) -> int:
    """Check user properties; return their size in bytes."""
    if len(properties) > USER_PROPERTIES_MAX:
        text = f"too many user properties, max is {USER_PROPERTIES_MAX}"
        raise StatusError(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    code = Code.ILLEGAL_MESSAGE_PROPERTY_KEY
    size = 0
    for key, value in properties.items():
        if key in RESERVED_PROPERTIES:
            raise StatusError(code, f"property is used by system: {key}")
        if _CONTROL.search(key):
            raise StatusError(code, "the key of property cannot contain control character")
        if _CONTROL.search(value):
            raise StatusError(code, "the value of property cannot contain control character")
        size += len(key.encode()) + len(value.encode())
    return size


def _check_system_texts(system: Mapping[str, Any]) -> None:
    """Check the texts that become properties unchanged."""
    message_id = system.get("message_id", "")
    if not message_id.strip():
        raise StatusError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    size = 0
    for name, code in (
        ("message_id", Code.ILLEGAL_MESSAGE_ID),
        ("born_host", Code.BAD_REQUEST),
        ("trace_context", Code.BAD_REQUEST),
    ):
        value = system.get(name, "")
        # A separator of properties would add others, such as those of brokers.
        if _CONTROL.search(value):
            raise StatusError(code, f"{name} cannot contain control character")
        size += len(value.encode())
    if size > SYSTEM_TEXT_BYTES_MAX:
        raise StatusError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "the total size of message_id, born_host and trace_context is too large, max is "
            f"{SYSTEM_TEXT_BYTES_MAX}",
        )


def _check_times(system: Mapping[str, Any], now_ms: int) -> None:
    """Check recovery duration and deliver time."""
    recovery = system.get("orphaned_transaction_recovery_duration")
    if recovery is not None and system.get("message_type") == MessageType.TRANSACTION:
        protobuf.duration_ms(recovery)
        if recovery.get("seconds", 0) > RECOVERY_S_MAX:
            raise StatusError(
                Code.BAD_REQUEST,
                "the max transaction recovery time of message is too large, max is "
                f"{RECOVERY_S_MAX}",
            )
    deliver = system.get("delivery_timestamp")
    if deliver is not None and protobuf.timestamp_ms(deliver) - now_ms > DELAY_MS_MAX:
        raise StatusError(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {DELAY_MS_MAX}",
        )


def _check_text(code: Code, name: str, text: str, forbidden: str = "") -> None:
    """Check a text that may be empty, but not blank."""
    if not text:
        return
    if not text.strip():
        raise StatusError(code, f"{name} cannot be the char sequence of whitespace")
    if forbidden and forbidden in text:
        raise StatusError(code, f"{name} cannot contain '{forbidden}'")
    if _CONTROL.search(text):
        raise StatusError(code, f"{name} cannot contain control character")
