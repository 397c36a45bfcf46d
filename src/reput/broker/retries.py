"""Messages that a group consumes again: retry topics, and dead letters after the last attempt.

A message is delivered again through its group's retry topic, after a delay that grows with each
attempt. Source: rocketmq 4.9.8 ``SendMessageProcessor`` (``asyncConsumerSendMsgBack``,
``handleRetryAndDLQ``).
"""

import contextlib
import random
from typing import TYPE_CHECKING

from reput.broker.kernels.send_rules import TIMER_UNITS_MS
from reput.broker.quotas import OWN
from reput.broker.republish import copied_message
from reput.broker.topic.topics import READ_WRITE
from reput.config import JAVA_INT_MAX
from reput.errors import RequestRefused
from reput.format import names, properties as props
from reput.format.codes import PERM_WRITE, ResponseCode
from reput.format.headers import SendBackHeader, SendMessageHeader
from reput.format.message import StoredMessage
from reput.format.message_id import encode_offset_id
from reput.store.kernels.copy_args import FIRST_DELAY_LEVEL
from reput.store.tables.config_tables import TopicConfig
from reput.store.writing.incoming import IncomingMessage

if TYPE_CHECKING:
    from reput.broker.group.subscription_groups import SubscriptionGroups
    from reput.broker.timer.timers import Timers
    from reput.broker.topic.topics import Topics
    from reput.clock import Clock
    from reput.store.tables.groups import SubscriptionGroup

DLQ_QUEUE_COUNT = 1
RETRY_MAX_VERSION_MIN = 121
"""Version V3_4_9: the maximum number of retries in requests of older clients is ignored."""
_UNIT_SUBSCRIPTION = 2
"""Topic flag of a retry topic whose group is in unit mode."""


class Retries:
    """Decides between another attempt and the dead-letter topic.

    Args:
        topics: Creates retry and dead-letter topics.
        groups: The maximum number of retries of each group.
        clock: The clock.
    """

    def __init__(self, topics: "Topics", groups: "SubscriptionGroups", clock: "Clock") -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock

    def group(self, name: str, address: str = OWN) -> "SubscriptionGroup":
        """Return a group's settings; create them if that is allowed.

        Args:
            name: Name of the group.
            address: Address of the client.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST, or the name is not valid for a group.
            LimitExceeded: There are too many groups, or too many that this address has created.
        """
        group = self._groups.obtain(name, self._clock.now_ms(), address)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        return group

    # A message that a client sends to the retry topic -----------------------------------------

    def redirect(
        self,
        header: SendMessageHeader,
        client_version: int,
        topic: TopicConfig,
        queue_id: int,
        properties: dict[str, str],
        address: str = OWN,
    ) -> tuple[TopicConfig, int]:
        """Return the destination of a message that a client sends to a retry topic.

        A dead letter loses its delay: 4.9 fails to remove it, 5.x does remove it.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        if not names.is_retry_topic(header.topic):
            return topic, queue_id
        group = self.group(header.topic.removeprefix(names.RETRY_PREFIX), address)
        retry_max = _retry_max(group, client_version, header.max_reconsume_times)
        if (header.reconsume_times or 0) < retry_max:
            return topic, queue_id
        properties.pop(props.DELAY, None)
        return self._dead_letters(group.name, address), random.randrange(DLQ_QUEUE_COUNT)

    def origin(self, topic: str | None, group: str) -> str:
        """Return the topic in whose statistics a message that is sent back is counted.

        Args:
            topic: Its RETRY_TOPIC property, which any client may have written, or its own topic.
            group: The group that sends it back.
        """
        is_known = topic is not None and self._topics.get(topic) is not None
        return topic if topic is not None and is_known else names.retry_topic(group)

    # A message that is sent back --------------------------------------------------------------

    def topic_of(
        self, group: "SubscriptionGroup", *, is_unit: bool, address: str = OWN
    ) -> TopicConfig:
        """Return the retry topic of a group; create it if necessary, with the unit flag.

        Raises:
            RequestRefused: The group's name is not valid in a topic name, or the topic is not
                writable.
        """
        name = names.retry_topic(group.name)
        exists = self._topics.get(name) is not None
        if not exists and not names.is_legal_topic(name, names.LONG_TOPIC_LENGTH_MAX):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"group {group.name!r} cannot have a retry topic; allowed: ^[%|a-zA-Z0-9_-]+$, "
                f"{names.LONG_TOPIC_LENGTH_MAX - len(names.RETRY_PREFIX)} characters at most",
            )
        sys_flag = _UNIT_SUBSCRIPTION if is_unit else 0
        topic = self._topics.for_group(
            name, group.retry_queue_count, READ_WRITE, self._clock.now_ms(), sys_flag,
            address=address,
        )  # fmt: skip
        if not topic.perm & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
            )
        return topic

    def message(
        self,
        stored: StoredMessage,
        header: SendBackHeader,
        client_version: int,
        group: "SubscriptionGroup",
        topic: TopicConfig,
        timers: "Timers",
    ) -> IncomingMessage:
        """Return the copy of a message that is sent back.

        Args:
            stored: The message.
            header: The consumer's request.
            client_version: Version of the consumer.
            group: Settings of the consumer's group.
            topic: The group's retry topic.
            timers: The timer, in which a dead letter waits if it has a delay that it has not waited
                for, as in Java.

        Raises:
            Refused: There is no room for the properties it needs.
        """
        properties = dict(stored.properties)
        retry_max = _retry_max(group, client_version, header.max_reconsume_times)
        level = header.delay_level
        queue_id = random.randrange(group.retry_queue_count)
        if stored.reconsume_times >= retry_max or level < 0:
            topic = self._dead_letters(group.name)
            queue_id = random.randrange(DLQ_QUEUE_COUNT)
            level = 0
        else:
            level = level or FIRST_DELAY_LEVEL + stored.reconsume_times
            # The level replaces times for the timer; the other two are added again when the message
            # is put, after the other properties.
            for name in (*TIMER_UNITS_MS, props.REAL_TOPIC, props.REAL_QUEUE_ID):
                properties.pop(name, None)
        for name in (props.WAIT, props.DELAY):
            properties.pop(name, None)
        properties.setdefault(props.RETRY_TOPIC, stored.topic)
        offset_id = encode_offset_id(stored.store_host, stored.physical_offset)
        properties.setdefault(props.ORIGIN_MESSAGE_ID, offset_id)
        properties[props.WAIT] = "false"
        properties[props.DELAY] = str(level)
        name, now_ms = topic.name, self._clock.now_ms()
        with contextlib.suppress(RequestRefused):  # a dead letter with a wrong time does not wait
            if not level and timers.park(name, queue_id, properties, now_ms):
                self._topics.for_group(names.TIMER_TOPIC, 1, READ_WRITE, now_ms)
                name, queue_id = names.TIMER_TOPIC, 0
        return copied_message(
            stored,
            name,
            queue_id,
            properties=properties,
            reconsume_times=min(stored.reconsume_times + 1, JAVA_INT_MAX),
        )

    def _dead_letters(self, group: str, address: str = OWN) -> TopicConfig:
        return self._topics.for_group(
            names.dlq_topic(group),
            DLQ_QUEUE_COUNT,
            READ_WRITE,
            self._clock.now_ms(),
            address=address,
        )


def _retry_max(group: "SubscriptionGroup", client_version: int, requested: int | None) -> int:
    """Return the number of attempts after which a message becomes a dead letter."""
    is_valid = requested is not None and client_version >= RETRY_MAX_VERSION_MIN
    return requested if requested is not None and is_valid else group.retry_max
