"""View ``messages`` over running brokers: the same rows as from their stores, without the folders.

``live_plan`` cuts the wanted queue offsets into tasks. A task pulls its ranges with several
requests on the way at a time, and decodes the records as a scan of a store does: a reply to a pull
holds record bytes unchanged.

Nothing is left behind on a broker: pulls come in the name of a group that every broker has
(``TOOLS_CONSUMER``), say what is wanted themselves instead of by heartbeats, commit no offset, and
ask for no offset that a queue does not have, which brokers would note in a topic.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.errors import CorruptRecord
from reput.format import kernels, message as record, names, sys_flag as flags
from reput.format.bodies import MessageQueue
from reput.format.codes import ResponseCode
from reput.format.message import Verdict
from reput.spark.filters import Constraint
from reput.spark.live_calls import ALL_TAGS, Asker, Pulled, connected, frames, queue_name
from reput.spark.live_plan import LiveTask, Loss, Planner
from reput.spark.options import LiveOptions, ReadOptions
from reput.spark.rows import RowFilter, RowMaker
from reput.spark.scan import Summary, option_constraint, portions

log = logging.getLogger("reput.spark")

PULLS_IN_FLIGHT: Final = 16
"""Pulls of a task that are on the way at a time: enough to keep a broker busy from one core."""
_BATCH_BYTES = 1024 * 1024
"""About how much is decoded at a time."""
_CHUNK_BYTES = 512 * 1024
"""About how much one chunk brings, so that what is in flight stays small with large messages."""
_CHUNK_COUNT_MAX = 1024
"""Offsets of a chunk where the broker looks for tags: it looks at some hundreds a pull."""
_EXPRESSION_BYTES_MAX = 8 * 1024
_REMOVING = "MESSAGE_WAS_REMOVING"


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
        cluster = connected(self._live)
        asker = Asker(cluster.admin, self._live)
        planner = Planner(asker, self._options, self._pushed, self.summary)
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
        asker = Asker(cluster.admin, self._live)
        feed = _Feed(asker, task, lambda topic: _expression(self._constraint, topic), loss)
        rows = _Rows(
            RowMaker(self._columns, options, task.broker),
            RowFilter(options, self._constraint),
            loss,
            check_crc=options.check_crc,
        )
        try:
            while chunks := cluster.run(feed.next()):
                yield from rows.batches(chunks)
        finally:
            cluster.run(feed.close())


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


# Pulling -------------------------------------------------------------------------------------


@dataclass
class _Chunk:
    """A few offsets of a queue, which are pulled one reply after the other."""

    queue: MessageQueue
    start: int
    stop: int
    expression: str
    replies: list[bytes] = field(default_factory=list)
    lost_count: int = 0
    """Offsets that were reported already."""

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.replies))


class _Feed:
    """Pulls the ranges of a task in order, some chunks ahead. Lives in the loop."""

    def __init__(
        self, asker: Asker, task: LiveTask, expression: Callable[[str], str], loss: Loss
    ) -> None:
        self._asker = asker
        self._task = task
        self._expression = expression
        self._loss = loss
        self._batch_size = asker.live.pull_batch_size
        self._mean_bytes = max(task.record_bytes, 1.0)
        self._chunks: Iterator[_Chunk] | None = None
        self._pending: deque[asyncio.Task[_Chunk]] = deque()

    async def next(self) -> list[_Chunk]:
        """Return the next chunks in order, about a batch's bytes; none at the end."""
        if self._chunks is None:
            self._chunks = self._cut(await self._slices())
        self._fill()
        found: list[_Chunk] = []
        held_bytes = 0
        while self._pending and held_bytes < _BATCH_BYTES:
            chunk = await self._pending[0]
            self._pending.popleft()
            self._fill()
            found.append(chunk)
            held_bytes += chunk.byte_count
        return found

    async def close(self) -> None:
        """Forget what is on the way."""
        tasks = list(self._pending)
        self._pending.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _slices(self) -> list[tuple[MessageQueue, int, int]]:
        """Return what is still there of what was planned."""
        found = []
        slices = self._task.partition.slices
        queues = [
            MessageQueue(topic=one.topic, broker_name=self._task.broker, queue_id=one.queue_id)
            for one in slices
        ]
        ends = await asyncio.gather(*(self._asker.ends(queue) for queue in queues))
        for one, queue, (low, high) in zip(slices, queues, ends, strict=True):
            start, stop = max(one.start, low), min(one.stop, high)
            if (start, stop) != (one.start, one.stop):
                self._report(queue, one.start, one.stop, low, high)
            if start < stop:
                found.append((queue, start, stop))
        return found

    def _report(self, queue: MessageQueue, start: int, stop: int, low: int, high: int) -> None:
        self._loss.report(
            f"{queue_name(queue)} holds {low} to {high} now, planned were {start} to {stop}"
        )

    def _cut(self, slices: Sequence[tuple[MessageQueue, int, int]]) -> Iterator[_Chunk]:
        for queue, start, stop in slices:
            expression = self._expression(queue.topic)
            at = start
            while at < stop:
                count_max = self._batch_size if expression == ALL_TAGS else _CHUNK_COUNT_MAX
                count = max(min(count_max, int(_CHUNK_BYTES / self._mean_bytes)), 1)
                behind = min(at + count, stop)
                yield _Chunk(queue, at, behind, expression)
                at = behind

    def _fill(self) -> None:
        assert self._chunks is not None
        while len(self._pending) < PULLS_IN_FLIGHT:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._pending.append(asyncio.create_task(self._pull(chunk)))

    async def _pull(self, chunk: _Chunk) -> _Chunk:
        """Pull all of a chunk."""
        at, stop = chunk.start, chunk.stop
        is_filtered = chunk.expression != ALL_TAGS
        while at < stop:
            count = min(self._batch_size, stop - at)
            said = await self._asker.pull(chunk.queue, at, count, chunk.expression)
            if said.code == ResponseCode.SUCCESS:
                chunk.replies.append(said.records)
                at = said.next_offset
                continue
            if said.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                if not is_filtered or said.remark == _REMOVING:
                    self._lose(chunk, at, said.next_offset, said)
                at = said.next_offset
                continue
            # The queue ends here, begins later, or has a hole.
            following = max(said.next_offset, said.min_offset if at < said.min_offset else 0)
            if following <= at or at >= said.max_offset:
                following = stop
            self._lose(chunk, at, following, said)
            at = following
        if not is_filtered and chunk.replies:
            mean = chunk.byte_count / (chunk.stop - chunk.start)
            self._mean_bytes += (max(mean, 1.0) - self._mean_bytes) / 8
        return chunk

    def _lose(self, chunk: _Chunk, start: int, stop: int, said: Pulled) -> None:
        stop = min(stop, chunk.stop)
        self._report(chunk.queue, start, stop, said.min_offset, said.max_offset)
        chunk.lost_count += stop - start


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

    def batches(self, chunks: Sequence[_Chunk]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some chunks, in order."""
        buffer = bytearray().join(part for chunk in chunks for part in chunk.replies)
        counts: list[int] = []
        found: list[int] = []
        begin = 0
        for chunk in chunks:
            before = len(found)
            for part in chunk.replies:
                found += [begin + at for at in frames(part, chunk.queue)]
                begin += len(part)
            counts.append(len(found) - before)
        positions = np.array(found, np.int64)
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
                _damaged(chunks[0].queue, error.reason, error.physical_offset or 0)
            if batch.num_rows:
                yield batch

    def _judge(
        self,
        buffer: bytearray,
        positions: npt.NDArray[np.int64],
        which: npt.NDArray[np.int64],
        chunks: Sequence[_Chunk],
    ) -> None:
        """Raise ``CorruptRecord`` unless everything is a whole record."""
        data = np.frombuffer(buffer, np.uint8)
        width = record.PHYSICAL_OFFSET.size
        fields = positions[:, None] + (record.POSITION_PHYSICAL_OFFSET + np.arange(width))
        # The kernel judges records where they say they stand. These have moved.
        own = data[fields]
        data[fields] = positions.astype(">i8").view(np.uint8).reshape(-1, width)
        judged = kernels.judge(buffer, positions, physical_offset=0, check_crc=self._check_crc)
        data[fields] = own
        for row in np.flatnonzero(judged.verdicts != Verdict.MESSAGE):
            at = int(positions[row])
            offset = int.from_bytes(own[row].tobytes(), signed=True)
            verdict = Verdict(int(judged.verdicts[row]))
            if verdict is Verdict.BAD_RECORD_CRC:  # which is about the physical offset as well
                one = memoryview(buffer)[at : at + int(judged.sizes[row])]
                verdict = record.classify(one, 0, offset)[0]
            if verdict is not Verdict.MESSAGE:
                reason = record.REASONS.get(verdict, "no record is here")
                _damaged(chunks[which[row]].queue, reason, offset)

    def _check_gaps(
        self,
        chunks: Sequence[_Chunk],
        columns: kernels.Columns,
        which: npt.NDArray[np.int64],
        is_inside: npt.NDArray[np.bool_],
    ) -> None:
        """Report offsets that a broker has passed over without a word."""
        counts = np.bincount(which[is_inside], minlength=len(chunks))
        for number, chunk in enumerate(chunks):
            missing = chunk.stop - chunk.start - chunk.lost_count - int(counts[number])
            if chunk.expression != ALL_TAGS or missing <= 0:
                continue
            mine = which == number
            if (columns.numbers("sys_flag")[mine] & flags.INNER_BATCH).any():
                continue  # one record stands for several offsets
            there = columns.numbers("queue_offset")[mine & is_inside].tolist()
            ends = [chunk.start - 1, *there, chunk.stop]
            holes = [f"{a + 1} to {b}" for a, b in pairwise(ends) if b - a > 1]
            self._loss.report(
                f"{queue_name(chunk.queue)} has no messages at queue offsets {', '.join(holes)}: "
                "its broker passes over them"
            )


def _damaged(queue: MessageQueue, reason: str, physical_offset: int) -> NoReturn:
    raise CorruptRecord(
        reason, physical_offset=physical_offset, file=f"reply to a pull from {queue_name(queue)}"
    )
