"""Compare the first and last queue offsets of a running broker with those of a store."""

import re
from collections.abc import Iterator

from reput.errors import InvalidOption
from reput.spark.filters import Constraint
from reput.spark.jobs import queue_runs
from reput.spark.jobs.compare.findings import ONLY_LEFT, ONLY_RIGHT, Mismatch
from reput.spark.live.calls import RetryingClient, all_of, connected
from reput.spark.live.plan import Planner
from reput.spark.options import ReadOptions
from reput.spark.store_planner import Summary
from reput.store.reader import StoreReader

Ends = dict[tuple[str, int], tuple[int, int]]
"""Topic and queue id -> queue offset of the first message, and the one after the last."""


def ends(options: ReadOptions) -> Ends:
    """Return the ends of a broker's queues, but for empty queues.

    Raises:
        InvalidOption: The options name several brokers, or none.
        ReadFailed: The broker or a name server does not answer.
    """
    live = options.live
    assert live is not None
    cluster = connected(live)

    async def ask() -> Ends:
        client = RetryingClient(cluster.admin, live)
        planner = Planner(client, options, Constraint(), Summary())
        brokers = await planner.brokers()
        if len(brokers) != 1:
            brokers_there = ", ".join(sorted(brokers or planner.registered)) or "none is registered"
            named = ", ".join(sorted(live.brokers or ())) or None
            raise InvalidOption(
                "broker", named, f"one broker, as a store is one's: {brokers_there}"
            )
        queues = await planner.queues(brokers)
        spans = await all_of(map(client.ends, queues))
        return {
            (queue.topic, queue.queue_id): end
            for queue, end in zip(queues, spans, strict=True)
            if end[0] < end[1]
        }

    return cluster.run(ask())


def findings(left: StoreReader, right: Ends, topic_pattern: str | None) -> Iterator[Mismatch]:
    """Yield the runs of queue offsets that only the store has, or only the broker.

    Args:
        left: The store.
        right: The broker's queues.
        topic_pattern: Regular expression of the topics of ``right``; None: all topics.
    """
    is_compared = re.compile(topic_pattern or ".*").fullmatch
    ours = {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset)
        for queue in left.queues()
        if queue.min_offset < queue.max_offset and is_compared(queue.topic)
    }
    for topic, queue_id in sorted({*ours, *right}):
        both = [side.get((topic, queue_id)) for side in (ours, right)]
        runs = [[run] if run is not None else [] for run in both]
        texts = [f"{run[0]} to {run[1]}" if run is not None else "nothing" for run in both]
        for kind, has, lacks in ((ONLY_LEFT, 0, 1), (ONLY_RIGHT, 1, 0)):
            for start, stop in queue_runs.without(runs[has], runs[lacks]):
                side = "left" if kind == ONLY_LEFT else "right"
                yield Mismatch(
                    "queues",
                    kind,
                    f"queue {topic}/{queue_id}: {queue_runs.text(start, stop)} only on the {side}; "
                    f"left holds {texts[0]}, right {texts[1]}",
                    count=stop - start,
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=start,
                    left=texts[0],
                    right=texts[1],
                )
