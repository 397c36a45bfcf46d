"""Consumer offsets after the ends of their queues, as a copy of another broker's tables has them.

A slave copies the consumer offsets beside the log, which may lack the last messages when it becomes
master. A master gives the next message of a queue its end as queue offset: a group with a larger
consumer offset would never get it (https://github.com/apache/rocketmq/issues/4771).

Only offsets of a former slave are lowered: clients may commit any offset, and it stays.
"""

import logging

from reput.store.message_store import MessageStore
from reput.store.tables.offsets import ConsumerOffsetTable

_log = logging.getLogger(__name__)


def lower_offsets(table: ConsumerOffsetTable, store: MessageStore, now_ms: int) -> None:
    """Lower consumer offsets of a former slave to the ends of their queues, and save them.

    Args:
        table: The consumer offsets.
        store: The queues.
        now_ms: The time, ms.

    Raises:
        WriteFailed: The disk failed.
    """
    count = 0
    for entry in table.all():
        end = store.max_offset(entry.topic, entry.queue_id)
        if entry.consumer_offset > end:
            table.put(entry.topic, entry.group, entry.queue_id, end)
            count += 1
    if count:
        _log.warning("%d consumer offsets were after the ends of their queues; lowered", count)
        table.save(now_ms)
