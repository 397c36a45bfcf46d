"""How far groups are: in each queue, and how late."""

from dataclasses import dataclass

from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.format import bodies, headers
from reput.format.bodies import MessageQueue, QueueTimeSpan
from reput.format.codes import RequestCode


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Where a group is in a queue."""

    queue: MessageQueue
    broker_offset: int
    """Where the next message goes."""
    consumer_offset: int
    last_timestamp_ms: int
    """Store time of the last message that was consumed; 0: none, or it is gone."""

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed yet."""
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """Where a group is in all of its queues."""

    queues: tuple[QueueProgress, ...]
    """By topic, broker and queue."""
    consume_tps: float

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed yet."""
        return sum(one.lag for one in self.queues)

    @property
    def topics(self) -> list[str]:
        """What the group reads, its retry topic included."""
        return sorted({one.queue.topic for one in self.queues})


async def consume_stats(
    admin: AdminConnection, group: str, topic: str | None = None
) -> ConsumeStats:
    """Return where a group is in its queues, and how much is left to consume.

    Args:
        group: Of consumers.
        topic: Only this one; all that it reads, if not given.
    """
    header = headers.ConsumeStatsHeader(consumer_group=group, topic=topic)
    tps = 0.0
    queues: list[QueueProgress] = []
    for reply in await admin.calls.ask_all(
        await admin.calls.masters_of_group(group),
        lambda: requests.make(RequestCode.GET_CONSUME_STATS, header),
    ):
        part = bodies.decode(bodies.ConsumeStats, reply.body)
        tps += part.consume_tps
        queues += (
            QueueProgress(queue, one.broker_offset, one.consumer_offset, one.last_timestamp)
            for queue, one in part.offset_table.items()
        )
    return ConsumeStats(tuple(sorted(queues, key=lambda one: one.queue)), tps)


async def consume_time_spans(admin: AdminConnection, group: str, topic: str) -> list[QueueTimeSpan]:
    """Return, by queue, from when to when there are messages, and how late a group is, ms."""
    header = headers.TimeSpanHeader(topic=topic, group=group)
    replies = await admin.calls.ask_all(
        await admin.calls.masters_of_topic(topic),
        lambda: requests.make(RequestCode.QUERY_CONSUME_TIME_SPAN, header),
    )
    spans = [
        span
        for reply in replies
        for span in bodies.decode(bodies.TimeSpans, reply.body).consume_time_span_set
    ]
    return sorted(spans, key=lambda span: span.message_queue)
