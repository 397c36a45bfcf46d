"""Light queues (LMQ): queues of one consumer each, whose messages stand in another topic.

A message names them in INNER_MULTI_DISPATCH; the store gives it a unit in each. With ``enableLmq``
each has a topic ``%LMQ%name`` of one queue, and each ``%LMQ%name`` is a group: both are there
without being made, saved or told to name servers. Source: ``LmqTopicConfigManager``,
``LmqSubscriptionGroupManager``.
"""

from reput.format import names
from reput.format.codes import PERM_READ, PERM_WRITE
from reput.store.config_tables import TopicConfig
from reput.store.table_files import SubscriptionGroup


def topic_of(name: str) -> TopicConfig | None:
    """Return the topic of a light queue; None if the name is another's."""
    if not names.is_light(name):
        return None
    return TopicConfig(
        name=name, read_queue_count=1, write_queue_count=1, perm=PERM_READ | PERM_WRITE
    )


def group_of(name: str) -> SubscriptionGroup | None:
    """Return the group that reads light queues; None if the name is another's."""
    return SubscriptionGroup(name=name) if names.is_light(name) else None
