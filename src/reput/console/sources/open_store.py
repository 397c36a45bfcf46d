"""A store folder that is open: its messages for searches, and what its files say.

Only ``StoreFolders`` imports it, in a thread: what reads stores takes a while to load.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from reput.client.core.key_search import Window
from reput.client.message import ReceivedMessage
from reput.console.scan import Lookup, ScanPart, Spans
from reput.console.search import Missing, Question, Span, in_queue
from reput.console.settings import StorePlace
from reput.console.unknown import Unknown
from reput.errors import CorruptRecord, InvalidOption, NotInStore, ReputError
from reput.format import batch, java, message_id
from reput.format.message import StoredMessage
from reput.store.reader import Boundary, StoreReader, belongs
from reput.store.verify import documents


class OpenStore:
    """A store folder.

    Args:
        reader: Its reader.
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    @classmethod
    def open(cls, place: StorePlace) -> Self:
        """Open a folder. Raises ``StoreUnavailable``: it is no store, or is in use."""
        return cls(StoreReader.open(place.path, allow_live=place.may_be_live))

    def _broker(self) -> str:
        """Return the name of a store's broker; empty if the tables do not contain it."""
        try:
            return self._reader.broker_name()
        except CorruptRecord:
            return ""

    # --- what its files say -------------------------------------------------------------------

    def info(self) -> Mapping[str, Any]:
        """Return an overview."""
        return documents.info(self._reader)

    def facts(self) -> Mapping[str, Any]:
        """Return everything that the page of a store shows."""
        info = self.info()
        log = info["log"]
        holes = [*log["missing"], *(log[name] for name in ("torn", "stale") if log[name])]
        return {
            **info,
            "files": documents.log_files(self._reader),
            "holes": holes,
            "topics": _or_unknown(lambda: documents.topics(self._reader)),
            "queues": documents.queues(self._reader),
            "index_files": documents.index_files(self._reader),
            "groups": _or_unknown(lambda: documents.groups(self._reader)),
            "timer": _or_unknown(lambda: documents.timer(self._reader)),
            "delays": _or_unknown(
                lambda: [
                    {
                        "level": level,
                        "queue_offset": offset,
                        "end": end,
                        "waiting": max(0, end - offset),
                    }
                    for level, offset, end in self._reader.delay_progress()
                ]
            ),
        }

    def consumer_offsets(self, topic: str, queue_id: int) -> list[tuple[str, int]]:
        """Return (group, consumer offset) of the groups of a queue, by group."""
        return sorted(
            (offset.group, offset.consumer_offset)
            for offset in self._reader.consumer_offsets()
            if (offset.topic, offset.queue_id) == (topic, queue_id)
        )

    # --- messages -----------------------------------------------------------------------------

    def spans(self, question: Question) -> Spans:
        """Return the queues of a topic within the question's interval.

        Raises:
            InvalidOption: The store has no queues of the topic.
        """
        reader, topic, broker = self._reader, question.topic, self._broker()
        plain, batches = reader.queue_ids.get(topic, ()), reader.batch_queue_ids.get(topic, ())
        if not plain and not batches:
            raise InvalidOption("topic", topic, "a topic with queues in this store")
        spans, missing = [], []
        for queue_id in sorted({*plain, *batches}):
            where = f"queue {queue_id}"
            queue = (reader.batch_queue if queue_id in batches else reader.queue)(topic, queue_id)
            try:
                low, high = queue.min_offset, queue.max_offset
                if question.begin_ms is not None and low < high:
                    earliest = low
                    low = reader.offset_by_time(topic, queue_id, question.begin_ms, Boundary.LOWER)
                    if low == earliest > 0:
                        missing.append(Missing(where, "older messages have expired, or may have"))
                if question.end_ms is not None and low < high:
                    high = reader.offset_by_time(topic, queue_id, question.end_ms, Boundary.LOWER)
            except ReputError as error:
                missing.append(Missing(where, str(error)))
                continue
            if low < high:
                spans.append(Span(broker, queue_id, low, high))
        return Spans(tuple(spans), (broker,), tuple(missing))

    def part(self, part: Span, question: Question) -> ScanPart:
        """Read a part of a queue; unreadable messages are reported as missing."""
        messages, missing = [], []
        is_batch = part.queue_id in self._reader.batch_queue_ids.get(question.topic, ())
        read = _of_batch_queue if is_batch else _of_queue
        for result in read(self._reader, part, question):
            if isinstance(result, Missing):
                missing.append(result)
            else:
                messages.append(in_queue(ReceivedMessage.of(result, part.broker), question.topic))
        return ScanPart(part, messages, tuple(missing))

    def query(self, topic: str, key: str, window: Window) -> Lookup:
        """Look a key up in all index files."""
        broker = self._broker()
        try:
            hits = self._reader.messages_by_key(topic, key, window.begin_ms, window.end_ms - 1)
        except CorruptRecord as error:
            return Lookup([], missing=(Missing("the index", str(error)),))
        messages = [ReceivedMessage.of(message, broker) for message in hits.messages]
        missing = tuple(
            Missing("the log", f"may have the key, and cannot be read: {problem}")
            for problem in hits.unreadable
        )
        return Lookup(messages, (broker,), missing=missing)

    def at_offset_id(self, offset_id: str) -> Lookup:
        """Read the record at the physical offset of an offset id."""
        broker = self._broker()
        try:
            place = message_id.decode_offset_id(offset_id)
            message = self._reader.message_at(place.physical_offset)
        except ValueError as error:
            raise InvalidOption("id", offset_id, f"an offset id: {error}") from error
        except NotInStore:
            return Lookup([], (broker,))
        except CorruptRecord as error:
            return Lookup([], missing=(Missing("the log", str(error)),))
        if message.store_host != place.store_host:
            return Lookup([], (broker,))
        inner = batch.unwrap_if_valid(message)
        return Lookup([ReceivedMessage.of(each, broker) for each in inner], (broker,))


def _or_unknown(read: Any) -> Any:
    try:
        return read()
    except CorruptRecord as error:
        return Unknown(str(error))


def _of_queue(
    reader: StoreReader, part: Span, question: Question
) -> Iterator[StoredMessage | Missing]:
    queue_offsets, units = reader.queue(question.topic, part.queue_id).units(part.low, part.high)
    where = f"queue {part.queue_id}"
    if len(units) < part.high - part.low:
        count = part.high - part.low - len(units)
        yield Missing(where, f"{count} queue offsets have no unit")
    codes = {java.string_hash(tag) for tag in question.tags}
    for queue_offset, unit in zip(queue_offsets.tolist(), units.tolist(), strict=True):
        physical_offset, size, tags_code = unit
        if codes and tags_code not in codes and tags_code >= 0:
            continue
        try:
            message = reader.message_at(physical_offset, size)
        except NotInStore as error:
            yield Missing(where, str(error))
        except CorruptRecord as error:
            yield Missing(where, f"queue offset {queue_offset}: {error}")
        else:
            if belongs(message, question.topic, part.queue_id, queue_offset):
                yield message
            else:
                yield Missing(where, f"the unit of queue offset {queue_offset} is wrong")


def _of_batch_queue(
    reader: StoreReader, part: Span, question: Question
) -> Iterator[StoredMessage | Missing]:
    queue_offset = part.low
    while queue_offset < part.high:
        try:
            outer = reader.message_in_queue(question.topic, part.queue_id, queue_offset)
            inner = batch.unwrap(outer)
        except (CorruptRecord, NotInStore) as error:
            yield Missing(f"queue {part.queue_id}", str(error))
            queue_offset += 1
            continue
        for message in inner:
            if queue_offset <= message.queue_offset < part.high:
                yield message
        queue_offset = max(queue_offset + 1, inner[-1].queue_offset + 1)
