"""Progress of groups: consumer offsets and consumer lag."""

from dataclasses import dataclass

from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.format import bodies, headers
from reput.format.bodies import MessageQueue, QueueTimeSpan
from reput.format.codes import RequestCode


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Progress of a group in a queue."""

    queue: MessageQueue
    broker_offset: int
    """Queue offset after the last message."""
    consumer_offset: int
    last_timestamp_ms: int
    """Store time of the last consumed message, in ms since the epoch; 0: none, or deleted."""

    @property
    def lag(self) -> int:
        """Consumer lag, in messages; 0 if the offset is after the end, as of a recreated topic."""
        return max(self.broker_offset - self.consumer_offset, 0)


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """Progress of a group in all of its queues."""

    queues: tuple[QueueProgress, ...]
    """Progress by queue, sorted by topic, broker and queue id."""
    consume_tps: float

    @property
    def lag(self) -> int:
        """Consumer lag, in messages."""
        return sum(progress.lag for progress in self.queues)

    @property
    def topics(self) -> list[str]:
        """Topics of the group, including its retry topic."""
        return sorted({progress.queue.topic for progress in self.queues})


async def consume_stats(
    admin: AdminConnection, group: str, topic: str | None = None
) -> ConsumeStats:
    """Return the progress of a group.

    Args:
        group: Consumer group.
        topic: Only this topic; None: all its topics.
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
            QueueProgress(
                queue, offsets.broker_offset, offsets.consumer_offset, offsets.last_timestamp
            )
            for queue, offsets in part.offset_table.items()
        )
    return ConsumeStats(tuple(sorted(queues, key=lambda progress: progress.queue)), tps)


async def consume_time_spans(admin: AdminConnection, group: str, topic: str) -> list[QueueTimeSpan]:
    """Return, by queue, the store times of its messages and the delay of the group, in ms."""
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
