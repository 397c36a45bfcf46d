"""Pops in order: the next messages of a queue come when those before are acknowledged.

A group holds one block of a queue at a time. Its consumer offset moves over what is acknowledged
from the block's start on; what is not when the block's time is over is handed out again.
Source: rocketmq 5.5.0 ``QueueLevelConsumerManager``, ``AckMessageProcessor.ackOrderly``.
"""

from collections.abc import Sequence

from reput import limits
from reput.format import pop_codec
from reput.store.pop_tables import ConsumerOrderTable, OrderBlock


class PopOrders:
    """What groups hold in order.

    Args:
        table: Where it is kept.
    """

    def __init__(self, table: ConsumerOrderTable) -> None:
        self.table = table

    def check_room(self, topic: str, group: str, queue_count: int) -> None:
        """Refuse a group that would hold messages of more queues than there may be.

        Raises:
            LimitExceeded: There would be too many.
        """
        table, limit = self.table, limits.ORDERED_QUEUES
        if table.count + queue_count > limit.maximum:
            limit.check(table.count + queue_count - table.queue_count(topic, group), group)

    def blocked_until(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, now_ms: int
    ) -> int | None:
        """Return when a queue may be read on, if nobody acknowledges anything; None: now.

        Args:
            topic: Of the queue.
            group: Who reads.
            queue_id: Of the queue.
            attempt_id: Of the request; who holds the block asks again with the same.
            now_ms: The time.
        """
        block = self.table.get(topic, group, queue_id)
        if block is None or (attempt_id is not None and block.attempt_id == attempt_id):
            return None
        latest = max((_visible_ms(block, one) for one in _left(block)), default=0)
        return latest if latest > now_ms else None

    def begin(
        self,
        topic: str,
        group: str,
        queue_id: int,
        queue_offsets: Sequence[int],
        attempt_id: str | None,
        invisible_ms: int,
        now_ms: int,
    ) -> str:
        """Take note of the block that a group takes now.

        Returns:
            How often its messages were taken before, for the reply.
        """
        old = self.table.get(topic, group, queue_id)
        block = OrderBlock(now_ms, invisible_ms, list(queue_offsets), now_ms, attempt_id=attempt_id)
        if old is not None and old.attempt_id is not None and old.attempt_id == attempt_id:
            block.counts = old.counts
        elif old is not None:
            again = set(old.queue_offsets)
            block.counts = {
                one: old.counts.get(one, 0) + 1 for one in block.queue_offsets if one in again
            }
        self.table.put(topic, group, queue_id, block)
        least = min((block.counts.get(one, 0) for one in block.queue_offsets), default=0)
        return pop_codec.order_info(topic, queue_id, list(block.counts.items()), least)

    def acknowledge(
        self, topic: str, group: str, queue_id: int, queue_offset: int, pop_ms: int
    ) -> int | None:
        """Take note that a message was consumed.

        Returns:
            The group's consumer offset now; None if somebody else has the block meanwhile.

        Raises:
            ValueError: The message is not in the group's block.
        """
        block = self.table.get(topic, group, queue_id)
        if block is None:
            return queue_offset + 1
        if pop_ms != block.pop_ms:
            return None
        if queue_offset not in block.queue_offsets:
            raise ValueError(f"message {queue_offset} is not among {block.queue_offsets}")
        block.acked |= 1 << block.queue_offsets.index(queue_offset)
        self.table.put(topic, group, queue_id, block)
        left = _left(block)
        return left[0] if left else block.queue_offsets[-1] + 1

    def postpone(
        self, topic: str, group: str, queue_id: int, queue_offset: int, pop_ms: int, visible_ms: int
    ) -> bool:
        """Let a message be taken again at ``visible_ms``; return whether the block is that one."""
        block = self.table.get(topic, group, queue_id)
        if block is None or block.pop_ms != pop_ms or queue_offset not in block.queue_offsets:
            return False
        block.visible_ms[queue_offset] = visible_ms
        self.table.put(topic, group, queue_id, block)
        return True


def _left(block: OrderBlock) -> list[int]:
    """Return the queue offsets that are not acknowledged."""
    return [offset for at, offset in enumerate(block.queue_offsets) if not block.acked >> at & 1]


def _visible_ms(block: OrderBlock, queue_offset: int) -> int:
    return block.visible_ms.get(queue_offset, block.pop_ms + block.invisible_ms)
