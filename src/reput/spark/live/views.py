"""Views ``offsets`` and ``topics`` of running brokers, with the columns of those of stores.

A broker is one partition. Its tables come in one reply each, the ends of queues in one per topic:
requests about a missing queue would create it on Java's brokers.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from reput.format import names, namespace
from reput.spark.filters import Constraint
from reput.spark.live.calls import RetryingClient, all_of, connected
from reput.spark.live.plan import Planner
from reput.spark.options import ReadOptions
from reput.spark.store_planner import Summary

log = logging.getLogger("reput.spark")

Row = Sequence[Any]


def brokers(options: ReadOptions) -> list[str]:
    """Return the names of the selected brokers.

    Raises:
        InvalidOption: Brokers or the cluster of the options do not exist.
        ReadFailed: A name server does not reply, or refuses.
    """
    assert options.live is not None
    cluster = connected(options.live)
    client = RetryingClient(cluster.admin, options.live)
    planner = Planner(client, options, Constraint(), Summary())
    return sorted(cluster.run(planner.checked_brokers()))


def rows(options: ReadOptions, broker: str) -> tuple[str, list[Row]]:
    """Return the address of a broker, and the rows of the view without the common columns.

    Raises:
        ReadFailed: The broker does not reply, or refuses.
    """
    assert options.live is not None
    cluster = connected(options.live)
    client = RetryingClient(cluster.admin, options.live)
    of_view = {"offsets": _offsets, "topics": _topics}[options.view]

    async def ask() -> tuple[str, list[Row]]:
        return await client.broker_address(broker), await of_view(client, options, broker)

    return cluster.run(ask())


async def _offsets(client: RetryingClient, options: ReadOptions, broker: str) -> list[Row]:
    table = await client.consumer_offsets(broker)
    committed = []
    for key, offsets in table.items():
        topic, _, group = key.partition("@")
        if _is_wanted(options, topic):
            committed += [(topic, group, *item) for item in offsets.items()]
    ends = await _ends(client, broker, {topic for topic, *_ in committed})
    if not committed:
        log.warning("%s: no group has committed an offset of a selected topic", broker)
    result: list[Row] = []
    for topic, group, queue_id, consumer_offset in sorted(committed):
        low, high = ends[topic].get(queue_id, (0, 0))
        shown = [_shown(options, name) for name in (topic, group)]
        result.append((*shown, queue_id, consumer_offset, low, high, high - consumer_offset))
    return result


async def _topics(client: RetryingClient, options: ReadOptions, broker: str) -> list[Row]:
    table = await client.topic_configs(broker)
    wanted = {topic: config for topic, config in table.items() if _is_wanted(options, topic)}
    ends = await _ends(client, broker, wanted)
    return [
        (
            _shown(options, topic),
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.order,
            config.topic_filter_type,
            list((config.attributes or {}).items()),
            names.is_system_topic(topic),
            sum(high > 0 for _, high in ends[topic].values()),
            sum(high - low for low, high in ends[topic].values()),
        )
        for topic, config in wanted.items()
    ]


async def _ends(
    client: RetryingClient, broker: str, topics: Iterable[str]
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the first queue offset and the end of each queue, by topic."""
    listed = sorted(topics)
    replies = await all_of(client.ends_of_topic(topic, broker) for topic in listed)
    return dict(zip(listed, replies, strict=True))


def _is_wanted(options: ReadOptions, topic: str) -> bool:
    """Return whether options select a topic, which has its full name."""
    named = options.topics if options.assign is None else options.assign.keys()
    if named is not None:
        return topic in named
    plain = _shown(options, topic)
    if options.namespace and plain == topic:  # of another namespace, or of the system
        return False
    return options.topic_pattern is None or re.fullmatch(options.topic_pattern, plain) is not None


def _shown(options: ReadOptions, name: str) -> str:
    return namespace.unwrap(options.namespace, name) if options.namespace else name
