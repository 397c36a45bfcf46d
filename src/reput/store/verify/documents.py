"""JSON documents that describe a store.

Times are in ms since the epoch, sizes in bytes, and integers are numbers however large. Keys may be
added, but not removed. docs/how-to/inspect-a-store.md shows each document.
"""

import operator
from collections.abc import Iterator
from typing import Any

from reput.errors import CorruptRecord, NotInStore
from reput.format.message import StoredMessage
from reput.format.names import TIMER_TOPIC, kind_of
from reput.store.files import paths
from reput.store.index.index_view import IndexFileView
from reput.store.log.commit_log_view import Damage
from reput.store.queues.consume_queue_view import BatchConsumeQueueView, ConsumeQueueView
from reput.store.reader import StoreReader
from reput.store.tables import timer_table
from reput.store.verify import VerifyReport

Document = dict[str, Any]
QueueView = ConsumeQueueView | BatchConsumeQueueView


# --- store info ---------------------------------------------------------------------------------


def info(reader: StoreReader) -> Document:
    """Describe a store from the heads and tails of its files, without scanning them."""
    state = reader.state
    checkpoint = state.checkpoint
    return {
        "location": reader.location,
        "condition": state.condition.value,
        "has_abort": state.has_abort,
        "lock_holder": state.lock_holder,
        "broker_name": _or_none(reader.broker_name),
        "log": _log_summary(reader),
        "queues": _queue_summary(reader),
        "index": _index_summary(reader),
        "checkpoint": checkpoint
        and {
            "physical_timestamp": checkpoint.physical_timestamp,
            "queue_timestamp": checkpoint.queue_timestamp,
            "index_timestamp": checkpoint.index_timestamp,
            "master_flushed_offset": checkpoint.master_flushed_offset,
            "confirmed_physical_offset": checkpoint.confirmed_physical_offset,
            "queue_physical_offset": checkpoint.queue_physical_offset,
        },
        "checkpoint_problem": str(state.checkpoint_problem) if state.checkpoint_problem else None,
        "tables": _table_summary(reader),
    }


def _log_summary(reader: StoreReader) -> Document:
    files = reader.log.files
    tail = reader.tail
    first, last = _ends(reader)
    return {
        "file_count": len(files),
        "file_size": max((file.size for file in files), default=0),
        "bytes": sum(file.size for file in files),
        "start": reader.log.min_offset,
        "end": tail.end_offset,
        "first_store_timestamp": first.store_timestamp if first else None,
        "last_store_timestamp": last.store_timestamp if last else None,
        "missing": [_damage(damage) for damage in reader.log.missing()],
        "torn": _damage(tail.torn) if tail.torn else None,
        "stale": _damage(tail.stale) if tail.stale else None,
    }


def _ends(reader: StoreReader) -> tuple[StoredMessage | None, StoredMessage | None]:
    """Return the first and the last message of the log, searched from its ends."""
    within = [file for file in reader.log.files if file.start < reader.end_offset]
    firsts = (_first_message(reader, file.start, file.nominal_end) for file in within)
    lasts = (reader.log.last_record(file, reader.end_offset) for file in reversed(within))
    return next(filter(None, firsts), None), next(filter(None, lasts), None)


def _first_message(reader: StoreReader, start: int, stop: int) -> StoredMessage | None:
    position = start
    while (position := reader.log.find_record(position, stop)) < stop:
        try:
            return reader.log.message_at(position)
        except (CorruptRecord, NotInStore):
            position += 1  # a blank, or a body that does not match its checksum
    return None


def _damage(damage: Damage) -> Document:
    return {
        "physical_offset": damage.physical_offset,
        "length": damage.length,
        "reason": damage.reason,
        "file": damage.file,
    }


def _queue_summary(reader: StoreReader) -> Document:
    views = list(_queue_views(reader))
    return {
        "topic_count": len({queue.topic for _, queue in views}),
        "queue_count": len(views),
        "message_count": sum(queue.max_offset - queue.min_offset for _, queue in views),
        "file_count": sum(len(queue.files) for _, queue in views),
        "bytes": sum(file.size for _, queue in views for file in queue.files),
    }


def _index_summary(reader: StoreReader) -> Document:
    files = index_files(reader)
    used = [file for file in files if file["entry_count"]]
    return {
        "file_count": len(files),
        "bytes": sum(file["size"] for file in files),
        "entry_count": sum(file["entry_count"] for file in files),
        "start": min((file["begin_physical_offset"] for file in used), default=None),
        "end": max((file["end_physical_offset"] for file in used), default=None),
        "first_store_timestamp": min((file["begin_timestamp"] for file in used), default=None),
        "last_store_timestamp": max((file["end_timestamp"] for file in used), default=None),
    }


def _table_summary(reader: StoreReader) -> Document:
    counts = {
        "topics": lambda: len(reader.topics()),
        "subscription_groups": lambda: len(reader.subscription_groups()),
        "consumer_offsets": lambda: len(reader.consumer_offsets()),
        "delay_levels": lambda: len(reader.delay_offsets()),
    }
    return {name: _or_none(count) for name, count in counts.items()}


def _or_none(get: Any) -> Any:
    """Return the result of reading a table; None if it is corrupt (``verify`` gives the reason)."""
    try:
        return get()
    except CorruptRecord:
        return None


# --- store ls -----------------------------------------------------------------------------------


def log_files(reader: StoreReader) -> list[Document]:
    """Describe the files of the commit log."""
    return [
        {
            "name": state.file.name,
            "start": state.file.start,
            "size": state.file.size,
            "nominal_size": state.file.nominal_size,
            "first_physical_offset": state.first_offset,
            "last_physical_offset": state.last_offset,
            "first_store_timestamp": state.min_store_timestamp,
            "last_store_timestamp": state.max_store_timestamp,
            "wasted_bytes": state.wasted_bytes,
            "modified_timestamp": state.file.modified_ms,
        }
        for state in reader.log_file_states()
    ]


def queues(reader: StoreReader) -> list[Document]:
    """Describe the consume queues, and the batch queues of 5.x."""
    return [
        {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "family": family,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "message_count": queue.max_offset - queue.min_offset,
            "last_store_timestamp": _last_store_timestamp(reader, queue),
            "end_physical_offset": queue.end_physical_offset,
            "file_count": len(queue.files),
            "bytes": sum(file.size for file in queue.files),
        }
        for family, queue in _queue_views(reader)
    ]


def _queue_views(reader: StoreReader) -> Iterator[tuple[str, QueueView]]:
    """Yield the folder name and the view of each queue."""
    for queue in reader.queues():
        yield paths.CONSUME_QUEUE, queue
    for topic, queue_ids in reader.batch_queue_ids.items():
        for queue_id in queue_ids:
            yield paths.BATCH_CONSUME_QUEUE, reader.batch_queue(topic, queue_id)


def _last_store_timestamp(reader: StoreReader, queue: QueueView) -> int | None:
    if queue.max_offset <= queue.min_offset:
        return None
    try:
        unit = queue.unit(queue.max_offset - 1)
        return reader.log.store_timestamp_at(unit.physical_offset)
    except (NotInStore, CorruptRecord):
        return None


def index_files(reader: StoreReader) -> list[Document]:
    """Describe the index files."""
    return [_index_file(file) for file in reader.index.files]


def _index_file(file: IndexFileView) -> Document:
    document: Document = {"name": file.name, "size": file.size, "problem": None}
    fields = (
        "entry_count",
        "slots_used",
        "begin_timestamp",
        "end_timestamp",
        "begin_physical_offset",
        "end_physical_offset",
    )
    try:
        return document | {name: getattr(file.header, name) for name in fields}
    except CorruptRecord as error:
        empty = dict.fromkeys(fields, 0)
        return document | empty | {"problem": error.reason}


def topics(reader: StoreReader) -> list[Document]:
    """Describe the topics of the topic table, and other topics that have queues."""
    table = reader.topics()
    by_topic: dict[str, list[Document]] = {}
    for queue in queues(reader):
        by_topic.setdefault(queue["topic"], []).append(queue)
    documents = []
    for topic in sorted({*table, *by_topic}):
        config = table.get(topic)
        mine = by_topic.get(topic, [])
        times = [queue["last_store_timestamp"] for queue in mine if queue["last_store_timestamp"]]
        documents.append(
            {
                "topic": topic,
                "kind": kind_of(topic),
                "in_table": config is not None,
                "read_queue_count": config.read_queue_count if config else None,
                "write_queue_count": config.write_queue_count if config else None,
                "perm": config.perm if config else None,
                "order": config.order if config else None,
                "filter_type": config.filter_type if config else None,
                "attributes": dict(config.attributes) if config else {},
                "queue_count": len(mine),
                "message_count": sum(queue["message_count"] for queue in mine),
                "last_store_timestamp": max(times, default=None),
            }
        )
    return documents


def groups(reader: StoreReader) -> list[Document]:
    """Describe the consumer offset and the lag of each group in each queue."""
    documents = []
    by_group = operator.attrgetter("group", "topic", "queue_id")
    for offset in sorted(reader.consumer_offsets(), key=by_group):
        end = _max_offset(reader, offset.topic, offset.queue_id)
        documents.append(
            {
                "group": offset.group,
                "topic": offset.topic,
                "queue_id": offset.queue_id,
                "consumer_offset": offset.consumer_offset,
                "max_offset": end,
                "lag": None if end is None else end - offset.consumer_offset,
            }
        )
    return documents


def timer(reader: StoreReader) -> Document | None:
    """Describe the progress of the timer of 5.x; None if no timer has run on the store.

    ``waiting_max`` counts the messages from the oldest one that may wait: after it, some have been
    delivered. RocketMQ does not save which one that is.
    """
    queue = reader.queue(TIMER_TOPIC, 0)
    low, high = queue.min_offset, queue.max_offset
    progress = timer_table.saved_progress(reader.folder, low)
    if progress is None:
        return None
    oldest = max(low, min(progress.oldest, high))
    return {
        "min_offset": low,
        "max_offset": high,
        "read_offset": min(progress.taken_up, high),
        "delivered_timestamp": progress.leaves_ms or None,
        "oldest_offset": oldest,
        "waiting_max": high - oldest,
    }


def _max_offset(reader: StoreReader, topic: str, queue_id: int) -> int | None:
    if queue_id in reader.queue_ids.get(topic, ()):
        return reader.queue(topic, queue_id).max_offset
    if queue_id in reader.batch_queue_ids.get(topic, ()):
        return reader.batch_queue(topic, queue_id).max_offset
    return None


# --- store verify -------------------------------------------------------------------------------


def report(result: VerifyReport) -> Document:
    """Describe the result of a verification."""
    return {
        "location": result.location,
        "condition": result.condition.value,
        "verdict": result.severity.name.lower(),
        "is_damaged": result.is_damaged,
        "log_start": result.log_start,
        "log_end": result.log_end,
        "record_count": result.record_count,
        "queued_count": result.queued_count,
        "unit_count": result.unit_count,
        "entry_count": result.entry_count,
        "files": [
            {
                "path": file.path,
                "size": file.size,
                "verdict": file.severity.name.lower(),
                "text": file.text,
                "count": file.count,
                "wasted_bytes": file.wasted_bytes,
            }
            for file in result.files
        ],
        "holes": [
            _damage(hole.damage)
            | {"severity": hole.severity.name.lower(), "kind": hole.kind.value, "text": hole.text}
            for hole in result.holes
        ],
        "findings": [
            {
                "severity": finding.severity.name.lower(),
                "kind": finding.kind.value,
                "path": finding.path,
                "text": finding.text,
                "physical_offset": finding.physical_offset,
                "length": finding.length,
                "queue_offset": finding.queue_offset,
                "count": finding.count,
            }
            for finding in result.findings
        ],
    }
