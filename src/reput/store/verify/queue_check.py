"""All consume queues against the log, and the files of all queues."""

import itertools
import threading
from collections import Counter
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reput.format import cq_unit, kernels, names
from reput.store.files import paths
from reput.store.log.commit_log_view import LogBatch
from reput.store.queues import tombstones
from reput.store.queues.consume_queue_view import QueueFile, list_queue_files
from reput.store.reader import StoreReader
from reput.store.verify import number_runs, queue_rows, unit_check
from reput.store.verify.findings import FindingKind, Ledger, Progress, Severity
from reput.store.verify.light_rows import light_rows
from reput.store.verify.log_check import EMPTY_LAST, LogCheck, report_foreign
from reput.store.verify.number_runs import Offsets

ROWS_MAX = 1_000_000
"""Records gathered before they are compared with their units; 29 bytes each."""

_QueueCheck = unit_check.PlainQueueCheck | unit_check.BatchQueueCheck | unit_check.AbsentQueueCheck


class QueueChecks:
    """All consume queues against the log."""

    def __init__(self, reader: StoreReader, ledger: Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._lock = threading.RLock()
        self._numbers: dict[tuple[str, str, int], int] = {}
        """Family, topic and queue id -> place in ``_queues``."""
        self._queues: list[_QueueCheck] = []
        self._pending: list[unit_check.Rows] = []
        self._pending_count = 0
        self._has_light = any(topic.startswith(names.LMQ_PREFIX) for topic in reader.queue_ids)
        self._redispatch_from = queue_rows.redispatch_from(reader)
        self._tombstones = tombstones.read(reader.folder)
        self._deleted: Counter[str] = Counter()
        """Messages before the tombstone of their topic."""
        self.queued_count = 0
        self.unit_count = 0

    # Records

    def gather(self, batch: LogBatch, columns: kernels.Columns) -> None:
        """Take the queued records of a window; compare them when there are enough."""
        queued = queue_rows.is_queued(columns)
        tags_codes = columns.tags_codes()
        parts = [self._own_rows(columns, queued, tags_codes)]
        with self._lock:
            self.queued_count += len(parts[0])
        if self._has_light:
            parts.append(self._light_rows(batch, columns, np.flatnonzero(queued), tags_codes))
        with self._lock:
            self._pending += parts
            self._pending_count += sum(map(len, parts))
            if self._pending_count >= ROWS_MAX:
                self.settle()

    def settle(self) -> None:
        """Compare the gathered records with the units."""
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

    def _own_rows(
        self, columns: kernels.Columns, queued: npt.NDArray[np.bool_], tags_codes: Offsets
    ) -> unit_check.Rows:
        """Return the records with the queues that they name."""
        topic_ids, topics = columns.topic_ids()
        deleted = queue_rows.is_before(columns, self._tombstones)
        with self._lock:
            for topic_id in topic_ids[deleted].tolist():
                self._deleted[topics[topic_id]] += 1
        kept = np.flatnonzero(queued & ~deleted)
        rows = queue_rows.rows_of(columns, kept, tags_codes)
        keys, places = np.unique(
            queue_rows.queue_keys(self._reader, columns)[kept], return_inverse=True
        )
        families = (paths.CONSUME_QUEUE, paths.BATCH_CONSUME_QUEUE)
        queues = [queue_rows.queue_of(key, list(topics)) for key in keys.tolist()]
        numbers = [
            self._number(families[queue.is_batch], queue.topic, queue.queue_id) for queue in queues
        ]
        rows["queue"] = np.array(numbers, np.int32)[places]
        return rows

    def _light_rows(
        self,
        batch: LogBatch,
        columns: kernels.Columns,
        rows: Offsets,
        tags_codes: Offsets,
    ) -> unit_check.Rows:
        """Return the records with the light queues (LMQ) that they name and that have files."""
        starts = columns.numbers("physical_offset")
        light = [
            place
            for place in light_rows(batch, columns, rows)
            if place.queue_id in self._reader.queue_ids.get(place.topic, ())
            and place.queue_offset <= cq_unit.QUEUE_OFFSET_MAX
            and int(starts[place.row]) >= self._tombstones.get(place.topic, 0)
        ]
        units = queue_rows.light_units(columns, light, tags_codes)
        units["queue"] = [
            self._number(paths.CONSUME_QUEUE, place.topic, place.queue_id) for place in light
        ]
        return units

    def _number(self, family: str, topic: str, queue_id: int) -> int:
        """Return a queue's place in ``_queues``; add the queue if it is new."""
        key = (family, topic, queue_id)
        number = self._numbers.get(key)
        if number is not None:
            return number
        with self._lock:
            if key not in self._numbers:
                self._queues.append(self._open(family, topic, queue_id))
                self._numbers[key] = len(self._queues) - 1
            return self._numbers[key]

    def _open(self, family: str, topic: str, queue_id: int) -> _QueueCheck:
        """Return a queue. A record's topic is not used as a path unless there is such a folder."""
        is_batch = family == paths.BATCH_CONSUME_QUEUE
        queue_ids = self._reader.batch_queue_ids if is_batch else self._reader.queue_ids
        if queue_id not in queue_ids.get(topic, ()):
            path = paths.queue_folder(topic, queue_id, family)
            is_deleted = queue_rows.is_deleted(self._reader, self._known_topics, topic)
            return unit_check.AbsentQueueCheck(path, is_deleted, self._redispatch_from)
        kind = unit_check.BatchQueueCheck if is_batch else unit_check.PlainQueueCheck
        return kind(self._reader, topic, queue_id, self._redispatch_from)

    @cached_property
    def _known_topics(self) -> frozenset[str]:
        """Topics of the topic table; none if it cannot be read."""
        return queue_rows.known_topics(self._reader)

    # Units and files

    def check(self, log: LogCheck, progress: Progress) -> None:
        """Judge files, units without a record and records without a unit. Call after the scan."""
        families = {
            paths.CONSUME_QUEUE: self._reader.queue_ids,
            paths.BATCH_CONSUME_QUEUE: self._reader.batch_queue_ids,
        }
        for family, topics in families.items():
            for topic, queue_ids in topics.items():
                for queue_id in queue_ids:
                    self._number(family, topic, queue_id)
        check_files(self._reader, self._ledger)
        for path, files in _extension_files(self._reader).items():
            for file in files:
                self._ledger.add_file(f"{path}/{file.name}", file.size)
        for topic, count in sorted(self._deleted.items()):
            text = f"{count} messages in the log are of a topic that was deleted"
            path = f"{paths.CONSUME_QUEUE}/{topic}"
            self._ledger.add(Severity.NOTE, FindingKind.TOPIC, path, text, count=count)
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
    """Check sizes and names of the files of one family; most files have the usual size."""
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
