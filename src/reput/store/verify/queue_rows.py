"""The records of a window of the log, by the queues they belong into."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import kernels, names, sys_flag as flags
from reput.store.reader import Condition, StoreReader
from reput.store.verify.light_rows import LightRow
from reput.store.verify.number_runs import Mask, Offsets
from reput.store.verify.unit_check import ROW, Rows

_NOT_QUEUED = flags.TRANSACTION_PREPARED
"""The bit that prepared and rolled-back records have, and all other records lack."""


class QueueOf(NamedTuple):
    """A queue as ``queue_keys`` packs it."""

    topic: str
    queue_id: int
    is_batch: bool


def is_queued(columns: kernels.Columns) -> Mask:
    """Return which records belong into queues: neither prepared nor rolled back."""
    queued: Mask = (columns.numbers("sys_flag") & _NOT_QUEUED) == 0
    return queued


def is_before(columns: kernels.Columns, ends: Mapping[str, int]) -> Mask:
    """Return which records start before the physical offset of their topic; topics without pass."""
    topic_ids, topics = columns.topic_ids()
    limits = np.array([ends.get(topic, 0) for topic in topics] or [0], np.int64)
    before: Mask = columns.numbers("physical_offset") < limits[topic_ids]
    return before


def queue_keys(reader: StoreReader, columns: kernels.Columns) -> Offsets:
    """Return a number for the queue of each record; ``queue_of`` unpacks it.

    A single message has a unit in a batch queue if its topic has batch queues.
    """
    topic_ids, topics = columns.topic_ids()
    is_batch = (columns.numbers("sys_flag") & flags.INNER_BATCH) != 0
    has_batches = [topic in reader.batch_queue_ids for topic in topics]
    is_batch |= np.array(has_batches or [False], np.bool_)[topic_ids]
    queue_ids = columns.numbers("queue_id").astype(np.uint32).astype(np.int64)
    keys: Offsets = topic_ids.astype(np.int64) << 33 | is_batch.astype(np.int64) << 32 | queue_ids
    return keys


def queue_of(key: int, topics: list[str]) -> QueueOf:
    """Return the queue of a key of ``queue_keys``."""
    return QueueOf(topics[key >> 33], key & 0xFFFFFFFF, bool(key >> 32 & 1))


def rows_of(columns: kernels.Columns, rows: Offsets, tags_codes: Offsets) -> Rows:
    """Return records as units describe them.

    Args:
        columns: The records of a window.
        rows: Which of them.
        tags_codes: The tags codes of all records of the window.
    """
    topic_ids, topics = columns.topic_ids()
    units: Rows = np.zeros(len(rows), ROW)
    for name in ("queue_offset", "physical_offset"):
        units[name] = columns.numbers(name)[rows]
    units["size"] = columns.numbers("store_size")[rows]
    units["tags_code"] = tags_codes[rows]
    is_delayed = np.array([topic == names.SCHEDULE_TOPIC for topic in topics] or [False], np.bool_)
    units["has_tags_code"] = ~is_delayed[topic_ids[rows]]
    return units


def light_units(columns: kernels.Columns, light: list[LightRow], tags_codes: Offsets) -> Rows:
    """Return the places of records in light queues as units describe them."""
    rows: npt.NDArray[np.int64] = np.array([place.row for place in light], np.int64)
    units = rows_of(columns, rows, tags_codes)
    units["queue_offset"] = [place.queue_offset for place in light]
    return units


def known_topics(reader: StoreReader) -> frozenset[str]:
    """Return the topics of the topic table; none if it cannot be read."""
    try:
        return frozenset(reader.topics())
    except CorruptRecord:
        return frozenset()


def deleted_before(
    reader: StoreReader,
    known_topics: Collection[str],
    tombstones: Mapping[str, int],
    topics: Iterable[str],
    log_end: int,
) -> dict[str, int]:
    """Return the physical offset before which the messages of each deleted topic are.

    These messages are in no queue, and this is no loss.

    Args:
        reader: The store.
        known_topics: The topics of the table; none if it cannot be read.
        tombstones: The tombstones of the store.
        topics: The topics of the messages.
        log_end: Physical offset where the log ends.
    """
    deleted = {topic: log_end for topic in topics if is_deleted(reader, known_topics, topic)}
    return {**tombstones, **deleted}


def is_deleted(reader: StoreReader, known_topics: Collection[str], topic: str) -> bool:
    """Return whether a topic of messages has neither queues nor an entry in the topic table.

    Args:
        reader: The store.
        known_topics: The topics of the table; none if it cannot be read.
        topic: The topic. 4.5 keeps its system topics out of the table.
    """
    is_unknown = bool(known_topics) and topic not in known_topics
    has_queues = topic in reader.queue_ids or topic in reader.batch_queue_ids
    return is_unknown and not has_queues and not names.is_system_topic(topic)


def redispatch_from(reader: StoreReader) -> int:
    """Return the physical offset from which a broker's next start dispatches again.

    After a clean stop it is the end of the log. After a crash it is the start of the log file that
    the checkpoint leads to, by the rule of 5.5 if the checkpoint has its field, else by that of
    4.x. A running broker dispatches all missing records: 0.
    """
    if reader.is_live:
        return 0
    if reader.state.condition is Condition.CLEAN:
        return reader.end_offset
    checkpoint = reader.state.checkpoint
    for file in reversed(reader.log.files):
        first = reader.log.first_record(file)
        if first is None or checkpoint is None:
            continue
        if checkpoint.queue_physical_offset > 0:
            is_covered = first.physical_offset <= checkpoint.queue_physical_offset
        else:
            is_covered = first.store_timestamp <= checkpoint.min_timestamp
        if is_covered:
            return file.start
    return reader.log.min_offset
