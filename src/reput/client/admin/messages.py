"""Queries of messages by id or key."""

from collections.abc import Iterable

from reput import config
from reput.client.admin import topics
from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.client.core.key_search import (
    PAGE_COUNT,
    KeyQuery,
    KeyWindows,
    Window,
    without_collisions,
)
from reput.client.message import ReceivedMessage, received
from reput.errors import BrokerError, CorruptRecord, InvalidOption
from reput.format import headers, message_id as ids
from reput.format.codes import RequestCode, ResponseCode

KEY_QUERY_COUNT_MAX = PAGE_COUNT
"""Default maximum number of messages of a key and broker."""
END_OF_TIME_MS = config.JAVA_LONG_MAX


class MessagesOfKey(list[ReceivedMessage]):
    """Messages of a topic that have a key, oldest first."""

    is_truncated = False
    """True if there may be more: older ones than the requested number, or more within a second
    than a broker returns."""


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
    query = KeyQuery(topic, unique_key, is_unique=True)
    route = await topics.topic_route(admin, topic)
    same: list[ReceivedMessage] = []
    for broker_name in sorted(route.brokers):
        page = await admin.calls.ask_index(route.any_address(broker_name), query)
        messages = without_collisions(received(page.records, broker_name), topic)
        same += (message for message in messages if message.stored.has_unique_key(unique_key))
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
    count_max: int | None = KEY_QUERY_COUNT_MAX,
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
) -> MessagesOfKey:
    """Return messages of a topic that have a key, oldest first.

    ``is_truncated`` of the result is True if there may be more.

    Args:
        admin: The admin client.
        topic: The topic.
        key: One of a message's ``keys``.
        count_max: Maximum number of messages per broker, of which the newest are returned; None:
            all. A batch that is stored as one record counts as one.
        begin_ms: Earliest store time, in ms since the epoch.
        end_ms: Latest store time, in ms since the epoch.
    """
    route = await topics.topic_route(admin, topic)
    interval = Window(begin_ms, end_ms + 1)
    same = MessagesOfKey()
    for broker_name in sorted(route.brokers):
        address = route.any_address(broker_name)
        search = _BrokerSearch(topic, key, interval, count_max)
        while (query := search.next) is not None:
            page = await admin.calls.ask_index(address, query)
            search.add(received(page.records, broker_name), page.oldest_ms)
        same += search.messages()
        same.is_truncated |= search.is_truncated
    same.sort(key=lambda message: message.store_timestamp_ms)
    return same


class _BrokerSearch:
    """The search for the newest messages with a key at a broker."""

    def __init__(self, topic: str, key: str, interval: Window, count_max: int | None) -> None:
        self._topic = topic
        self._key = key
        self._interval = interval
        self._count_max = count_max
        self._windows = KeyWindows(interval)
        self._by_offset: dict[int, list[ReceivedMessage]] = {}
        """Messages of each record, by physical offset."""
        self.is_truncated = False

    @property
    def next(self) -> KeyQuery | None:
        """The next query; None at the end."""
        window = self._windows.next
        if window is None or self._is_enough:
            return None
        count = PAGE_COUNT
        if window == self._interval and self._count_max is not None:
            count = max(1, min(count, self._count_max))  # usually all that is needed
        return KeyQuery(self._topic, self._key, window, count_max=count)

    @property
    def _is_enough(self) -> bool:
        return self._count_max is not None and len(self._by_offset) >= self._count_max

    def add(self, messages: Iterable[ReceivedMessage], oldest_ms: int | None) -> None:
        """Add the page of the last query.

        Args:
            messages: Its messages.
            oldest_ms: As ``KeyPage.oldest_ms``.
        """
        of_page: dict[int, list[ReceivedMessage]] = {}
        for message in without_collisions(messages, self._topic):
            if self._key in message.keys and self._interval.has(message.store_timestamp_ms):
                of_page.setdefault(message.physical_offset, []).append(message)
        self._by_offset |= of_page
        is_finished = self._windows.answer(oldest_ms)
        self.is_truncated |= is_finished and oldest_ms is not None
        self.is_truncated |= self._is_enough and self._windows.next is not None

    def messages(self) -> list[ReceivedMessage]:
        """Return the newest messages, in log order."""
        newest = sorted(self._by_offset, reverse=True)[: self._count_max]
        self.is_truncated |= len(newest) < len(self._by_offset)
        return [message for offset in reversed(newest) for message in self._by_offset[offset]]


async def resume_check(admin: AdminConnection, message: ReceivedMessage) -> None:
    """Resume the checks of a half message that its broker has given up.

    Args:
        message: The message, of topic ``TRANS_CHECK_MAX_TIME_TOPIC``.
    """
    header = headers.ResumeCheckHeader(msg_id=message.offset_message_id)
    await admin.calls.ask(
        str(message.store_host), requests.make(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
    )
