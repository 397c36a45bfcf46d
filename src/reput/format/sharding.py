"""The queue of a sharding key: messages with the same key are stored in one queue, in order.

Source: rocketmq 4.9.7 ``SelectMessageQueueByHash``.
"""

from reput.format import java


def queue_index(sharding_key: str, queue_count: int) -> int:
    """Return the index of a key's queue in the list of a topic's writable queues.

    Java takes the remainder, which has the sign of the hash, before the absolute value, so that
    ``Integer.MIN_VALUE`` is no exception. A Python integer needs no such order.
    """
    return abs(java.string_hash(sharding_key)) % queue_count
