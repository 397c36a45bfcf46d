"""Fast path of lookups by key and by time: one call of a kernel for a whole search.

The kernels read index files, queue files and the log through mappings. What they leave (long
chains, large results, messages that are gone) falls back to ``getting``, which does the same in
slices; so does everything without compiled kernels.
"""

import bisect
from collections.abc import Callable

import numpy as np

from reput.format import cq_unit
from reput.store import limits
from reput.store.config import StoreConfig
from reput.store.hot_state import HotState
from reput.store.index.index_file import IndexFiles
from reput.store.kernels import control_block as state, hot, lookup_args as words
from reput.store.log.commit_log import CommitLog
from reput.store.queues.consume_queue import ConsumeQueue
from reput.store.queues.consume_queues import ConsumeQueues

_STEPS_MAX = 2048
"""Index entries that one call reads, in at most a few ms."""
_BUFFER_BYTES = 256 * 1024
FILES_MAX = 32
"""Log files that one search maps for kernels."""


class Lookup:
    """Searches by key and by time.

    Args:
        config: Limits.
        hot_state: State shared with kernels.
        log: The commit log.
        queues: Consume queues.
        index: Index files.
    """

    def __init__(
        self,
        config: StoreConfig,
        hot_state: HotState,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
    ) -> None:
        self._block = hot_state.block
        self._argument = hot_state.argument
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8)
        self._key_words = np.zeros(words.WORDS, np.int64)
        self._key_args = self._key_words.data
        self._key_argument = hot.Address(hot.address_of(self._key_words))
        self._key_args[words.RECORD_BYTES_MAX] = config.record_bytes_max
        self._time_words = np.zeros(words.TIME_WORDS, np.int64)
        self._time_args = self._time_words.data
        self._time_argument = hot.Address(hot.address_of(self._time_words))
        self._time_args[words.TIME_RECORD_BYTES_MAX] = config.record_bytes_max

    def by_key(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        is_tags: bool,
        bytes_max: int,
    ) -> tuple[list[bytes], bool] | None:
        """Return the newest records of a topic with a key, and whether there are more.

        Returns:
            None if the search falls back.
        """
        if not hot.is_compiled or not key or not 0 < max_count <= words.RECORDS_MAX:
            return None
        try:
            topic_text, key_text = topic.encode(), key.encode()
        except UnicodeEncodeError:
            return None
        self._index.publish_rows()
        args = self._key_args
        args[words.STEPS_MAX] = steps_max()
        args[words.BUFFER] = hot.address_of(self._buffer)
        args[words.IS_TAGS] = is_tags
        args[words.BEGIN_MS] = _bounded(begin_ms)
        args[words.END_MS] = _bounded(end_ms)
        args[words.COUNT_MAX] = max_count
        args[words.BUFFER_ROOM] = min(bytes_max, _BUFFER_BYTES)
        count = self._search(
            lambda: hot.find_by_key(
                *(self._argument, self._key_argument),
                *(topic_text, len(topic_text), key_text, len(key_text)),
            ),
            args,
            words.UNMAPPED,
        )
        if count < 0:
            return None
        records = []
        address = args[words.BUFFER]
        for place in range(words.PLACES + 2, words.PLACES + 3 * count, 3):
            records.append(hot.bytes_at(address, args[place]))
            address += args[place]
        return records, bool(args[words.IS_TRUNCATED])

    def by_time(
        self,
        queue: ConsumeQueue,
        timestamp_ms: int,
        time_in: Callable[[ConsumeQueue, int], int],
        *,
        is_upper: bool,
    ) -> int | None:
        """Return the queue offset of the first message at a time or later.

        Args:
            queue: The queue.
            timestamp_ms: The time.
            time_in: Returns the store time of a message of the queue.
            is_upper: Return the offset after all messages of that time.

        Returns:
            The end of the queue if all messages are older; None if the search falls back.
        """
        low, high = queue.min_offset, queue.max_offset
        if low >= high:
            return low
        if not hot.is_compiled:
            return None
        start = 0
        if len(queue.files) > 1:
            starts = [file // cq_unit.SIZE for file in queue.files]
            inner = [first for first in starts if low < first < high]
            search = bisect.bisect_right if is_upper else bisect.bisect_left
            number = search(inner, timestamp_ms, key=lambda first: time_in(queue, first))
            bounds = [low, *inner, high]
            low, high = bounds[number], bounds[number + 1]
            start = max(number for number, first in enumerate(starts) if first <= low or not number)
        args = self._time_args
        args[words.QUEUE_ROW] = queue.address
        if queue.files and low < queue.row[state.QUEUE_TAIL_OFFSET]:
            self._queues.map_for_kernels(queue, queue.files[start])
        args[words.LOW] = low
        args[words.HIGH] = high
        args[words.TIME_MS] = _bounded(timestamp_ms)
        args[words.IS_UPPER] = is_upper
        queue_offset = self._search(
            lambda: hot.find_by_time(self._argument, self._time_argument),
            args,
            words.TIME_UNMAPPED,
        )
        return queue_offset if queue_offset >= 0 else None

    def _search(self, search: Callable[[], int], args: memoryview, unmapped: int) -> int:
        """Return the result of a kernel; map the log files that it needs. Negative: falls back."""
        self._block[state.READABLE] = self._commit_log.readable_offset
        result = search()
        for _ in range(FILES_MAX):
            if result != words.IS_UNMAPPED:
                break
            self._commit_log.map_file(args[unmapped])
            result = search()
        return result


def _bounded(time_ms: int) -> int:
    return max(min(time_ms, words.TIME_MAX_MS), -words.TIME_MAX_MS)


def steps_max() -> int:
    """Return the index entries of one call; slices count a record as more of them."""
    return min(_STEPS_MAX, limits.INDEX_STEPS.maximum // 8)
