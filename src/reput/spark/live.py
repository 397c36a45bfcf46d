"""View ``messages`` over running brokers: the same rows as from their stores, without the folders.

``live_plan`` cuts the wanted queue offsets into tasks. A task pulls its ranges with many requests
on the way at a time, and decodes the records as a scan of a store does: a reply to a pull holds
record bytes unchanged. Pulls go over a line of their own; whatever is not the next records is asked
again by ``Asker.pull``, which has patience and knows what answers mean.

Nothing is left behind on a broker: pulls come in the name of a group that every broker has
(``TOOLS_CONSUMER``), say what is wanted themselves instead of by heartbeats, commit no offset, and
ask for no offset that a queue does not have, which brokers would note in a topic.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reput.errors import CorruptRecord, RemotingError
from reput.format import kernels, message as record, names, sys_flag as flags
from reput.format.bodies import MessageQueue
from reput.format.codes import ResponseCode
from reput.format.message import Verdict
from reput.spark.filters import Constraint
from reput.spark.live_calls import (
    ALL_TAGS,
    Asker,
    Cluster,
    Pulled,
    connected,
    frames,
    queue_name,
)
from reput.spark.live_line import Line, PullReply, PullTemplate
from reput.spark.live_plan import LiveTask, Loss, Planner
from reput.spark.options import LiveOptions, ReadOptions
from reput.spark.rows import RowFilter, RowMaker
from reput.spark.scan import Summary, option_constraint, portions

log = logging.getLogger("reput.spark")

PULLS_IN_FLIGHT: Final = 512
"""Pulls of a task that are on the way at a time: so many that the broker has enough to do while
what has come is decoded."""
_BYTES_IN_FLIGHT = 4 * 1024 * 1024
"""About how much they bring together."""
_BATCH_BYTES = 4 * 1024 * 1024
"""About how much is decoded at a time."""
_CHUNK_BYTES = 512 * 1024
"""About how much one chunk brings, so that what is in flight stays small with large messages."""
_SIDE_BY_SIDE_MIN = 8
"""Replies whose records are found together: fewer are faster one by one."""
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
        feed = _Feed(cluster, asker, task, lambda topic: _expression(self._constraint, topic), loss)
        rows = _Rows(
            RowMaker(self._columns, options, task.broker),
            RowFilter(options, self._constraint),
            loss,
            check_crc=options.check_crc,
        )
        try:
            while chunks := feed.next():
                yield from rows.batches(chunks)
        finally:
            feed.close()


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


@dataclass(frozen=True, slots=True)
class _Source:
    """A queue, and how it is pulled from."""

    queue: MessageQueue
    expression: str
    template: PullTemplate

    @property
    def is_filtered(self) -> bool:
        """Whether its broker leaves out messages with other tags."""
        return self.expression != ALL_TAGS


@dataclass(slots=True)
class _Chunk:
    """A few offsets of a queue, which are pulled one reply after the other."""

    source: _Source
    start: int
    stop: int
    at: int
    """The next queue offset that is to be pulled; all before it were."""
    asked_s: float = 0.0
    """When it was asked for last."""
    is_patient: bool = False
    """Whether the rest is left to ``Asker.pull``."""
    replies: list[bytes] = field(default_factory=list)
    byte_count: int = 0
    """Of the replies."""
    lost_count: int = 0
    """Offsets that were reported already."""

    def add(self, records: bytes, next_offset: int) -> None:
        """Take the next records."""
        self.replies.append(records)
        self.byte_count += len(records)
        self.at = next_offset


class _Feed:
    """Pulls the ranges of a task in order, some chunks ahead."""

    def __init__(
        self,
        cluster: Cluster,
        asker: Asker,
        task: LiveTask,
        expression: Callable[[str], str],
        loss: Loss,
    ) -> None:
        self._cluster = cluster
        self._asker = asker
        self._task = task
        self._expression = expression
        self._loss = loss
        self._batch_size = asker.live.pull_batch_size
        self._timeout_ms = asker.live.pull_timeout_ms
        self._mean_bytes = max(task.record_bytes, 1.0)
        self._chunks: Iterator[_Chunk] | None = None
        self._pending: deque[_Chunk] = deque()
        self._line: Line | None = None
        self._asked: dict[int, _Chunk] = {}
        """By opaque, what waits for a reply on the line."""
        self._resumed_s = 0.0
        """When somebody began to read again."""

    def next(self) -> list[_Chunk]:
        """Return the next chunks in order, about a batch's bytes; none at the end."""
        self._resumed_s = time.monotonic()
        if self._chunks is None:
            self._chunks = self._cut(self._cluster.run(self._slices()))
        self._fill()
        found: list[_Chunk] = []
        held_bytes = 0
        while self._pending and held_bytes < _BATCH_BYTES:
            chunk = self._pending[0]
            self._finish(chunk)
            self._pending.popleft()
            self._fill()
            found.append(chunk)
            held_bytes += chunk.byte_count
        self._send()
        return found

    def close(self) -> None:
        """Leave the line to the next task; not if a reply may still come."""
        if self._line is None:
            return
        if self._asked:
            self._line.close()
        else:
            self._cluster.lines.give_back(self._line)
        self._line = None

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
            template = self._asker.pull_template(queue, expression)
            source = _Source(queue, expression, template)
            count_max = _CHUNK_COUNT_MAX if source.is_filtered else self._batch_size
            at = start
            while at < stop:
                behind = min(
                    at + max(min(count_max, int(_CHUNK_BYTES / self._mean_bytes)), 1), stop
                )
                yield _Chunk(source, at, behind, at)
                at = behind

    def _fill(self) -> None:
        """Ask for the next chunks, as many as may be on the way."""
        assert self._chunks is not None
        if self._line is None and self._pending:
            return  # the line was lost: what was on the way comes first
        pending = self._pending
        room = self._room(pending[-1]) if pending else 1
        while len(pending) < room:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            pending.append(chunk)
            if self._line is None and not self._connect(chunk.source.queue):
                chunk.is_patient = True
                return
            self._ask(chunk)
            if len(pending) == 1:
                room = self._room(chunk)

    def _room(self, chunk: _Chunk) -> int:
        """Return how many chunks like this may be on the way."""
        chunk_bytes = (chunk.stop - chunk.start) * self._mean_bytes
        return max(min(PULLS_IN_FLIGHT, int(_BYTES_IN_FLIGHT / chunk_bytes)), 1)

    # On the line ----------------------------------------------------------------------------

    def _connect(self, queue: MessageQueue) -> bool:
        """Take a line to who is to be asked about a queue; return whether there is one."""
        try:
            self._line = self._cluster.lines.take(self._cluster.run(self._asker.address(queue)))
        except RemotingError as error:
            log.warning("pulls of %s: %s; asking again", queue_name(queue), error)
            return False
        return True

    def _ask(self, chunk: _Chunk) -> None:
        assert self._line is not None
        count = min(self._batch_size, chunk.stop - chunk.at)
        self._asked[self._line.ask(chunk.source.template, chunk.at, count)] = chunk
        chunk.asked_s = time.monotonic()

    def _send(self) -> None:
        """Send what was asked, so that the broker is at work meanwhile."""
        if self._line is not None:
            try:
                self._line.send()
            except RemotingError as error:
                self._lose_line(error)

    def _receive(self, awaited: _Chunk) -> None:
        """Take the replies that come next; give the line up if this chunk's is overdue."""
        assert self._line is not None
        # A broker cannot go on while nobody reads, and Spark may have been busy for long.
        deadline = max(awaited.asked_s, self._resumed_s) + self._timeout_ms / 1000
        try:
            wait_s = deadline - time.monotonic()
            replies = self._line.receive(wait_s, self._timeout_ms)
        except RemotingError as error:
            self._lose_line(error)
            return
        for reply in replies:
            chunk = self._asked.pop(reply.opaque, None)
            if chunk is not None:
                self._take(chunk, reply)

    def _take(self, chunk: _Chunk, reply: PullReply) -> None:
        """Go on with a chunk if the reply is what comes next; leave any other to the asker."""
        gets_on = reply.next_offset > chunk.at
        if gets_on and reply.code == ResponseCode.SUCCESS:
            chunk.add(reply.records, reply.next_offset)
        elif gets_on and _has_no_match(chunk, reply):
            chunk.at = reply.next_offset
        else:
            chunk.is_patient = True
            return
        if chunk.at < chunk.stop:
            self._ask(chunk)

    def _lose_line(self, error: RemotingError) -> None:
        """Leave to the asker what was on the way."""
        assert self._line is not None
        log.warning("pulls from %s: %s; asking again", self._task.broker, error)
        self._line.close()
        self._line = None
        for chunk in self._asked.values():
            chunk.is_patient = True
        self._asked.clear()

    # Chunk by chunk -------------------------------------------------------------------------

    def _finish(self, chunk: _Chunk) -> None:
        """Wait until a chunk is whole."""
        while chunk.at < chunk.stop and not chunk.is_patient:
            self._receive(chunk)
        if chunk.at < chunk.stop:
            self._cluster.run(self._pull(chunk))
        if chunk.replies and not chunk.source.is_filtered:
            mean = chunk.byte_count / (chunk.stop - chunk.start)
            self._mean_bytes += (max(mean, 1.0) - self._mean_bytes) / 8

    async def _pull(self, chunk: _Chunk) -> None:
        """Pull the rest of a chunk, with patience."""
        source = chunk.source
        while chunk.at < chunk.stop:
            at = chunk.at
            count = min(self._batch_size, chunk.stop - at)
            said = await self._asker.pull(source.queue, at, count, source.expression)
            if said.code == ResponseCode.SUCCESS:
                chunk.add(said.records, said.next_offset)
                continue
            if said.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                if not _has_no_match(chunk, said):
                    self._lose(chunk, at, said.next_offset, said)
                chunk.at = said.next_offset
                continue
            # The queue ends here, begins later, or has a hole.
            following = max(said.next_offset, said.min_offset if at < said.min_offset else 0)
            if following <= at or at >= said.max_offset:
                following = chunk.stop
            self._lose(chunk, at, following, said)
            chunk.at = following

    def _lose(self, chunk: _Chunk, start: int, stop: int, said: Pulled) -> None:
        stop = min(stop, chunk.stop)
        self._report(chunk.source.queue, start, stop, said.min_offset, said.max_offset)
        chunk.lost_count += stop - start


def _has_no_match(chunk: _Chunk, said: Pulled | PullReply) -> bool:
    """Whether a broker looked at some messages, none of which has a wanted tag."""
    return (
        said.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and chunk.source.is_filtered
        and said.remark != _REMOVING
    )


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
        chunks: Sequence[_Chunk],
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
        chunks: Sequence[_Chunk],
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
