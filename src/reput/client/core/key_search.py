"""Searches by key in the indexes of brokers: what to ask, and what a reply means. Pure.

    KeyWindows.next -> KeyQuery.request -> reply -> KeyQuery.page -> KeyWindows.answer

A broker returns the newest messages of the requested time, 64 at most, and Java's brokers do not
report that there are more. A search is complete because it asks for windows of time, and splits
each window whose page is full. It ends at the resolution of the index: more messages of a key in a
second than a page has cannot all be returned (``KeyPage.is_full`` of a finished window).

Brokers report the end of an index, ``KeyPage.indexed_to``, but neither its begin nor holes in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from reput.client.core import requests
from reput.client.message import ReceivedMessage, record_spans
from reput.config import JAVA_LONG_MAX
from reput.errors import CorruptRecord, broker_error
from reput.format import headers, message as record
from reput.format.codes import RequestCode, ResponseCode
from reput.format.command import Command

PAGE_COUNT = 64
"""Maximum number of records of a page, unless configured otherwise (``maxMsgsNumBatch``)."""
UNIQUE_PAGE_COUNT = 32
"""The same for unique keys (``defaultQueryMaxNum``)."""
INDEX_STEP_MS = 1_000
"""Resolution of the index, in ms: the times of its entries are rounded down to whole seconds."""
_PART_MS_MIN = INDEX_STEP_MS // 4
"""Shortest newer part of a window, in ms, that a search splits off."""


@dataclass(frozen=True, slots=True)
class Window:
    """Store times ``begin_ms <= time < end_ms``."""

    begin_ms: int
    end_ms: int

    @property
    def query(self) -> tuple[int, int]:
        """First and last time of the query, which include the rounded times of all entries."""
        return max(0, self.begin_ms - INDEX_STEP_MS), self.end_ms - 1

    def has(self, time_ms: int) -> bool:
        """Return whether a store time is in the window."""
        return self.begin_ms <= time_ms < self.end_ms


EVER = Window(0, JAVA_LONG_MAX + 1)
"""All store times."""


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Reply of a broker to a query by key."""

    records: bytes
    """Records whose key has the same hash, in the order of the log."""
    oldest_ms: int | None
    """Store time of the oldest record if the page is full, in ms; None if it has all."""
    indexed_to: int
    """Physical offset before which every message is indexed."""

    @property
    def is_full(self) -> bool:
        """True if the broker may have older messages of the window."""
        return self.oldest_ms is not None


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """A query of a broker's index for the newest messages of a topic with a key."""

    topic: str
    key: str
    window: Window = EVER
    is_unique: bool = False
    """True if it is a unique key."""
    count_max: int = PAGE_COUNT
    """Maximum number of records, at most ``PAGE_COUNT``. Brokers ignore it for unique keys."""

    def request(self) -> Command:
        """Return 12."""
        begin_ms, end_ms = self.window.query
        header = headers.QueryMessageHeader(
            topic=self.topic,
            key=self.key,
            max_num=self.count_max,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            is_unique_key=self.is_unique,
        )
        return requests.make(RequestCode.QUERY_MESSAGE, header)

    def page(self, reply: Command, address: str) -> KeyPage:
        """Return the page in the reply of the broker at an address.

        Raises:
            BrokerError: The reply is an error.
            CorruptRecord: The size of a record is impossible.
        """
        is_found = reply.code == ResponseCode.SUCCESS
        if not is_found and reply.code != ResponseCode.QUERY_NOT_FOUND:
            raise broker_error(reply.code, reply.remark, address)
        index = headers.decode(headers.QueryMessageReplyHeader, reply.ext_fields)
        # The keys of the last message may not all be there yet.
        indexed_to = index.index_last_update_phyoffset
        if not is_found:
            return KeyPage(b"", None, indexed_to)
        data = reply.body
        starts = [start for start, _ in record_spans(data)]
        full_count = UNIQUE_PAGE_COUNT if self.is_unique else self.count_max
        oldest_ms = None
        # Brokers of reput report a full page in the remark.
        if len(starts) >= full_count or reply.remark:
            view = memoryview(data)
            times = (record.store_timestamp_of(view[start:]) for start in starts)
            oldest_ms = min(times, default=self.window.begin_ms)
        return KeyPage(data, oldest_ms, indexed_to)


class KeyWindows:
    """Windows that cover an interval, without gap or overlap, newest or oldest first.

    Each answer either covers its window, or splits it. Newest first, a window is split where its
    page begins, so that two queries return up to a page of messages; oldest first in the middle.

    Args:
        interval: The whole interval.
        is_newest_first: Order of the windows.
    """

    def __init__(self, interval: Window = EVER, *, is_newest_first: bool = True) -> None:
        self._is_newest_first = is_newest_first
        self._windows = [interval]
        """Windows that are not covered; the next is the last."""

    @property
    def next(self) -> Window | None:
        """The next window to query; None if the interval is covered."""
        return self._windows[-1] if self._windows else None

    def answer(self, oldest_ms: int | None) -> bool:
        """Apply the answer for the window ``next``.

        Args:
            oldest_ms: ``KeyPage.oldest_ms``; of several brokers, the latest one.

        Returns:
            Whether the window is finished, so that its messages are used. A window at the
            resolution of the index is finished even if its page is full and messages are missing.
        """
        window = self._windows.pop()
        split_ms = None if oldest_ms is None else self._split_ms(window, oldest_ms)
        if split_ms is None:
            return True
        parts = [Window(window.begin_ms, split_ms), Window(split_ms, window.end_ms)]
        self._windows += parts if self._is_newest_first else reversed(parts)
        return False

    def _split_ms(self, window: Window, oldest_ms: int) -> int | None:
        """Return the time at which to split a window; None if its parts had the same entries."""
        begin_ms, end_ms = window.begin_ms, window.end_ms
        # A query from here on does not return the oldest record of the page: it is not full.
        full_ms = oldest_ms + INDEX_STEP_MS + 1
        is_dense = False
        if self._is_newest_first and begin_ms < full_ms:
            if full_ms <= end_ms - _PART_MS_MIN:
                return full_ms
            is_dense = True
        if end_ms - begin_ms <= INDEX_STEP_MS:
            return None
        # The oldest record may be outside of the window, where a clock or an index was wrong.
        return end_ms - INDEX_STEP_MS if is_dense else (begin_ms + end_ms) // 2

    def put_back(self, window: Window) -> None:
        """Repeat a finished window, since its messages are not used."""
        self._windows.append(window)

    def remaining(self) -> Window | None:
        """Return the interval that is not covered; None if all is."""
        if not self._windows:
            return None
        begin_ms = min(window.begin_ms for window in self._windows)
        return Window(begin_ms, max(window.end_ms for window in self._windows))


def without_collisions(messages: Iterable[ReceivedMessage], topic: str) -> list[ReceivedMessage]:
    """Return messages without those of other topics, whose keys may have the same hash.

    Damaged messages stay, so that they are reported when they are decoded.
    """
    return [message for message in messages if _may_be_of(message, topic)]


def _may_be_of(message: ReceivedMessage, topic: str) -> bool:
    try:
        return topic in (message.stored.topic, message.topic)
    except CorruptRecord:
        return True
