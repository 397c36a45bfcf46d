"""Selection of messages in a store by offset, queue, time, topic and tag."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reput.cli.printing import Clock
from reput.errors import InvalidOption, NotInStore
from reput.format import batch, message as record
from reput.format.message import StoredMessage
from reput.store.log.commit_log_view import Damage, LogBatch
from reput.store.reader import StoreReader

TAG_SEPARATOR = "||"


# --- one message --------------------------------------------------------------------------------


def parse_queue(text: str) -> tuple[str, int, int | None]:
    """Return topic, queue id and queue offset of ``TOPIC/ID/N``; the offset may be omitted.

    Raises:
        InvalidOption: The text is neither ``TOPIC/ID`` nor ``TOPIC/ID/N``.
    """
    topic, *numbers = text.split("/")
    if (
        topic
        and len(numbers) in (1, 2)
        and all(number.isascii() and number.isdigit() for number in numbers)
    ):
        return topic, int(numbers[0]), int(numbers[1]) if numbers[1:] else None
    raise InvalidOption("--queue", text, "TOPIC/ID/N, or TOPIC/ID together with --time")


def in_queue(reader: StoreReader, topic: str, queue_id: int, queue_offset: int) -> StoredMessage:
    """Return a message by its queue offset, extracted from its batch if it is in one.

    Raises:
        NotInStore: The queue has no such message.
        CorruptRecord: The message or its unit is damaged.
    """
    _check_queue(reader, topic, queue_id)
    outer = reader.message_in_queue(topic, queue_id, queue_offset)
    inner = (
        message for message in batch.unwrap_if_valid(outer) if message.queue_offset == queue_offset
    )
    return next(inner, outer)


def in_queue_at_time(
    reader: StoreReader, topic: str, queue_id: int, timestamp_ms: int
) -> StoredMessage:
    """Return the first message of a queue that was stored at or after a time.

    Raises:
        NotInStore: All messages are older.
        CorruptRecord: The message or its unit is damaged.
    """
    _check_queue(reader, topic, queue_id)
    queue_offset = reader.offset_by_time(topic, queue_id, timestamp_ms)
    is_batch = queue_id in reader.batch_queue_ids.get(topic, ())
    queue = (reader.batch_queue if is_batch else reader.queue)(topic, queue_id)
    if queue_offset >= queue.max_offset:
        raise NotInStore(f"no message of queue {topic}/{queue_id} was stored then or later")
    return in_queue(reader, topic, queue_id, queue_offset)


def _check_queue(reader: StoreReader, topic: str, queue_id: int) -> None:
    ids = {*reader.queue_ids.get(topic, ()), *reader.batch_queue_ids.get(topic, ())}
    if queue_id not in ids:
        there = f"has queues {', '.join(map(str, sorted(ids)))}" if ids else "has no queue"
        raise NotInStore(f"no queue {topic}/{queue_id} in this store: topic {topic} {there}")


def at_time(reader: StoreReader, timestamp_ms: int) -> StoredMessage:
    """Return the first message of the log that was stored at or after a time, or its batch's first.

    Raises:
        NotInStore: All messages are older.
    """
    for batch_of_log in reader.walk(_start_at(reader, timestamp_ms)):
        times = batch_of_log.columns().numbers("store_timestamp").tolist()
        for position, stored_ms in zip(batch_of_log.positions.tolist(), times, strict=True):
            if stored_ms >= timestamp_ms:
                outer = record.decode(batch_of_log.buffer, position, check_crc=False)
                return next(iter(batch.unwrap_if_valid(outer)), outer)
    raise NotInStore("no message was stored then or later")


# --- a range ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """A half-open range of the log, by physical offset and by time."""

    start: int | None = None
    stop: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None


def parse_bounds(begin: str | None, end: str | None, clock: Clock) -> Bounds:
    """Return the range from ``--from`` to ``--to``; digits are physical offsets.

    Raises:
        InvalidOption: A bound is neither an offset nor a time.
    """
    start, begin_ms = _bound("--from", begin, clock)
    stop, end_ms = _bound("--to", end, clock)
    return Bounds(start, stop, begin_ms, end_ms)


def _bound(option: str, text: str | None, clock: Clock) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), None
    timestamp_ms = clock.parse(text)
    if timestamp_ms is None:
        allowed = "a physical offset, or a time like 2026-11-21T03:03:25.534"
        raise InvalidOption(option, text, allowed)
    return None, timestamp_ms


@dataclass
class Selection:
    """Messages in log order, and the damage found while reading them."""

    reader: StoreReader
    bounds: Bounds
    topics: frozenset[str] = frozenset()
    """Selected topics; all if empty."""
    tags: frozenset[str] = frozenset()
    """Selected tags; all if empty."""
    damage: list[Damage] = field(default_factory=list)

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the messages, and add damage to ``damage``."""
        start, stop = self._range()
        for window in self.reader.walk(start, stop):
            self.damage += window.damage
            for row in self._rows(window):
                position = int(window.positions[row])
                outer = record.decode(window.buffer, position, check_crc=False)
                for message in batch.unwrap_if_valid(outer):
                    if not self.tags or message.tags in self.tags:
                        yield message

    def _range(self) -> tuple[int, int]:
        """Return the first and the end physical offset; from within a record start at the next."""
        bounds, end = self.bounds, self.reader.end_offset
        stop = end if bounds.stop is None else min(bounds.stop, end)
        if bounds.begin_ms is not None:
            return _start_at(self.reader, bounds.begin_ms), stop
        start = max(bounds.start or 0, self.reader.log.min_offset)
        return self.reader.log.find_record(start, stop) if bounds.start else start, stop

    def _rows(self, window: LogBatch) -> list[int]:
        """Return the rows of a window with selected topics and times."""
        if not len(window.positions):
            return []
        columns = window.columns()
        rows = list(range(columns.count))
        if self.topics:
            ids, topics = columns.topic_ids()
            wanted = {number for number, topic in enumerate(topics) if topic in self.topics}
            rows = [row for row, number in enumerate(ids.tolist()) if number in wanted]
        begin_ms, end_ms = self.bounds.begin_ms, self.bounds.end_ms
        if begin_ms is not None or end_ms is not None:
            times: list[Any] = columns.numbers("store_timestamp").tolist()
            low = times[0] if begin_ms is None else begin_ms
            rows = [
                row for row in rows if times[row] >= low and (end_ms is None or times[row] < end_ms)
            ]
        return rows


def _start_at(reader: StoreReader, timestamp_ms: int) -> int:
    """Return a physical offset before all messages that were stored at or after a time."""
    start = reader.log.min_offset
    for file in reader.log.files:
        first = reader.log.first_record(file)
        if first is not None and first.store_timestamp >= timestamp_ms:
            break
        start = file.start if first is not None else start
    return start
