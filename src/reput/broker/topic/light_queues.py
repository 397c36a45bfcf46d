"""Light queues (LMQ): queues of one consumer each, whose messages are in another topic.

A message lists its light queues in INNER_MULTI_DISPATCH; the store adds a unit to each. With
``enableLmq`` each has a topic ``%LMQ%name`` with one queue, and each ``%LMQ%name`` is a group: both
exist implicitly, and are neither saved nor registered with name servers. Source:
``LmqTopicConfigManager``, ``LmqSubscriptionGroupManager``.
"""

from reput.format import names
from reput.format.codes import PERM_READ, PERM_WRITE
from reput.store.config_tables import TopicConfig
from reput.store.table_files import SubscriptionGroup


def topic_of(name: str) -> TopicConfig | None:
    """Return the topic of a light queue; None if the name is not one of a light queue."""
    if not names.is_light(name):
        return None
    return TopicConfig(
        name=name, read_queue_count=1, write_queue_count=1, perm=PERM_READ | PERM_WRITE
    )


def group_of(name: str) -> SubscriptionGroup | None:
    """Return the group that reads light queues; None if the name is not one of a light queue."""
    return SubscriptionGroup(name=name) if names.is_light(name) else None
