"""Priorities (5.4): a number that selects the queue of a message within its topic.

Higher priorities are in higher queues, which pops of a topic with ``message.type=PRIORITY`` read
first; for other consumers they are ordinary queues. Source: rocketmq 5.5.0
``SendMessageProcessor``, ``TopicMessageType``, ``PopMessageProcessor``.
"""

import re

from reput.broker.topic.attributes import MESSAGE_TYPE
from reput.format import properties as props
from reput.store.tables.config_tables import TopicConfig
from reput.store.tables.groups import SubscriptionGroup

_OTHER_KINDS = (
    props.DELAY,
    props.TIMER_DELIVER_MS,
    props.TIMER_DELAY_SEC,
    props.TIMER_DELAY_MS,
    props.SHARDING_KEY,
)
"""Properties of kinds of messages whose priority is ignored."""
_INT = re.compile(r"[+-]?[0-9]{1,32}", re.ASCII)
_INT_MAX = (1 << 31) - 1
_OF_PRIORITIES = (MESSAGE_TYPE, "PRIORITY")
_FACTOR = "priority.factor"
_PERCENT_MAX = 100


def queue_of(properties: dict[str, str], write_queue_count: int) -> int | None:
    """Return the queue for a message's priority; None for any queue.

    Args:
        properties: Properties of the message. The priority is removed if the message is of another
            kind: delayed, ordered, or part of a transaction.
        write_queue_count: Write queues of its topic. Higher priorities go to the last queue.
    """
    text = properties.get(props.PRIORITY)
    if text is None or not _INT.fullmatch(text) or not 0 <= int(text) <= _INT_MAX:
        return None  # as in Java, which ignores invalid numbers
    is_half = properties.get(props.TRANSACTION_PREPARED, "").lower() == "true"
    if is_half or any(name in properties for name in _OTHER_KINDS):
        del properties[props.PRIORITY]
        return None
    return min(int(text), max(write_queue_count, 1) - 1)


def read_percent(topic: TopicConfig, group: SubscriptionGroup | None) -> int:
    """Return the percentage of a group's pops that read the higher queues of a topic first."""
    if _OF_PRIORITIES not in topic.attributes:
        return 0
    text = dict(group.attributes).get(_FACTOR, "") if group is not None else ""
    percent = props.number(text)
    return _PERCENT_MAX if percent is None else percent
