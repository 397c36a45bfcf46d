"""Queries of messages by id or key."""

from reput import config
from reput.client.admin import topics
from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.client.message import ReceivedMessage, received, record_spans
from reput.errors import BrokerError, CorruptRecord, InvalidOption
from reput.format import headers, message_id as ids
from reput.format.codes import RequestCode, ResponseCode

KEY_QUERY_COUNT_MAX = 64
"""Maximum number of messages of one key that a 4.9 broker returns."""
END_OF_TIME_MS = config.JAVA_LONG_MAX


class MessagesOfKey(list[ReceivedMessage]):
    """Messages of a topic that have a key, oldest first."""

    is_truncated = False
    """True if there may be older messages, as a broker has reached its limit."""


async def message_by_offset_id(
    admin: AdminConnection, offset_message_id: str
) -> ReceivedMessage | None:
    """Return the message with an offset id, the first of a batch; None if it does not exist.

    The request goes to the broker in the id, known to name servers or not.

    Raises:
        InvalidOption: It is not an offset id.
    """
    return next(iter(await messages_by_offset_id(admin, offset_message_id)), None)


async def messages_by_offset_id(
    admin: AdminConnection, offset_message_id: str
) -> list[ReceivedMessage]:
    """Return the message with an offset id, in a list; of a batch record all messages inside.

    The request goes to the broker in the id, known to name servers or not.

    Raises:
        InvalidOption: It is not an offset id.
    """
    try:
        place = ids.decode_offset_id(offset_message_id)
    except ValueError as error:
        raise InvalidOption("offset_message_id", offset_message_id, str(error)) from error
    address = str(place.store_host)
    header = headers.ViewMessageHeader(offset=place.physical_offset)
    try:
        reply = await admin.calls.ask(
            address, requests.make(RequestCode.VIEW_MESSAGE_BY_ID, header)
        )
    except BrokerError as error:
        if error.response_code == ResponseCode.SYSTEM_ERROR:
            return []
        raise
    try:
        messages = received(reply.body, await admin.calls.name_of(address))
        is_there = {message.physical_offset for message in messages} == {place.physical_offset}
    except (CorruptRecord, ValueError):
        # A broker returns any bytes there and checks only the first four.
        return []
    return messages if is_there else []


async def message_by_unique_key(
    admin: AdminConnection, topic: str, unique_key: str
) -> ReceivedMessage | None:
    """Return the message with a unique key, as in ``SendResult``; None if it does not exist.

    If a lost reply made the client send it twice, the first copy is returned; if the key is that of
    a batch, its first message.
    """
    return next(iter(await messages_by_unique_key(admin, topic, unique_key)), None)


async def messages_by_unique_key(
    admin: AdminConnection, topic: str, unique_key: str
) -> list[ReceivedMessage]:
    """Return the message with a unique key, in a list; all messages of a batch with that key.

    If a lost reply made the client send them twice, the first copy is returned.
    """
    header = headers.QueryMessageHeader(
        topic=topic,
        key=unique_key,
        max_num=KEY_QUERY_COUNT_MAX,
        begin_timestamp=0,
        end_timestamp=END_OF_TIME_MS,
        is_unique_key=True,
    )
    messages, _ = await _query(admin, topic, header)
    same = [message for message in messages if message.stored.has_unique_key(unique_key)]
    first = min(same, key=lambda message: message.store_timestamp_ms, default=None)
    return [message for message in same if first is not None and _is_same_record(message, first)]


def _is_same_record(message: ReceivedMessage, other: ReceivedMessage) -> bool:
    """Return whether a record has both messages."""
    return (message.broker_name, message.physical_offset) == (
        other.broker_name,
        other.physical_offset,
    )


async def messages_by_key(
    admin: AdminConnection,
    topic: str,
    key: str,
    *,
    count_max: int = KEY_QUERY_COUNT_MAX,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
) -> MessagesOfKey:
    """Return messages of a topic that have a key, oldest first.

    ``is_truncated`` of the result is True if there may be more.

    Args:
        topic: The topic.
        key: One of a message's ``keys``.
        count_max: Maximum number of messages per broker, which returns the newest; 4.9: at most 64.
        begin_ms: Earliest store time, in ms since the epoch.
        end_ms: Latest store time, in ms since the epoch.
    """
    header = headers.QueryMessageHeader(
        topic=topic,
        key=key,
        max_num=count_max,
        # The index has whole seconds, and brokers skip the first, partial one.
        begin_timestamp=max(0, begin_ms - 1000),
        end_timestamp=end_ms,
        is_unique_key=False,
    )
    messages, is_truncated = await _query(admin, topic, header)
    same = MessagesOfKey(
        message
        for message in messages
        if key in message.keys and begin_ms <= message.store_timestamp_ms <= end_ms
    )
    same.sort(key=lambda message: message.store_timestamp_ms)
    same.is_truncated = is_truncated
    return same


async def resume_check(admin: AdminConnection, message: ReceivedMessage) -> None:
    """Resume the checks of a half message that its broker has given up.

    Args:
        message: The message, of topic ``TRANS_CHECK_MAX_TIME_TOPIC``.
    """
    header = headers.ResumeCheckHeader(msg_id=message.offset_message_id)
    await admin.calls.ask(
        str(message.store_host), requests.make(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
    )


async def _query(
    admin: AdminConnection, topic: str, header: headers.QueryMessageHeader
) -> tuple[list[ReceivedMessage], bool]:
    """Query one broker per name; return their messages, and whether there may be more.

    Hash collisions are dropped.
    """
    route = await topics.topic_route(admin, topic)
    messages: list[ReceivedMessage] = []
    is_truncated = False
    for broker_name in sorted(route.brokers):
        request = requests.make(RequestCode.QUERY_MESSAGE, header)
        try:
            reply = await admin.calls.ask(route.any_address(broker_name), request)
        except BrokerError as error:
            if error.response_code != ResponseCode.QUERY_NOT_FOUND:
                raise
        else:
            messages += received(reply.body, broker_name)
            # Brokers of reput add a remark; those of RocketMQ lower the count silently to 64.
            record_count = sum(1 for _ in record_spans(reply.body))
            is_full = record_count in (header.max_num, KEY_QUERY_COUNT_MAX)
            is_truncated |= is_full or bool(reply.remark)
    same = [message for message in messages if topic in (message.stored.topic, message.topic)]
    return same, is_truncated
