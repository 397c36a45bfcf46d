"""The queue of a message group: Guava's consistent hash of its Java hash.

Messages of a group stay in their queue when a producer moves between Java's proxy and this front;
a further queue takes over few groups.
Source: rocketmq-proxy 5.5.0 ``SendMessageActivity``; Guava 32 ``Hashing.consistentHash``; Lamping
and Veach, "A fast, minimal memory, consistent hash algorithm", 2014.
"""

from reput.format import java

_FACTOR = 2862933555777941757
_MASK_64 = (1 << 64) - 1
_INT_MAX = (1 << 31) - 1


def queue_index(message_group: str, queue_count: int) -> int:
    """Return the index of a group's queue.

    Args:
        message_group: Name of the group, or of a lite topic.
        queue_count: Number of writable queues, sorted by topic, broker and id; at least 1.
    """
    state = java.string_hash(message_group) & _MASK_64
    candidate = 0
    while True:
        state = (state * _FACTOR + 1) & _MASK_64
        number = state >> 33
        if number == _INT_MAX:
            return candidate  # the sum below overflows in Java
        # Floats, as Java: their rounding is part of the result.
        following = int((candidate + 1) / ((number + 1) / (1 << 31)))
        if following >= queue_count:
            return candidate
        candidate = following
