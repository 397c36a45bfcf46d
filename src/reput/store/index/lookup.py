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
from reput.store.kernels import hot, lookup_args as words
from reput.store.kernels.lookup_args import KeySearch, TimeSearch
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
        self._key_args = KeySearch()
        self._key_argument = hot.Address(self._key_args.address)
        self._key_args.record_size_max = config.record_bytes_max
        self._time_args = TimeSearch()
        self._time_argument = hot.Address(self._time_args.address)
        self._time_args.record_size_max = config.record_bytes_max

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
        args.steps_max = steps_max()
        args.buffer = hot.address_of(self._buffer)
        args.is_tags = is_tags
        args.begin_ms = _bounded(begin_ms)
        args.end_ms = _bounded(end_ms)
        args.count_max = max_count
        args.buffer_room = min(bytes_max, _BUFFER_BYTES)
        count = self._search(
            lambda: hot.find_by_key(
                *(self._argument, self._key_argument),
                *(topic_text, len(topic_text), key_text, len(key_text)),
            ),
            args,
        )
        if count < 0:
            return None
        records = []
        address = args.buffer
        for match in args.matches[:count]:
            records.append(hot.bytes_at(address, match.size))
            address += match.size
        return records, bool(args.is_truncated)

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
        args.queue_row = queue.address
        if queue.files and low < queue.row.tail_offset:
            self._queues.map_for_kernels(queue, queue.files[start])
        args.low = low
        args.high = high
        args.time_ms = _bounded(timestamp_ms)
        args.is_upper = is_upper
        queue_offset = self._search(
            lambda: hot.find_by_time(self._argument, self._time_argument),
            args,
        )
        return queue_offset if queue_offset >= 0 else None

    def _search(self, search: Callable[[], int], args: KeySearch | TimeSearch) -> int:
        """Return the result of a kernel; map the log files that it needs. Negative: falls back."""
        self._block.readable = self._commit_log.readable_offset
        result = search()
        for _ in range(FILES_MAX):
            if result != words.IS_UNMAPPED:
                break
            self._commit_log.map_file(args.unmapped)
            result = search()
        return result


def _bounded(time_ms: int) -> int:
    return max(min(time_ms, words.TIME_MAX_MS), -words.TIME_MAX_MS)


def steps_max() -> int:
    """Return the index entries of one call; slices count a record as more of them."""
    return min(_STEPS_MAX, limits.INDEX_STEPS.maximum // 8)
