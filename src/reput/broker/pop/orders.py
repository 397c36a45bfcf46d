"""Ordered pops: a queue's next messages are available once the previous ones are acknowledged.

A group holds one block of a queue at a time. Its consumer offset moves over acknowledged messages
from the start of the block. Messages that are not acknowledged when the block's time is over are
delivered again. Source: rocketmq 5.5.0 ``QueueLevelConsumerManager``,
``AckMessageProcessor.ackOrderly``.
"""

from collections.abc import Sequence
from typing import Protocol

from reput.broker import limits
from reput.format import pop_codec
from reput.store.tables.pop_tables import OrderBlock


class Blocks(Protocol):
    """The blocks of queues by topic, group and queue id."""

    @property
    def count(self) -> int:
        """Number of blocks."""

    def get(self, topic: str, group: str, queue_id: int) -> OrderBlock | None:
        """Return the block of a queue; None if there is none."""

    def put(self, topic: str, group: str, queue_id: int, block: OrderBlock) -> None:
        """Set the block of a queue."""

    def queue_count(self, topic: str, group: str) -> int:
        """Return the number of queues of a topic for which a group has a block."""

    def release(self, topic: str, group: str, queue_id: int) -> None:
        """Remove the block of a queue, if there is one."""

    def delete(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the blocks of a topic, of a group, or of both."""


class MemoryBlocks:
    """Blocks that are not saved."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, str, int], OrderBlock] = {}

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self._blocks)

    def get(self, topic: str, group: str, queue_id: int) -> OrderBlock | None:
        """Return the block of a queue; None if there is none."""
        return self._blocks.get((topic, group, queue_id))

    def put(self, topic: str, group: str, queue_id: int, block: OrderBlock) -> None:
        """Set the block of a queue."""
        self._blocks[topic, group, queue_id] = block

    def delete(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the blocks of a topic, of a group, or of both."""
        for key in [
            key for key in self._blocks if topic in (None, key[0]) and group in (None, key[1])
        ]:
            del self._blocks[key]

    def release(self, topic: str, group: str, queue_id: int) -> None:
        """Remove the block of a queue, if there is one."""
        self._blocks.pop((topic, group, queue_id), None)

    def queue_count(self, topic: str, group: str) -> int:
        """Return the number of queues of a topic for which a group has a block."""
        return sum(key[:2] == (topic, group) for key in self._blocks)


class PopOrders:
    """The blocks of messages that groups hold in order.

    Args:
        table: Stores the blocks.
    """

    def __init__(self, table: Blocks) -> None:
        self.table = table

    def check_room(self, topic: str, group: str, queue_count: int) -> None:
        """Refuse a pop that would exceed the number of queues that are held in order.

        Raises:
            LimitExceeded: The number of held queues would exceed ``limits.ORDERED_QUEUES``.
        """
        table, limit = self.table, limits.ORDERED_QUEUES
        if table.count + queue_count > limit.maximum:
            limit.check(table.count + queue_count - table.queue_count(topic, group), group)

    def blocked_until(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, now_ms: int
    ) -> int | None:
        """Return when a queue can be read without further acknowledgements; None for now.

        Args:
            topic: Topic of the queue.
            group: Consumer group.
            queue_id: Id of the queue.
            attempt_id: Attempt id of the request; a retry of the pop that holds the block has the
                same.
            now_ms: The time.
        """
        block = self.table.get(topic, group, queue_id)
        if block is None or (attempt_id is not None and block.attempt_id == attempt_id):
            return None
        latest = max((_visible_ms(block, queue_offset) for queue_offset in _left(block)), default=0)
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
        """Record the block that a group pops now.

        Returns:
            The reply's order info: how often each message was delivered before.
        """
        old = self.table.get(topic, group, queue_id)
        block = OrderBlock(now_ms, invisible_ms, list(queue_offsets), now_ms, attempt_id=attempt_id)
        if old is not None and old.attempt_id is not None and old.attempt_id == attempt_id:
            block.counts = old.counts
        elif old is not None:
            redelivered = set(old.queue_offsets)
            block.counts = {
                queue_offset: old.counts.get(queue_offset, 0) + (queue_offset not in old.uncounted)
                for queue_offset in block.queue_offsets
                if queue_offset in redelivered
            }
        self.table.put(topic, group, queue_id, block)
        least = min(
            (block.counts.get(queue_offset, 0) for queue_offset in block.queue_offsets), default=0
        )
        return pop_codec.order_info(topic, queue_id, list(block.counts.items()), least)

    def acknowledge(
        self, topic: str, group: str, queue_id: int, queue_offset: int, pop_ms: int
    ) -> int | None:
        """Record that a message was consumed.

        Returns:
            The group's new consumer offset; None if another pop holds the block by now.

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
        self,
        topic: str,
        group: str,
        queue_id: int,
        queue_offset: int,
        pop_ms: int,
        visible_ms: int,
        *,
        is_suspended: bool = False,
    ) -> bool:
        """Delay a message's delivery to ``visible_ms``; return False if the block has changed.

        ``is_suspended`` is True if its present delivery does not count as an attempt.
        """
        block = self.table.get(topic, group, queue_id)
        if block is None or block.pop_ms != pop_ms or queue_offset not in block.queue_offsets:
            return False
        block.visible_ms[queue_offset] = visible_ms
        if is_suspended:
            block.uncounted.add(queue_offset)
        self.table.put(topic, group, queue_id, block)
        return True

    def suspend(self, topic: str, group: str, queue_id: int, pop_ms: int, visible_ms: int) -> bool:
        """Delay a whole block to ``visible_ms`` without counting this delivery.

        Returns:
            False if the block has changed.
        """
        block = self.table.get(topic, group, queue_id)
        if block is None or block.pop_ms != pop_ms:
            return False
        block.uncounted = set(block.queue_offsets)
        block.visible_ms = {}
        block.invisible_ms = visible_ms - block.pop_ms
        self.table.put(topic, group, queue_id, block)
        return True


def _left(block: OrderBlock) -> list[int]:
    """Return the queue offsets that are not acknowledged."""
    return [
        queue_offset
        for number, queue_offset in enumerate(block.queue_offsets)
        if not block.acked >> number & 1
    ]


def _visible_ms(block: OrderBlock, queue_offset: int) -> int:
    return block.visible_ms.get(queue_offset, block.pop_ms + block.invisible_ms)
