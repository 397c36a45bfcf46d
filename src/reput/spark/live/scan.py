"""View ``messages`` over running brokers: the rows of their stores, without access to the folders.

``plan`` splits the selected queue offsets into tasks. A task pulls its ranges (``pull_pipeline``)
and decodes the records like a scan of a store: a reply contains unchanged records.

Reads leave no trace on a broker: pulls use a group that every broker has (``TOOLS_CONSUMER``),
contain their subscription instead of relying on heartbeats, commit no offset, and never request an
offset outside of a queue, which brokers would record in a topic.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.errors import CorruptRecord
from reput.format import kernels, message as record, names, sys_flag as flags
from reput.format.bodies import MessageQueue
from reput.format.message import Verdict
from reput.spark.filters import Constraint
from reput.spark.live import plain_pulls
from reput.spark.live.calls import (
    ALL_TAGS,
    ReadFailed,
    RetryingClient,
    connected,
    frames,
    queue_name,
)
from reput.spark.live.plan import LiveTask, Loss, Planner
from reput.spark.live.pull_pipeline import Chunk, PullPipeline
from reput.spark.options import LiveOptions, ReadOptions
from reput.spark.portions import portions
from reput.spark.rows import RowFilter, RowMaker, warn_of_ignored
from reput.spark.store_planner import Summary, option_constraint

log = logging.getLogger("reput.spark")

_SIDE_BY_SIDE_MIN = 8
"""Minimum number of replies whose records are located together; fewer are faster one by one."""
_EXPRESSION_BYTES_MAX = 8 * 1024
PULLED: Final = pa.schema([("records", pa.binary()), ("broker", pa.string())])
"""Columns of pulled records: whole consecutive records, and the name of their broker."""


class LiveScan:
    """One batch read of view ``messages`` from brokers.

    Args:
        options: Options of the read; ``live`` is set.
        columns: Names of the selected columns, in order.
        constraint: Pushed-down predicates.
    """

    def __init__(
        self, options: ReadOptions, columns: Sequence[str], constraint: Constraint | None = None
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._pushed = constraint or Constraint()
        self._constraint = option_constraint(options).meet(self._pushed)
        self.summary = Summary()

    @property
    def _live(self) -> LiveOptions:
        assert self._options.live is not None
        return self._options.live

    # On the driver --------------------------------------------------------------------------

    def tasks(self) -> list[LiveTask]:
        """Plan the read up to the current end of each queue.

        Raises:
            InvalidOption: Topics, brokers or offsets in the options do not exist.
            DataLoss: Messages in the options are deleted, unless ``failOnDataLoss`` is false.
            LookupRefused: The brokers' index cannot find all messages of a key.
            ReadFailed: A server does not reply, or refuses.
        """
        self.summary.add(f"wanted: {self._constraint.describe()}")
        warn_of_ignored(self._options)
        cluster = connected(self._live)
        client = RetryingClient(cluster.admin, self._live)
        planner = Planner(client, self._options, self._pushed, self.summary)
        tasks = cluster.run(planner.tasks())
        for line in self.summary.lines:
            log.info("%s", line)
        return tasks

    def plain_pulls(self, tasks: Sequence[LiveTask]) -> dict[str, Any] | None:
        """Return the pulls of tasks that the accelerator may send by itself.

        None if topics have batch queues: it makes a row of each record.
        """
        cluster = connected(self._live)
        client = RetryingClient(cluster.admin, self._live)
        return cluster.run(plain_pulls.pulls_of(client, tasks, self._options, self._constraint))

    # On the executors -----------------------------------------------------------------------

    def read(self, task: LiveTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, queue by queue in the order of queue offsets.

        Raises:
            CorruptRecord: A broker sent an invalid record.
            DataLoss: Planned messages were deleted, unless ``failOnDataLoss`` is false.
            ReadFailed: A server does not reply, or refuses.
        """
        maker = RowMaker(self._columns, self._options, task.broker)
        for queue, selected in self._selected(task):
            for kept in portions(selected.columns):
                try:
                    batch = maker.batch(kept)
                except CorruptRecord as error:
                    _damaged(queue, error.reason, error.physical_offset or 0)
                if batch.num_rows:
                    yield batch

    def read_records(self, task: LiveTask) -> Iterator[pa.RecordBatch]:
        """Yield the records of the rows of a partition as they are stored, for the accelerator.

        Each batch has the schema ``PULLED`` and one row. Raises as ``read``, but not for bodies
        that cannot be decompressed.

        Raises:
            ReadFailed: There is a batch record, without batch queues known to ``plain_pulls``.
        """
        for queue, selected in self._selected(task):
            if selected.has_batches:
                raise ReadFailed(
                    f"{queue_name(queue)} has a batch record, but its topic no batch queues: the "
                    "accelerator cannot read it; a session without its jar can"
                )
            data = selected.records()
            ends = np.array([0, len(data)], np.int32)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
            arrays = [
                pa.Array.from_buffers(pa.binary(), 1, buffers, 0),
                pa.array([task.broker], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=PULLED)

    def _selected(self, task: LiveTask) -> Iterator[tuple[MessageQueue, "_Selected"]]:
        """Yield the selected records of a partition, at least one, and the queue of the first."""
        cluster = connected(self._live)
        options = self._options
        loss = Loss(options.fail_on_data_loss)
        client = RetryingClient(cluster.admin, self._live)
        pipeline = PullPipeline(
            cluster, client, task, lambda topic: _expression(self._constraint, task, topic), loss
        )
        selection = _Selection(
            RowFilter(options, self._constraint), loss, check_crc=options.check_crc
        )
        try:
            while chunks := pipeline.next():
                for selected in selection.of(chunks):
                    if selected.columns.count:
                        yield chunks[0].source.queue, selected
        finally:
            pipeline.close()


def _expression(constraint: Constraint, task: LiveTask, topic: str) -> str:
    """Return the tag expression for brokers; every record is checked again.

    Queues of system topics have other values in place of tags codes, and batch queues the tag of
    the batch.
    """
    tags = constraint.tags
    if tags is None or names.is_system_topic(topic) or topic in task.batch_topics:
        return ALL_TAGS
    if any(not tag or tag == ALL_TAGS or "|" in tag or tag != tag.strip() for tag in tags):
        return ALL_TAGS
    text = " || ".join(sorted(tags))
    return text if len(text.encode()) <= _EXPRESSION_BYTES_MAX else ALL_TAGS


# Records -------------------------------------------------------------------------------------


class _Selected(NamedTuple):
    """Selected records of some replies."""

    columns: kernels.Columns
    buffer: bytearray
    """The replies."""
    positions: npt.NDArray[np.int64]
    """Positions of the selected records."""
    has_batches: bool = False
    """True if rows are messages inside of batch records, so that ``positions`` are useless."""

    def records(self) -> bytes | bytearray:
        """Return the concatenated records."""
        sizes = self.columns.numbers("store_size")
        if int(sizes.sum(dtype=np.int64)) == len(self.buffer):
            return self.buffer
        view = memoryview(self.buffer)
        places = zip(self.positions.tolist(), sizes.tolist(), strict=True)
        return b"".join([view[start : start + size] for start, size in places])


class _Selection:
    """Checks pulled records, and selects those of rows."""

    def __init__(self, row_filter: RowFilter, loss: Loss, *, check_crc: bool) -> None:
        self._filter = row_filter
        self._loss = loss
        self._check_crc = check_crc

    def of(self, chunks: Sequence[Chunk]) -> Iterator[_Selected]:
        """Yield the selected records of some chunks, in order.

        Batch records are handled chunk by chunk, as their bodies may be decompressed.

        Raises:
            CorruptRecord: A reply has something else than whole records.
            DataLoss: A broker skipped messages, unless that is allowed.
        """
        replies = [part for chunk in chunks for part in chunk.replies]
        buffer = bytearray().join(replies)
        ends = np.cumsum([0, *map(len, replies)], dtype=np.int64)
        queues = [chunk.source.queue for chunk in chunks for _ in chunk.replies]
        positions = _places(buffer, ends, queues)
        bounds = np.cumsum([0, *(chunk.byte_count for chunk in chunks)], dtype=np.int64)
        counts = np.diff(np.searchsorted(positions, bounds))
        which = np.repeat(np.arange(len(chunks)), counts)
        self._judge(buffer, positions, which, chunks)
        columns = kernels.Columns(buffer, positions)
        has_batches = bool((columns.numbers("sys_flag") & flags.INNER_BATCH).any())
        if has_batches and len(chunks) > 1:
            for chunk in chunks:
                yield from self.of([chunk])
            return
        if has_batches:
            columns = columns.unwrapped()
            which = np.zeros(columns.count, np.int64)
        offsets = columns.numbers("queue_offset")
        starts = np.array([chunk.start for chunk in chunks], np.int64)
        stops = np.array([chunk.stop for chunk in chunks], np.int64)
        is_inside = (offsets >= starts[which]) & (offsets < stops[which])
        self._check_gaps(chunks, columns, which, is_inside)
        rows = np.flatnonzero(is_inside)
        if len(rows) < columns.count:
            columns = columns.take(rows)
        wanted = self._filter.rows(columns)
        if len(wanted) < columns.count:
            columns, rows = columns.take(wanted), rows[wanted]
        if has_batches:
            yield _Selected(columns, buffer, positions[:0], has_batches=True)
        else:
            yield _Selected(columns, buffer, positions[rows])

    def _judge(
        self,
        buffer: bytearray,
        positions: npt.NDArray[np.int64],
        which: npt.NDArray[np.int64],
        chunks: Sequence[Chunk],
    ) -> None:
        """Raise ``CorruptRecord`` unless everything is a whole record."""
        own_offsets = _numbers(buffer, record.PHYSICAL_OFFSET.size)
        places = positions + record.POSITION_PHYSICAL_OFFSET
        # The kernel expects records at their physical offset; these have moved.
        own = own_offsets[places]
        own_offsets[places] = positions
        judged = kernels.judge(buffer, positions, physical_offset=0, check_crc=self._check_crc)
        own_offsets[places] = own
        for row in np.flatnonzero(judged.verdicts != Verdict.MESSAGE):
            position = int(positions[row])
            offset = int(own[row])
            verdict = Verdict(int(judged.verdicts[row]))
            if verdict is Verdict.BAD_RECORD_CRC:  # which includes the physical offset
                data = memoryview(buffer)[position : position + int(judged.sizes[row])]
                verdict = record.classify(data, 0, offset)[0]
            if verdict is not Verdict.MESSAGE:
                reason = record.REASONS.get(verdict, "no record is here")
                _damaged(chunks[which[row]].source.queue, reason, offset)

    def _check_gaps(
        self,
        chunks: Sequence[Chunk],
        columns: kernels.Columns,
        which: npt.NDArray[np.int64],
        is_inside: npt.NDArray[np.bool_],
    ) -> None:
        """Report queue offsets that a broker skipped silently."""
        counts = np.bincount(which[is_inside], minlength=len(chunks))
        for number, chunk in enumerate(chunks):
            missing = chunk.stop - chunk.start - chunk.lost_count - int(counts[number])
            if chunk.source.is_filtered or missing <= 0:
                continue
            mine = which == number
            if (columns.numbers("sys_flag")[mine] & flags.INNER_BATCH).any():
                continue  # the body is no batch: how many queue offsets it has is unknown
            there = columns.numbers("queue_offset")[mine & is_inside].tolist()
            ends = [chunk.start - 1, *there, chunk.stop]
            holes = [f"{a + 1} to {b}" for a, b in pairwise(ends) if b - a > 1]
            self._loss.report(
                f"{queue_name(chunk.source.queue)} has no messages at queue offsets "
                f"{', '.join(holes)}: its broker skips them"
            )


def _places(
    buffer: bytearray, ends: npt.NDArray[np.int64], queues: Sequence[MessageQueue]
) -> npt.NDArray[np.int64]:
    """Return the positions of the records in several contiguous replies.

    The first records of all replies are located together, then the second ones, and so on.

    Args:
        buffer: The replies.
        ends: Start of the first reply, and end of each.
        queues: Queue of each reply.

    Raises:
        CorruptRecord: The size of a record is impossible.
    """
    sizes = _numbers(buffer, 4)
    number = np.flatnonzero(ends[:-1] < ends[1:])
    positions, end = ends[number], ends[number + 1]
    last = end - record.FIXED_BYTES_V1  # possible start of a record
    starts: list[npt.NDArray[np.int64]] = []
    is_right = bool((positions <= last).all())
    while is_right and len(positions) > _SIDE_BY_SIDE_MIN:
        size = sizes[positions]
        starts.append(positions)
        following = positions + size
        continues = (following <= last) & (size >= record.FIXED_BYTES_V1)
        if np.count_nonzero(continues) < len(positions):
            ended = ~continues
            is_right = np.array_equal(following[ended], end[ended])
            if not is_right:
                break
            following, end = following[continues], end[continues]
            last, number = last[continues], number[continues]
        positions = following
    # The rest: a few, or an invalid one, which is located again to name its queue.
    view = memoryview(buffer)
    for index, start, stop in zip(number.tolist(), positions.tolist(), end.tolist(), strict=True):
        first = int(ends[index])
        places = frames(view[first:stop], queues[index], start - first)
        starts.append(np.array(places, np.int64) + first)
    return np.sort(np.concatenate([np.zeros(0, np.int64), *starts]))


def _numbers(buffer: bytearray, width: int) -> npt.NDArray[np.int32 | np.int64]:
    """Return the big-endian number at each byte of a buffer, as a writable view."""
    return np.ndarray(max(len(buffer) - width + 1, 0), f">i{width}", buffer, 0, (1,))


def _damaged(queue: MessageQueue, reason: str, physical_offset: int) -> NoReturn:
    raise CorruptRecord(
        reason, physical_offset=physical_offset, file=f"reply to a pull from {queue_name(queue)}"
    )
