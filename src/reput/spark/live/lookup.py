"""Lookups by key in the index of a running broker: which queue offsets have a message with a key.

    [start .................. first unindexed) [first unindexed ....... end)
       queue offsets from QUERY_MESSAGE           pulled and filtered

A reply contains the physical offset before which everything is indexed; the part of a queue
after it is pulled as without an index. A lookup is complete, or refused: messages are requested
by windows of time (``reput.client.core.key_search``), an index may have more messages of a key in
a second than a broker returns, and it may begin later than its log.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from reput.client.core.key_search import KeyWindows
from reput.errors import ReputError
from reput.format import message as record, names
from reput.format.bodies import MessageQueue
from reput.format.message import StoredMessage
from reput.spark.live.calls import RetryingClient, all_of, frames, queue_name

MESSAGES_MAX: Final = 4096
"""Maximum number of messages of a key in a topic of a broker."""
LOOKUPS_MAX: Final = 20_000
"""Maximum number of lookups of a read: keys by topics and brokers."""
_ANYWHERE = 1 << 62
_REPLIES_IN_FLIGHT = 8
"""Number of replies in flight, of which each has up to 64 whole messages."""
_INSTEAD = "scan=consumequeue reads all messages instead"

Spans = Mapping[MessageQueue, tuple[int, int]]
"""Start and stop of the queue offsets of each queue."""


class LookupRefused(ReputError):
    """The index of a broker cannot answer completely."""


class KeyLookup:
    """Finds the queue offsets of messages with one of some keys.

    Args:
        client: Client for requests.
        keys: The keys.
        is_unique: They are unique keys.
    """

    def __init__(self, client: RetryingClient, keys: Iterable[str], *, is_unique: bool) -> None:
        self._client = client
        self._keys = sorted(keys)
        self._is_unique = is_unique

    async def ranges(self, spans: Spans) -> list[tuple[MessageQueue, int, int]]:
        """Return the queue offsets to pull, of all that may have such messages.

        Args:
            spans: Selected part of each queue.

        Raises:
            LookupRefused: There are too many messages or lookups, or an index began later than
                the messages.
            ReadFailed: A broker does not reply, or refuses.
        """
        one_of_topic = {(queue.broker_name, queue.topic): queue for queue in spans}
        lookups = [(queue, key) for queue in one_of_topic.values() for key in self._keys]
        if len(lookups) > LOOKUPS_MAX:
            raise LookupRefused(
                f"{len(self._keys)} keys in {len(one_of_topic)} topics of brokers are "
                f"{len(lookups)} lookups, at most {LOOKUPS_MAX} are allowed: select topics, or "
                f"{_INSTEAD}"
            )
        replies = await all_of((self._find(*lookup) for lookup in lookups), _REPLIES_IN_FLIGHT)
        offsets: dict[MessageQueue, set[int]] = {queue: set() for queue in spans}
        indexed_to: dict[str, int] = {}
        for (queue, _), (of_key, last) in zip(lookups, replies, strict=True):
            known = indexed_to.setdefault(queue.broker_name, last)
            indexed_to[queue.broker_name] = min(known, last)
            for place in of_key:
                if place in spans:
                    offsets[place] |= of_key[place]
        for broker, last in indexed_to.items():
            mine = {queue: span for queue, span in spans.items() if queue.broker_name == broker}
            await self._check_start(mine, last)
        cuts = await all_of(
            (
                self._first_unindexed(queue, *span, indexed_to[queue.broker_name])
                for queue, span in spans.items()
            ),
            _REPLIES_IN_FLIGHT,
        )
        ranges = []
        for (queue, (start, stop)), cut in zip(spans.items(), cuts, strict=True):
            named = {number for number in offsets[queue] if start <= number < cut}
            ranges += [(queue, *run) for run in [*_runs(named), (cut, stop)] if run[0] < run[1]]
        return ranges

    async def _find(
        self, queue: MessageQueue, key: str
    ) -> tuple[dict[MessageQueue, set[int]], int]:
        """Return the queue offsets of a key in a topic of a broker, and the end of the index.

        The end is the physical offset before which every message is indexed.
        """
        by_offset: dict[int, StoredMessage] = {}
        indexed_to = _ANYWHERE
        windows = KeyWindows()
        where = f"topic {queue.topic!r} of broker {queue.broker_name}"
        while (window := windows.next) is not None:
            page = await self._client.query(queue, key, window, is_unique=self._is_unique)
            indexed_to = min(indexed_to, page.indexed_to)
            messages = _messages(page.records)
            by_offset |= {message.physical_offset: message for message in messages}
            if windows.answer(page.oldest_ms) and page.is_full:
                raise LookupRefused(
                    f"key {key!r} has more messages stored at {window.begin_ms} to "
                    f"{window.end_ms - 1} ms in {where} than it returns: {_INSTEAD}"
                )
            if len(by_offset) > MESSAGES_MAX:
                raise LookupRefused(
                    f"key {key!r} has more than {MESSAGES_MAX} messages in {where}, too many for "
                    f"lookups: {_INSTEAD}"
                )
        offsets: dict[MessageQueue, set[int]] = {}
        for message in by_offset.values():
            if message.topic == queue.topic:  # another key has the same hash
                place = MessageQueue(
                    topic=queue.topic, broker_name=queue.broker_name, queue_id=message.queue_id
                )
                offsets.setdefault(place, set()).add(message.queue_offset)
        return offsets, indexed_to

    async def _check_start(self, spans: Spans, indexed_to: int) -> None:
        """Refuse an index that lacks the first of the messages."""
        queues = [
            queue
            for queue, span in spans.items()
            if span[0] < span[1] and not names.is_system_topic(queue.topic)
        ]
        firsts = await all_of(
            (self._client.first_message(queue, spans[queue][0]) for queue in queues),
            _REPLIES_IN_FLIGHT,
        )
        known = [
            (message.physical_offset, queue, message)
            for queue, message in zip(queues, firsts, strict=True)
            if message is not None and message.unique_key and message.physical_offset < indexed_to
        ]
        if not known:
            return
        physical_offset, queue, message = min(known, key=lambda item: item[0])
        assert message.unique_key is not None
        page = await self._client.query(queue, message.unique_key, is_unique=True)
        if physical_offset not in {each.physical_offset for each in _messages(page.records)}:
            raise LookupRefused(
                f"the index of broker {queue.broker_name} lacks the message at queue offset "
                f"{message.queue_offset} of {queue_name(queue)}: it began later; {_INSTEAD}"
            )

    async def _first_unindexed(
        self, queue: MessageQueue, start: int, stop: int, indexed_to: int
    ) -> int:
        """Return the first queue offset whose message is after the index; ``stop`` without one.

        Usually the last message is indexed: the search begins there, in growing steps.
        """
        low, high, step = start, stop, 1
        while low < high:
            place = max(low, high - step) if step else (low + high) // 2
            message = await self._client.first_message(queue, place)
            if message is None or message.physical_offset >= indexed_to:
                high, step = place, step * 2
            else:
                low, step = place + 1, 0
        return high


def _messages(records: bytes) -> list[StoredMessage]:
    return [record.decode(records, position, check_crc=False) for position in frames(records)]


def _runs(offsets: set[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges of successive ones, ends excluded."""
    ordered = sorted(offsets)
    cuts = [i + 1 for i, (a, b) in enumerate(pairwise(ordered)) if b - a > 1]
    bounds = [0, *cuts, len(ordered)] if ordered else []
    return [(ordered[a], ordered[b - 1] + 1) for a, b in pairwise(bounds)]
