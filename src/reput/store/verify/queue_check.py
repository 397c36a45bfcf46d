"""All consume queues against the log: what it has for them, and their files."""

import itertools
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reput.errors import CorruptRecord
from reput.format import (
    cq_unit,
    kernels,
    message as record,
    names,
    properties as props,
    sys_flag as flags,
)
from reput.format.message import StoredMessage
from reput.store import paths, tombstones
from reput.store.commit_log_view import LogBatch
from reput.store.consume_queue_view import QueueFile, list_queue_files
from reput.store.reader import Condition, StoreReader
from reput.store.verify import number_runs, unit_check
from reput.store.verify.findings import FindingKind, Ledger, Progress, Severity
from reput.store.verify.log_check import EMPTY_LAST, LogCheck, report_foreign

ROWS_MAX = 1_000_000
"""Queued records gathered before they are compared with their units; 28 bytes each."""


class QueueChecks:
    """All consume queues against the log."""

    def __init__(self, reader: StoreReader, ledger: Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._lock = threading.RLock()
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._queues: list[
            unit_check.PlainQueueCheck | unit_check.BatchQueueCheck | unit_check.AbsentQueueCheck
        ] = []
        self._pending: list[unit_check.Rows] = []
        self._pending_count = 0
        self._light = {topic for topic in reader.queue_ids if topic.startswith(names.LMQ_PREFIX)}
        self._redispatch_from = redispatch_from(reader)
        self._tombstones = tombstones.read(reader.folder)
        self._buried: Counter[str] = Counter()
        self.queued_count = 0
        self.unit_count = 0

    def gather(self, batch: LogBatch, columns: kernels.Columns) -> None:
        """Take the queued records of a window; compare when there are enough."""
        parts = [self._rows(batch, columns)]
        if self._light:
            parts.append(self._light_rows(batch, columns))
        with self._lock:
            self.queued_count += len(parts[0])
            self._pending += parts
            self._pending_count += sum(map(len, parts))
            if self._pending_count >= ROWS_MAX:
                self.settle()

    def settle(self) -> None:
        """Compare what was gathered with the units."""
        with self._lock:
            if not self._pending_count:
                return
            rows = np.concatenate(self._pending)
            self._pending.clear()
            self._pending_count = 0
            rows = rows[np.lexsort((rows["queue_offset"], rows["queue"]))]
            numbers, starts = np.unique(rows["queue"], return_index=True)
            for number, part in zip(numbers.tolist(), np.split(rows, starts[1:]), strict=True):
                self._queues[number].compare(part)

    def _rows(self, batch: LogBatch, columns: kernels.Columns) -> unit_check.Rows:
        transaction = columns.numbers("sys_flag") & flags.TRANSACTION_MASK
        queued = (transaction == flags.TRANSACTION_NONE) | (transaction == flags.TRANSACTION_COMMIT)
        queued &= ~self._are_buried(batch, columns)
        rows = np.empty(columns.count, unit_check.ROW)
        rows["queue"] = self._queue_numbers(columns)
        rows["queue_offset"] = columns.numbers("queue_offset")
        rows["physical_offset"] = batch.positions + batch.physical_offset
        rows["size"] = batch.sizes
        rows["tags_code"] = columns.tags_codes()
        found: unit_check.Rows = rows[queued]
        return found

    def _are_buried(self, batch: LogBatch, columns: kernels.Columns) -> npt.NDArray[np.bool_]:
        """Return which records are of a topic that was deleted behind them."""
        topic_ids, topics = columns.topic_ids()
        ends = np.array([self._tombstones.get(topic, 0) for topic in topics] or [0], np.int64)
        buried: npt.NDArray[np.bool_] = batch.positions + batch.physical_offset < ends[topic_ids]
        with self._lock:
            for topic_id in topic_ids[buried].tolist():
                self._buried[topics[topic_id]] += 1
        return buried

    def _queue_numbers(self, columns: kernels.Columns) -> npt.NDArray[np.int32]:
        """Return the place in ``_queues`` of each record's queue."""
        topic_ids, topics = columns.topic_ids()
        is_batch = (columns.numbers("sys_flag") & flags.INNER_BATCH) != 0
        # What is no batch has a unit there as well, if its topic has such queues.
        has_batches = [topic in self._reader.batch_queue_ids for topic in topics]
        is_batch |= np.array(has_batches, np.bool_)[topic_ids]
        queue_ids = columns.numbers("queue_id").astype(np.uint32).astype(np.int64)
        keys = topic_ids.astype(np.int64) << 33 | is_batch.astype(np.int64) << 32 | queue_ids
        distinct, places = np.unique(keys, return_inverse=True)
        families = (paths.CONSUME_QUEUE, paths.BATCH_CONSUME_QUEUE)
        found = [
            self._number(families[key >> 32 & 1], topics[key >> 33], key & 0xFFFFFFFF)
            for key in distinct.tolist()
        ]
        numbers: npt.NDArray[np.int32] = np.array(found, np.int32)[places]
        return numbers

    def _number(self, family: str, topic: str, queue_id: int) -> int:
        """Return a queue's place in ``_queues``; makes it at its first sight."""
        key = (family, topic, queue_id)
        number = self._numbers.get(key)
        if number is not None:
            return number
        with self._lock:
            if key not in self._numbers:
                self._queues.append(self._open(family, topic, queue_id))
                self._numbers[key] = len(self._queues) - 1
            return self._numbers[key]

    def _open(
        self, family: str, topic: str, queue_id: int
    ) -> unit_check.PlainQueueCheck | unit_check.BatchQueueCheck | unit_check.AbsentQueueCheck:
        """Return a queue. A record's topic is not used as a path unless there is such a folder."""
        is_batch = family == paths.BATCH_CONSUME_QUEUE
        there = self._reader.batch_queue_ids if is_batch else self._reader.queue_ids
        if queue_id not in there.get(topic, ()):
            path = paths.queue_folder(topic, queue_id, family)
            return unit_check.AbsentQueueCheck(path, self._is_deleted(topic), self._redispatch_from)
        kind = unit_check.BatchQueueCheck if is_batch else unit_check.PlainQueueCheck
        return kind(self._reader, topic, queue_id, self._redispatch_from)

    def _is_deleted(self, topic: str) -> bool:
        return is_deleted(self._reader, self._known_topics, topic)

    @cached_property
    def _known_topics(self) -> frozenset[str]:
        """The topics of the table; none if it cannot be read."""
        try:
            return frozenset(self._reader.topics())
        except CorruptRecord:
            return frozenset()

    def _light_rows(self, batch: LogBatch, columns: kernels.Columns) -> unit_check.Rows:
        """Return a row for each light queue (LMQ) that a record is put into besides its own."""
        mark = (props.INNER_MULTI_DISPATCH + props.NAME_VALUE_SEPARATOR).encode()
        texts = columns.raw_properties()
        data = texts.data.tobytes()
        rows: list[tuple[int, int, int, int, int]] = []
        at = data.find(mark)
        while at >= 0:
            row = int(np.searchsorted(texts.offsets, at, "right")) - 1
            one = record.decode(batch.buffer, int(batch.positions[row]), check_crc=False)
            if flags.is_queued(one.sys_flag):
                rows += self._light_rows_of(one)
            at = data.find(mark, int(texts.offsets[row + 1]))
        return np.array(rows, unit_check.ROW)

    def _light_rows_of(self, one: StoredMessage) -> Iterator[tuple[int, int, int, int, int]]:
        topics = one.properties.get(props.INNER_MULTI_DISPATCH, "").split(props.LMQ_SEPARATOR)
        numbers = one.properties.get(props.INNER_MULTI_QUEUE_OFFSET, "").split(props.LMQ_SEPARATOR)
        code = cq_unit.tags_code(one.tags)
        for topic, text in zip(topics, numbers, strict=False):
            is_buried = one.physical_offset < self._tombstones.get(topic, 0)
            number = props.number(text, cq_unit.QUEUE_OFFSET_MAX)
            if topic in self._light and number is not None and not is_buried:
                queue = self._number(paths.CONSUME_QUEUE, topic, 0)
                yield queue, number, one.physical_offset, one.store_size, code

    def check(self, log: LogCheck, progress: Progress) -> None:
        """Judge files, units without a record and records without a unit. Call after the walk."""
        families = {
            paths.CONSUME_QUEUE: self._reader.queue_ids,
            paths.BATCH_CONSUME_QUEUE: self._reader.batch_queue_ids,
        }
        for family, topics in families.items():
            for topic, queue_ids in topics.items():
                for queue_id in queue_ids:
                    self._number(family, topic, queue_id)
        check_files(self._reader, self._ledger)
        for path, found in _extension_files(self._reader).items():
            for file in found:
                self._ledger.add_file(f"{path}/{file.name}", file.size)
        for topic, count in sorted(self._buried.items()):
            text = f"{count} messages in the log are of a topic that was deleted"
            self._ledger.add(
                Severity.NOTE,
                FindingKind.TOPIC,
                f"{paths.CONSUME_QUEUE}/{topic}",
                text,
                count=count,
            )
        for done, queue in enumerate(self._queues):
            counts = queue.check(self._ledger, log)
            self.unit_count += sum(counts.values())
            for file in queue.files:
                path = f"{queue.path}/{file.name}"
                self._ledger.add_file(path, file.size, counts.get(file.start, 0))
            progress("consume queues", done + 1, len(self._queues))


def _extension_files(reader: StoreReader) -> dict[str, list[QueueFile]]:
    family = paths.CONSUME_QUEUE_EXT
    folders = [
        f"{family}/{topic.name}/{queue.name}"
        for topic in reader.folder.entries(family)
        for queue in reader.folder.entries(f"{family}/{topic.name}")
    ]
    return {path: list_queue_files(reader.folder, path) for path in folders}


def check_files(reader: StoreReader, ledger: Ledger) -> None:
    """Check sizes and names of the files of all queues, and of extension units."""
    for family, topics in (
        (paths.CONSUME_QUEUE, reader.queue_ids),
        (paths.BATCH_CONSUME_QUEUE, reader.batch_queue_ids),
    ):
        folders = [
            paths.queue_folder(topic, queue_id, family)
            for topic, queue_ids in topics.items()
            for queue_id in queue_ids
        ]
        files = {path: list_queue_files(reader.folder, path) for path in folders}
        _check_queue_files(reader, ledger, files)
    _check_queue_files(reader, ledger, _extension_files(reader))


def _check_queue_files(
    reader: StoreReader, ledger: Ledger, folders: dict[str, list[QueueFile]]
) -> None:
    """Check sizes and names of the files of one family; the usual size is what most have."""
    usual = number_runs.usual(file.size for files in folders.values() for file in files)
    for path, files in folders.items():
        for file in files:
            _check_queue_file(ledger, f"{path}/{file.name}", file, files[-1], usual)
        for file, following in itertools.pairwise(files):
            end = file.start + max(file.size, usual)
            if end < following.start:
                name = f"{path}/{paths.offset_name(end)}"
                text = f"missing: {following.start - end} bytes up to {following.name}"
                ledger.add(Severity.DAMAGE, FindingKind.QUEUE_FILE_MISSING, name, text)
        if files:
            report_foreign(reader, ledger, path)


def _check_queue_file(
    ledger: Ledger, path: str, file: QueueFile, last: QueueFile, usual: int
) -> None:
    if file.size == 0 and file is last:
        ledger.add(Severity.WARNING, FindingKind.QUEUE_FILE_SIZE, path, EMPTY_LAST)
    elif file.size != usual:
        text = f"has {file.size} bytes, others {usual}: a broker does not start on it"
        ledger.add(Severity.DAMAGE, FindingKind.QUEUE_FILE_SIZE, path, text)
    if usual and file.start % usual:
        text = f"the name is no multiple of the file size {usual}"
        ledger.add(Severity.WARNING, FindingKind.QUEUE_FILE_NAME, path, text)


def is_deleted(reader: StoreReader, known_topics: Collection[str], topic: str) -> bool:
    """Whether a topic with messages has neither queues nor an entry in the table.

    Args:
        reader: The store.
        known_topics: The topics of the table; none if it cannot be read.
        topic: The topic. 4.5 keeps its own topics out of the table.
    """
    is_unknown = bool(known_topics) and topic not in known_topics
    has_queues = topic in reader.queue_ids or topic in reader.batch_queue_ids
    return is_unknown and not has_queues and not names.is_system_topic(topic)


def redispatch_from(reader: StoreReader) -> int:
    """Return from where on a broker's next start puts records into queues that lack them.

    After a clean stop from nowhere. After a crash from the file that the checkpoint leads to: by
    the rule of 5.5 if it has the field for it, else by that of 4.x. A running broker catches up.
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
