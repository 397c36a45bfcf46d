"""Pulls that the accelerator may send by itself: what it needs of them, as JSON values.

A read is plain if each of its options is in ``_KEPT`` or has its default, if its connections are
neither encrypted nor signed, and if every message of its ranges is a row. Replies that are not
exactly the next messages are left to ``PullPipeline``, which has the rules.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from reput.errors import RemotingError
from reput.format.bodies import MessageQueue
from reput.spark.filters import ALL, Constraint, Span
from reput.spark.live.calls import ALL_TAGS, RetryingClient
from reput.spark.live.plan import LiveTask
from reput.spark.options import LiveOptions, ReadOptions
from reput.spark.plan import QueueSlice
from reput.spark.rows import RowFilter

_KEPT = (
    *("live", "topics", "topic_pattern", "assign", "start", "end", "late_timestamp"),
    *("min_partitions", "max_records_per_partition", "max_bytes_per_partition"),
    *("columns", "include_headers", "include_body", "decompress", "isolation", "check_crc"),
    *("include_system_topics", "include_retry", "include_dlq"),
    *("fail_on_data_loss", "scan", "broker", "pushdown", "trigger"),
)
"""Options that the planner uses up, or that the plan has, or that mean nothing to these reads."""
_DEFAULTS = ReadOptions(paths=())


def is_plain(options: ReadOptions, constraint: Constraint) -> bool:
    """Return whether each message that a task pulls is a row, and pulls are plain frames.

    Args:
        options: Options of a read of brokers.
        constraint: Conditions on rows, of options and predicates.
    """
    assert options.live is not None
    defaults = {name: getattr(_DEFAULTS, name) for name in _KEPT}
    # Ranges are cut by queue offset; topics and queue ids select whole queues.
    others = dataclasses.replace(
        constraint, topics=None, queue_ids=None, queue_offsets=ALL, not_null=frozenset()
    )
    physical = constraint.physical_offsets
    if physical.low <= 0:
        others = dataclasses.replace(others, physical_offsets=Span(high=physical.high))
    return (
        dataclasses.replace(options, **defaults) == _DEFAULTS
        and others == Constraint()
        and not options.live.namespace
        and not _is_secured(options.live)
    )


def _is_secured(live: LiveOptions) -> bool:
    return live.use_tls or bool(live.access_key)


async def pulls_of(
    client: RetryingClient,
    tasks: Sequence[LiveTask],
    options: ReadOptions,
    constraint: Constraint,
) -> dict[str, Any] | None:
    """Return the pulls of a read as the accelerator takes them (``Plan.Pulls`` in Plan.java).

    None if topics have batch queues, whose records have several rows.

    A task without an address is read by Python: the read is not plain, its ranges have messages
    that are no rows, or its broker has no address now.
    """
    row_filter = RowFilter(options, constraint)
    are_plain = is_plain(options, constraint)
    parts = []
    queues = {_queue(task, part) for task in tasks for part in task.partition.slices}
    batch_topics = await client.batch_topics(queues)
    if any(queue.topic in batch_topics[queue.broker_name] for queue in queues):
        return None
    for task in tasks:
        ranges = task.partition.slices
        address = None
        if are_plain and all(_are_rows(part, row_filter, constraint) for part in ranges):
            with contextlib.suppress(RemotingError):  # the task asks again, with patience
                address = await client.address(_queue(task, ranges[0]))
        slices = [] if address is None else [_slice(client, task, part) for part in ranges]
        parts.append(
            {
                "broker": task.broker,
                "address": address,
                "recordBytes": task.record_bytes,
                "slices": slices,
            }
        )
    return {
        "batchSize": client.live.pull_batch_size,
        "timeoutMs": client.live.pull_timeout_ms,
        "tasks": parts,
    }


def _slice(client: RetryingClient, task: LiveTask, part: QueueSlice) -> dict[str, Any]:
    template = client.pull_template(_queue(task, part), ALL_TAGS)
    return {
        "topic": part.topic,
        "queueId": part.queue_id,
        "start": part.start,
        "stop": part.stop,
        "header": [text.decode() for text in template.texts],
    }


def _queue(task: LiveTask, part: QueueSlice) -> MessageQueue:
    return MessageQueue(topic=part.topic, broker_name=task.broker, queue_id=part.queue_id)


def _are_rows(part: QueueSlice, row_filter: RowFilter, constraint: Constraint) -> bool:
    """Return whether the conditions on topics, queue ids and queue offsets hold for a range."""
    ids, span = constraint.queue_ids, constraint.queue_offsets
    return (
        row_filter.wants_topic(part.topic)
        and (ids is None or part.queue_id in ids)
        and span.low <= part.start
        and part.stop - 1 <= span.high
    )
