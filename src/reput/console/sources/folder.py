"""Store folders of ``console.toml``: their messages for searches, and what their files say.

Files are read in a thread, one read of a store at a time: a reader caches what it has seen. It is
kept for a while, so that a search that continues does not look for the end of the log again.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from reput.client.message import ReceivedMessage
from reput.clock import Clock
from reput.console.scan import Lookup, ScanPart, Spans
from reput.console.search import Missing, Question, Span, Window, in_queue
from reput.console.settings import StorePlace
from reput.errors import CorruptRecord, InvalidOption, NotInStore, ReputError
from reput.format import batch, java, message_id
from reput.format.message import StoredMessage
from reput.store.reader import Boundary, StoreReader, belongs

KEEP_MS = 30_000
"""Time for which a reader of a store is used again."""

_T = TypeVar("_T")


@dataclass
class _Kept:
    reader: StoreReader
    opened_ms: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class UnknownStore(InvalidOption):
    """A store that the configuration does not have."""


class StoreFolders:
    """The stores of the configuration; only these are read.

    Args:
        places: The stores, by name.
        clock: The time.
    """

    def __init__(self, places: Mapping[str, StorePlace], clock: Clock) -> None:
        self.places = places
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._facts: dict[tuple[str, str], tuple[int, asyncio.Task[Any]]] = {}
        """Reads of facts and their begins, by store and function."""

    def check(self, name: str) -> StorePlace:
        """Return a store of the configuration. Raises ``UnknownStore``."""
        place = self.places.get(name)
        if place is None:
            allowed = ", ".join(sorted(self.places)) or "none: console.toml has no stores"
            raise UnknownStore("store", name, allowed)
        return place

    async def read(self, name: str, read: Callable[[StoreReader], _T]) -> _T:
        """Call a function with the reader of a store, in a thread.

        Raises:
            UnknownStore: There is no such store in the configuration.
            StoreUnavailable: The folder is no store, or is in use.
        """
        kept = await self._kept_reader(name)
        async with kept.lock:
            return await asyncio.to_thread(read, kept.reader)

    def facts(self, name: str, read: Callable[[StoreReader], _T]) -> asyncio.Task[_T]:
        """Return the task that reads facts of a store; the same one while its reader is kept.

        Raises:
            UnknownStore: There is no such store in the configuration.
        """
        self.check(name)
        now_ms = self._clock.monotonic_ms()
        key = (name, read.__qualname__)
        begun = self._facts.get(key)
        if begun is None or (begun[1].done() and now_ms - begun[0] >= KEEP_MS):
            begun = self._facts[key] = (now_ms, asyncio.create_task(self.read(name, read)))
        return begun[1]

    async def _kept_reader(self, name: str) -> _Kept:
        place = self.check(name)
        kept = self._kept.get(name)
        now_ms = self._clock.monotonic_ms()
        if kept is None or now_ms - kept.opened_ms >= KEEP_MS:
            reader = await asyncio.to_thread(
                StoreReader.open, place.path, allow_live=place.may_be_live
            )
            kept = self._kept[name] = _Kept(reader, now_ms)
        return kept


class FolderMessages:
    """The messages of a store folder, as the source of searches.

    Args:
        folders: The stores.
        name: Name of the store.
    """

    def __init__(self, folders: StoreFolders, name: str) -> None:
        self._folders = folders
        self._name = name

    async def spans(self, question: Question) -> Spans:
        """Return the queues of a topic within the question's interval.

        Raises:
            InvalidOption: The store has no queues of the topic.
        """
        return await self._folders.read(self._name, lambda reader: _spans(reader, question))

    async def read(self, part: Span, question: Question) -> ScanPart:
        """Read the messages of a part."""
        return await self._folders.read(self._name, lambda reader: _part(reader, part, question))

    async def query(self, topic: str, key: str, window: Window, *, is_unique: bool) -> Lookup:
        """Look a key up in all index files."""
        return await self._folders.read(
            self._name, lambda reader: _query(reader, topic, key, window)
        )

    async def at_offset_id(self, offset_id: str) -> Lookup:
        """Read the record at the physical offset of an offset id."""
        return await self._folders.read(self._name, lambda reader: _at_offset_id(reader, offset_id))


def broker_of(reader: StoreReader) -> str:
    """Return the name of a store's broker; empty if the tables do not contain it."""
    try:
        return reader.broker_name()
    except CorruptRecord:
        return ""


def _spans(reader: StoreReader, question: Question) -> Spans:
    topic, broker = question.topic, broker_of(reader)
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


def _part(reader: StoreReader, part: Span, question: Question) -> ScanPart:
    """Read a part of a queue. Unreadable messages are missing, and the others are read."""
    messages, missing = [], []
    is_batch = part.queue_id in reader.batch_queue_ids.get(question.topic, ())
    read = _of_batch_queue if is_batch else _of_queue
    for result in read(reader, part, question):
        if isinstance(result, Missing):
            missing.append(result)
        else:
            messages.append(in_queue(ReceivedMessage.of(result, part.broker), question.topic))
    return ScanPart(part, messages, tuple(missing))


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


def _query(reader: StoreReader, topic: str, key: str, window: Window) -> Lookup:
    broker = broker_of(reader)
    try:
        hits = reader.messages_by_key(topic, key, window.begin_ms, window.end_ms - 1)
    except CorruptRecord as error:
        return Lookup([], missing=(Missing("the index", str(error)),))
    messages = [
        ReceivedMessage.of(inner, broker)
        for message in hits.messages
        for inner in _unwrapped(message)
    ]
    missing = tuple(
        Missing("the log", f"may have the key, and cannot be read: {problem}")
        for problem in hits.unreadable
    )
    return Lookup(messages, (broker,), False, missing)


def _unwrapped(message: StoredMessage) -> list[StoredMessage]:
    try:
        return batch.unwrap(message)
    except CorruptRecord:
        return [message]


def _at_offset_id(reader: StoreReader, offset_id: str) -> Lookup:
    broker = broker_of(reader)
    try:
        place = message_id.decode_offset_id(offset_id)
        message = reader.message_at(place.physical_offset)
    except ValueError as error:
        raise InvalidOption("id", offset_id, f"an offset id: {error}") from error
    except NotInStore:
        return Lookup([], (broker,))
    except CorruptRecord as error:
        return Lookup([], missing=(Missing("the log", str(error)),))
    if message.store_host != place.store_host:
        return Lookup([], (broker,))
    return Lookup([ReceivedMessage.of(message, broker)], (broker,))
