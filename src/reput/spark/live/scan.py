"""View ``messages`` over running brokers: the same rows as from their stores, without the folders.

``plan`` cuts the wanted queue offsets into tasks. A task pulls its ranges (``feed``) and
decodes the records as a scan of a store does: a reply to a pull holds record bytes unchanged.

Nothing is left behind on a broker: pulls come in the name of a group that every broker has
(``TOOLS_CONSUMER``), say what is wanted themselves instead of by heartbeats, commit no offset, and
ask for no offset that a queue does not have, which brokers would note in a topic.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.errors import CorruptRecord
from reput.format import kernels, message as record, names, sys_flag as flags
from reput.format.bodies import MessageQueue
from reput.format.message import Verdict
from reput.spark.filters import Constraint
from reput.spark.live.calls import ALL_TAGS, RetryingClient, connected, frames, queue_name
from reput.spark.live.plan import LiveTask, Loss, Planner
from reput.spark.live.pull_pipeline import Chunk, PullPipeline
from reput.spark.options import LiveOptions, ReadOptions
from reput.spark.partition_reader import portions
from reput.spark.rows import RowFilter, RowMaker, warn_of_ignored
from reput.spark.store_planner import Summary, option_constraint

log = logging.getLogger("reput.spark")

_SIDE_BY_SIDE_MIN = 8
"""Replies whose records are found together: fewer are faster one by one."""
_EXPRESSION_BYTES_MAX = 8 * 1024


class LiveScan:
    """One batch read of view ``messages`` from brokers.

    Args:
        options: What the read was told; ``live`` is set.
        columns: Names of the wanted columns, in order.
        constraint: What pushed-down predicates demand.
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
        """Plan the read: as much of each queue as there is now.

        Raises:
            InvalidOption: Topics, brokers or offsets that were named do not fit.
            DataLoss: What was named is gone, unless ``failOnDataLoss`` is false.
            ReadFailed: Somebody does not answer, or refuses.
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

    # On the executors -----------------------------------------------------------------------

    def read(self, task: LiveTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, queue by queue in the order of queue offsets.

        Raises:
            CorruptRecord: A broker sends what is no record.
            DataLoss: Messages have gone since they were planned, unless ``failOnDataLoss`` is
                false.
            ReadFailed: Somebody does not answer, or refuses.
        """
        cluster = connected(self._live)
        options = self._options
        loss = Loss(options.fail_on_data_loss)
        client = RetryingClient(cluster.admin, self._live)
        pipeline = PullPipeline(
            cluster, client, task, lambda topic: _expression(self._constraint, topic), loss
        )
        rows = _Rows(
            RowMaker(self._columns, options, task.broker),
            RowFilter(options, self._constraint),
            loss,
            check_crc=options.check_crc,
        )
        try:
            while chunks := pipeline.next():
                yield from rows.batches(chunks)
        finally:
            pipeline.close()


def _expression(constraint: Constraint, topic: str) -> str:
    """Return what a broker is told of the wanted tags; every record is looked at again.

    Queues of system topics have other things where those of others have the hash of the tag.
    """
    tags = constraint.tags
    if tags is None or names.is_system_topic(topic):
        return ALL_TAGS
    if any(not tag or tag == ALL_TAGS or "|" in tag or tag != tag.strip() for tag in tags):
        return ALL_TAGS
    text = " || ".join(sorted(tags))
    return text if len(text.encode()) <= _EXPRESSION_BYTES_MAX else ALL_TAGS


# Rows ----------------------------------------------------------------------------------------


class _Rows:
    """Makes rows of what was pulled."""

    def __init__(
        self, maker: RowMaker, row_filter: RowFilter, loss: Loss, *, check_crc: bool
    ) -> None:
        self._maker = maker
        self._filter = row_filter
        self._loss = loss
        self._check_crc = check_crc

    def batches(self, chunks: Sequence[Chunk]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some chunks, in order."""
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
        offsets = columns.numbers("queue_offset")
        starts = np.array([chunk.start for chunk in chunks], np.int64)
        stops = np.array([chunk.stop for chunk in chunks], np.int64)
        is_inside = (offsets >= starts[which]) & (offsets < stops[which])
        self._check_gaps(chunks, columns, which, is_inside)
        if not is_inside.all():
            columns = columns.take(is_inside)
        rows = self._filter.rows(columns)
        if len(rows) == 0:
            return
        for kept in portions(columns if len(rows) == columns.count else columns.take(rows)):
            try:
                batch = self._maker.batch(kept)
            except CorruptRecord as error:
                _damaged(chunks[0].source.queue, error.reason, error.physical_offset or 0)
            if batch.num_rows:
                yield batch

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
        # The kernel judges records where they say they stand. These have moved.
        own = own_offsets[places]
        own_offsets[places] = positions
        judged = kernels.judge(buffer, positions, physical_offset=0, check_crc=self._check_crc)
        own_offsets[places] = own
        for row in np.flatnonzero(judged.verdicts != Verdict.MESSAGE):
            at = int(positions[row])
            offset = int(own[row])
            verdict = Verdict(int(judged.verdicts[row]))
            if verdict is Verdict.BAD_RECORD_CRC:  # which is about the physical offset as well
                one = memoryview(buffer)[at : at + int(judged.sizes[row])]
                verdict = record.classify(one, 0, offset)[0]
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
        """Report offsets that a broker has passed over without a word."""
        counts = np.bincount(which[is_inside], minlength=len(chunks))
        for number, chunk in enumerate(chunks):
            missing = chunk.stop - chunk.start - chunk.lost_count - int(counts[number])
            if chunk.source.is_filtered or missing <= 0:
                continue
            mine = which == number
            if (columns.numbers("sys_flag")[mine] & flags.INNER_BATCH).any():
                continue  # one record stands for several offsets
            there = columns.numbers("queue_offset")[mine & is_inside].tolist()
            ends = [chunk.start - 1, *there, chunk.stop]
            holes = [f"{a + 1} to {b}" for a, b in pairwise(ends) if b - a > 1]
            self._loss.report(
                f"{queue_name(chunk.source.queue)} has no messages at queue offsets "
                f"{', '.join(holes)}: its broker passes over them"
            )


def _places(
    buffer: bytearray, ends: npt.NDArray[np.int64], queues: Sequence[MessageQueue]
) -> npt.NDArray[np.int64]:
    """Return where the records of many replies begin, which stand side by side.

    The first of each are found together, then the second, and so on.

    Args:
        buffer: The replies.
        ends: Where the first begins, and where each ends.
        queues: Of each reply.

    Raises:
        CorruptRecord: What stands there is no record, as far as its size tells.
    """
    sizes = _numbers(buffer, 4)
    number = np.flatnonzero(ends[:-1] < ends[1:])
    at, end = ends[number], ends[number + 1]
    last = end - record.FIXED_BYTES_V1  # where a record may begin
    found: list[npt.NDArray[np.int64]] = []
    is_right = bool((at <= last).all())
    while is_right and len(at) > _SIDE_BY_SIDE_MIN:
        size = sizes[at]
        found.append(at)
        following = at + size
        goes_on = (following <= last) & (size >= record.FIXED_BYTES_V1)
        if np.count_nonzero(goes_on) < len(at):
            ended = ~goes_on
            is_right = np.array_equal(following[ended], end[ended])
            if not is_right:
                break
            following, end = following[goes_on], end[goes_on]
            last, number = last[goes_on], number[goes_on]
        at = following
    # What is left: a few, or one of them is wrong, which is found again with its name.
    view = memoryview(buffer)
    for one, start, stop in zip(number.tolist(), at.tolist(), end.tolist(), strict=True):
        first = int(ends[one])
        places = frames(view[first:stop], queues[one], start - first)
        found.append(np.array(places, np.int64) + first)
    return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))


def _numbers(buffer: bytearray, width: int) -> npt.NDArray[np.int32 | np.int64]:
    """Return the big-endian number that stands at each byte of a buffer; write through it, too."""
    return np.ndarray(max(len(buffer) - width + 1, 0), f">i{width}", buffer, 0, (1,))


def _damaged(queue: MessageQueue, reason: str, physical_offset: int) -> NoReturn:
    raise CorruptRecord(
        reason, physical_offset=physical_offset, file=f"reply to a pull from {queue_name(queue)}"
    )
