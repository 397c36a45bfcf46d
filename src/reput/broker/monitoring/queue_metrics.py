"""The queues of a topic, and a group's lag in each: /metrics/queues?topic=Orders&group=Billing.

Measured on demand only: with all queues, /metrics would have a hundred times as many series.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from reput.broker.parts import Parts
from reput.errors import InvalidOption
from reput.remoting import metrics_server
from reput.remoting.metrics_server import Family, HistogramFamily, Turns

QUEUES_MAX = 10_000
"""Queues of an answer; each reads a message, possibly from disk."""


class MeasuredBroker(Protocol):
    """The part of a broker that is measured."""

    parts: Parts

    @property
    def is_open(self) -> bool:
        """False while the store is being reopened."""


async def answer(
    broker: MeasuredBroker, query: Mapping[str, str]
) -> list[Family | HistogramFamily]:
    """Return the answer to a query: ``topic``, and ``group`` for its lags.

    Raises:
        InvalidOption: The topic is missing or unknown or has too many queues, the query has another
            name, or the store is closed.
    """
    for name in query.keys() - {"topic", "group"}:
        raise InvalidOption(name, query[name], "topic and group")
    topic = query.get("topic", "")
    if not broker.is_open:
        raise InvalidOption("topic", topic, "none while the store is closed: ask again")
    return await measure(broker.parts, topic, query.get("group", ""))


async def measure(parts: Parts, topic: str, group: str) -> list[Family | HistogramFamily]:
    """Return the metrics of the queues of a topic.

    Args:
        parts: The parts of the broker.
        topic: The topic.
        group: A consumer group; empty: without lags.

    Raises:
        InvalidOption: The topic does not exist, or has too many queues.
    """
    config = parts.topics.get(topic)
    if config is None:
        raise InvalidOption("topic", topic, "a topic of this broker: /metrics/queues?topic=NAME")
    queue_count = max(config.read_queue_count, config.write_queue_count)
    if queue_count > QUEUES_MAX:
        raise InvalidOption("topic", topic, f"a topic of up to {QUEUES_MAX} queues")

    async def queues(turns: Turns) -> AsyncIterator[Family]:
        labels = ("topic", "queue_id")
        ends = [
            Family("reput_queue_min_offset", "Queue offset of the first message.", labels),
            Family("reput_queue_max_offset", "Queue offset after the last message.", labels),
        ]
        for queue_id in range(queue_count):
            await turns.rest()
            name = (topic, str(queue_id))
            ends[0].values[name] = float(parts.store.min_offset(topic, queue_id))
            ends[1].values[name] = float(parts.store.max_offset(topic, queue_id))
        for family in ends:
            yield family

    async def lags(turns: Turns) -> AsyncIterator[Family]:
        labels = ("topic", "group", "queue_id")
        offsets = Family("reput_queue_consumer_offset", "Consumer offset.", labels)
        messages = Family("reput_queue_lag_messages", "Messages after it.", labels)
        ages = Family("reput_queue_lag_seconds", "Age of the first of them.", labels)
        now_ms, store = parts.clock.now_ms(), parts.store
        for queue_id, consumer_offset in parts.deliveries.consumer_offsets.of(topic, group).items():
            await turns.rest()
            name = (topic, group, str(queue_id))
            next_offset = max(consumer_offset, store.min_offset(topic, queue_id))
            lag = max(0, store.max_offset(topic, queue_id) - next_offset)
            stored_ms = store.store_time(topic, queue_id, next_offset) if lag else None
            offsets.values[name] = float(consumer_offset)
            messages.values[name] = float(lag)
            ages.values[name] = 0.0 if stored_ms is None else max(0, now_ms - stored_ms) / 1000
        for family in (offsets, messages, ages):
            yield family

    return await metrics_server.gather(queues, *((lags,) if group else ()))
