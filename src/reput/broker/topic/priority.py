"""Priorities (5.4): a number that says in which queue of its topic a message goes.

The higher ones are in the higher queues, which pops of a topic with ``message.type=PRIORITY`` read
first; for all others it is a queue like any other.
Source: rocketmq 5.5.0 ``SendMessageProcessor``, ``TopicMessageType``, ``PopMessageProcessor``.
"""

import re

from reput.broker.topic.attributes import MESSAGE_TYPE
from reput.format import properties as props
from reput.store.config_tables import TopicConfig
from reput.store.table_files import SubscriptionGroup

_OTHER_KINDS = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "__SHARDINGKEY")
"""What a message is before it is one with a priority."""
_INT = re.compile(r"[+-]?[0-9]{1,32}", re.ASCII)
_INT_MAX = (1 << 31) - 1
_OF_PRIORITIES = (MESSAGE_TYPE, "PRIORITY")
_FACTOR = "priority.factor"
_PERCENT_MAX = 100


def queue_of(properties: dict[str, str], write_queue_count: int) -> int | None:
    """Return the queue that a message's priority asks for; None if any will do.

    Args:
        properties: Of the message. A priority is removed if the message is of another kind:
            delayed, in order, or part of a transaction.
        write_queue_count: Of its topic. Priorities beyond it go to the last queue.
    """
    text = properties.get(props.PRIORITY)
    if text is None or not _INT.fullmatch(text) or not 0 <= int(text) <= _INT_MAX:
        return None  # as Java, which leaves what is no number
    is_half = properties.get(props.TRANSACTION_PREPARED, "").lower() == "true"
    if is_half or any(name in properties for name in _OTHER_KINDS):
        del properties[props.PRIORITY]
        return None
    return min(int(text), max(write_queue_count, 1) - 1)


def read_percent(topic: TopicConfig, group: SubscriptionGroup | None) -> int:
    """Return in how many of a hundred pops a group reads the higher queues of a topic first."""
    if _OF_PRIORITIES not in topic.attributes:
        return 0
    text = dict(group.attributes).get(_FACTOR, "") if group is not None else ""
    percent = props.number(text)
    return _PERCENT_MAX if percent is None else percent
