"""Messages that a group wants to see again: retry topics, and dead letters when that is enough."""

import random
from typing import TYPE_CHECKING

from reput.errors import RequestRefused
from reput.format import names
from reput.format.codes import ResponseCode
from reput.format.headers import SendMessageHeader
from reput.store.config_tables import TopicConfig

if TYPE_CHECKING:
    from reput.broker.subscription_groups import SubscriptionGroups
    from reput.broker.topics import Topics
    from reput.clock import Clock

DLQ_QUEUE_COUNT = 1
_READ_WRITE = 6


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

    def redirect(
        self, header: SendMessageHeader, topic: TopicConfig, queue_id: int
    ) -> tuple[TopicConfig, int]:
        """Return where a message goes that a client sends to a retry topic itself.

        Raises:
            RequestRefused: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        if not names.is_retry_topic(header.topic):
            return topic, queue_id
        name = header.topic.removeprefix(names.RETRY_PREFIX)
        group = self._groups.get(name)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        retry_max = group.retry_max
        if header.max_reconsume_times is not None:
            retry_max = header.max_reconsume_times
        if (header.reconsume_times or 0) < retry_max:
            return topic, queue_id
        dead = self._topics.for_group(
            names.dlq_topic(name), DLQ_QUEUE_COUNT, _READ_WRITE, self._clock.now_ms()
        )
        return dead, random.randrange(DLQ_QUEUE_COUNT)
