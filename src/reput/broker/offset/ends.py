"""Consumer offsets after the ends of their queues, as a cut or an incomplete copy leaves them."""

import logging

from reput.store.interface import BrokerStore
from reput.store.table_files import ConsumerOffsetTable

_log = logging.getLogger(__name__)


def lower_offsets(table: ConsumerOffsetTable, store: BrokerStore) -> int:
    """Lower consumer offsets to the ends of their queues; return the number of lowered ones.

    A master gives the next message of a queue its end as queue offset: a group with a larger
    consumer offset would never get it (https://github.com/apache/rocketmq/issues/4771).
    """
    count = 0
    for entry in table.all():
        end = store.max_offset(entry.topic, entry.queue_id)
        if entry.consumer_offset > end:
            table.put(entry.topic, entry.group, entry.queue_id, end)
            count += 1
    if count:
        _log.warning("%d consumer offsets were after the ends of their queues; lowered", count)
    return count
