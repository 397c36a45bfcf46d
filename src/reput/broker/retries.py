"""Messages that a group wants to see again: retry topics, and dead letters when that is enough.

A message comes again through its group's retry topic, after a delay that grows with each attempt.
Source: rocketmq 4.9.8 ``SendMessageProcessor`` (``asyncConsumerSendMsgBack``,
``handleRetryAndDLQ``).
"""

import random
from typing import TYPE_CHECKING

from reput.broker.quotas import OWN
from reput.broker.republish import again
from reput.broker.topic.topics import READ_WRITE
from reput.config import JAVA_INT_MAX
from reput.errors import RequestRefused
from reput.format import names, properties as props
from reput.format.codes import PERM_WRITE, ResponseCode
from reput.format.headers import SendBackHeader, SendMessageHeader
from reput.format.message import StoredMessage
from reput.format.message_id import encode_offset_id
from reput.store.config_tables import TopicConfig
from reput.store.incoming import IncomingMessage
from reput.store.kernels.copy_args import FIRST_DELAY_LEVEL

if TYPE_CHECKING:
    from reput.broker.group.subscription_groups import SubscriptionGroups
    from reput.broker.topic.topics import Topics
    from reput.clock import Clock
    from reput.store.table_files import SubscriptionGroup

DLQ_QUEUE_COUNT = 1
SAYS_RETRY_MAX_VERSION = 121
"""V3_4_9: what older clients say of how often to retry does not count."""
_UNIT_SUBSCRIPTION = 2
"""Topic flag of a retry topic whose group is in unit mode."""


class Retries:
    """Decides between another attempt and the dead-letter topic.

    Args:
        topics: Where retry and dead-letter topics are made.
        groups: How often a group tries.
        clock: What the time is.
    """

    def __init__(self, topics: "Topics", groups: "SubscriptionGroups", clock: "Clock") -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock

    def group(self, name: str, address: str = OWN) -> "SubscriptionGroup":
        """Return a group's settings, made if that is allowed.

        Args:
            name: Of the group.
            address: Of the client that names it.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST, or no group may have that name.
            LimitExceeded: There are too many groups, or too many that this address has made.
        """
        group = self._groups.obtain(name, self._clock.now_ms(), address)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        return group

    # A copy that a client sends ---------------------------------------------------------------

    def redirect(
        self,
        header: SendMessageHeader,
        client_version: int,
        topic: TopicConfig,
        queue_id: int,
        properties: dict[str, str],
        address: str = OWN,
    ) -> tuple[TopicConfig, int]:
        """Return where a message goes that a client sends to a retry topic itself.

        A dead letter loses its delay: 4.9 forgets to take it away, 5.x does.

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

    def origin(self, told: str | None, group: str) -> str:
        """Return the topic that a message which is sent back is counted for.

        Args:
            told: What its RETRY_TOPIC says, which any client may have written; or its own topic.
            group: Who sends it back.
        """
        is_known = told is not None and self._topics.get(told) is not None
        return told if told is not None and is_known else names.retry_topic(group)

    # A message that is sent back --------------------------------------------------------------

    def topic_of(
        self, group: "SubscriptionGroup", *, is_unit: bool, address: str = OWN
    ) -> TopicConfig:
        """Return the retry topic of a group, made if need be; in unit mode it says so.

        Raises:
            RequestRefused: The group's name cannot be in a topic's, or the topic is not writable.
        """
        name = names.retry_topic(group.name)
        is_there = self._topics.get(name) is not None
        if not is_there and not names.is_legal_topic(name, names.LONG_TOPIC_LENGTH_MAX):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"group {group.name!r} can have no retry topic; allowed: ^[%|a-zA-Z0-9_-]+$, "
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
    ) -> IncomingMessage:
        """Return what is put in place of a message that is sent back.

        Args:
            stored: The message.
            header: What its consumer wants.
            client_version: Of the consumer.
            group: Of the consumer.
            topic: The group's retry topic.

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
            for name in (props.REAL_TOPIC, props.REAL_QUEUE_ID):
                properties.pop(name, None)  # it gets them anew as it is put, behind the others
        for name in (props.WAIT, props.DELAY):
            properties.pop(name, None)
        properties.setdefault(props.RETRY_TOPIC, stored.topic)
        offset_id = encode_offset_id(stored.store_host, stored.physical_offset)
        properties.setdefault(props.ORIGIN_MESSAGE_ID, offset_id)
        properties[props.WAIT] = "false"
        properties[props.DELAY] = str(level)
        return again(
            stored,
            topic.name,
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


def _retry_max(group: "SubscriptionGroup", client_version: int, wanted: int | None) -> int:
    """Return after how many attempts a message becomes a dead letter."""
    is_said = wanted is not None and client_version >= SAYS_RETRY_MAX_VERSION
    return wanted if wanted is not None and is_said else group.retry_max
