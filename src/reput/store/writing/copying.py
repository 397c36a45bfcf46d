"""Fast path of copies: stored records are republished from the mapped log without being decoded.

    places -> kernel: records in a scratch -> put_encoded
                 |
            falls back to the caller

The records that it copies, and how: ``reput.store.kernels.copy_records``.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from reput.format import java, message as record, names
from reput.format.kernels.rows import size_of, word_count
from reput.store.config import StoreConfig
from reput.store.hot_state import HotState
from reput.store.kernels import copy_args as words, hot
from reput.store.kernels.copy_args import Place, PlainCall, RuleWords
from reput.store.log.commit_log import CommitLog
from reput.store.queues.consume_queue_view import UnitArray
from reput.store.writing.putting import Putter

SCRATCH_BYTES = 512 * 1024
"""Size of the scratch, bytes. Larger records fall back."""

Places = npt.NDArray[np.int64]
"""Places of stored records, a row each, of ``Place``: queue offset (-1: any), physical
offset, size (0: as in the record; below 0: falls back), and the slice of ``more`` that is appended
to its properties.
"""


class CopyRule:
    """Rules by which copies differ from the stored records.

    Prepared transaction offset and body checksum are not copied; all fields that are not named are.

    Args:
        topic: Topic of the copies, in UTF-8; None: REAL_TOPIC and REAL_QID of each name topic and
            queue.
        queue_id: Queue of the copies.
        from_topic: Copy only records stored under this topic; empty: any.
        sys_flags_off: Bits of the sys flag that are cleared.
        sys_flags_on: Bits that are set, after that.
        has_prepared_offset: The prepared transaction offset is the physical offset of the stored
            record, else 0.
    """

    def __init__(
        self,
        topic: bytes | None = None,
        queue_id: int = 0,
        *,
        from_topic: bytes = b"",
        sys_flags_off: int = 0,
        sys_flags_on: int = 0,
        has_prepared_offset: bool = False,
    ) -> None:
        self.topic_bytes = len(topic or b"")
        self.is_legal = topic is None or names.is_legal_topic(
            java.decode_utf8(topic), record.TOPIC_BYTES_MAX_V1
        )
        """Whether clients may create its topic; True if it has none."""
        # Kept alive: the words have their addresses.
        self._topic = _bytes(topic or b"")
        self._from_topic = _bytes(from_topic)
        arguments = RuleWords()
        arguments.topic = 0 if topic is None else hot.address_of(self._topic)
        arguments.topic_size = self.topic_bytes
        arguments.queue_id = queue_id
        arguments.from_topic = hot.address_of(self._from_topic)
        arguments.from_topic_size = len(from_topic)
        arguments.sys_flags_off = sys_flags_off
        arguments.sys_flags_on = sys_flags_on
        arguments.has_prepared_offset = has_prepared_offset
        self.words = arguments
        """The rule as the kernel reads it."""


def _bytes(data: bytes) -> npt.NDArray[np.uint8]:
    # One byte more: an empty array has no address.
    return np.frombuffer(data + b"\0", np.uint8)


def places_of(units: UnitArray, queue_offset: int) -> Places:
    """Return the places of the records of consecutive units.

    Args:
        units: Units of a consume queue.
        queue_offset: Queue offset of the first.
    """
    places = np.zeros((len(units), word_count(Place)), np.int64)
    places[:, words.PLACE.queue_offset] = np.arange(queue_offset, queue_offset + len(units))
    places[:, words.PLACE.physical_offset] = units["physical_offset"]
    # An invalid size falls back, too; 0 would mean the size in the record.
    places[:, words.PLACE.size] = np.where(units["size"] > 0, units["size"], -1)
    return places


class Copier:
    """Copies stored records.

    Args:
        config: Limits.
        hot_state: The memory that kernels and Python share.
        log: The commit log.
        putter: Appends the copies.
    """

    def __init__(
        self, config: StoreConfig, hot_state: HotState, log: CommitLog, putter: Putter
    ) -> None:
        self._log = log
        self._putter = putter
        self._block = hot_state.block
        # The kernel makes no room for a checksum of the record itself.
        self._is_on = hot.is_compiled and not config.enabled_append_prop_crc
        self._topic_max = min(config.max_topic_length, record.TOPIC_BYTES_MAX_V1)
        # For all kernels: the calls differ in the rows that they point at, and in no word.
        self._words = PlainCall()
        self._argument = hot.Address(self._words.address)
        self._scratch = np.empty(SCRATCH_BYTES, np.uint8)  # pages are allocated as they are written
        self._sizes = np.zeros(0, np.int64)
        self._words.block = hot_state.address
        self._words.topic_size_max = self._topic_max
        self._words.record_size_max = config.record_bytes_max
        self._words.has_light_queues = config.enable_multi_dispatch
        self._words.scratch = hot.address_of(self._scratch)
        self._words.scratch_room = SCRATCH_BYTES

    def put(
        self, places: Places, rule: CopyRule, now_ms: int | None = None, *, more: bytes = b""
    ) -> tuple[int, int]:
        """Republish records in their order, up to the first that falls back or is refused.

        The copies are not durable yet.

        Args:
            places: The records.
            rule: How the copies differ.
            now_ms: Their store time; by default the clock's.
            more: Properties, as ``properties.encode`` makes them. Each copy gets the slice of them
                that is in its row.

        Returns:
            The number of copies, and the physical offset after the last one, 0 if there is none.
        """
        count = end_offset = 0
        for copied, data in self._copy_rows(hot.copy_records, 1, places, rule, more):
            stored, positions = self._putter.put_encoded(data, copied, now_ms)
            if stored:
                end_offset = positions[2 * stored - 2] + int(self._sizes[stored - 1])
                count += stored
            if stored < copied:
                break
        return count, end_offset

    def put_for_retry(self, places: Places, more: bytes) -> tuple[int, list[bytes]]:
        """Republish messages that are sent back, like ``put``: they wait for the next attempt.

        Args:
            places: The messages and their delays, a row of ``RetryPlace`` each.
            more: The pairs with topic and queue of the next attempt, which rows have slices of.

        Returns:
            The number of copies, and the topics that these messages, at least, were sent to first,
            in UTF-8.
        """
        count = 0
        origins: list[bytes] = []
        result_words = word_count(words.RetryResult)
        for copied, data in self._copy_rows(hot.copy_for_retry, result_words, places, _RETRY, more):
            results = self._sizes[: result_words * copied].reshape(copied, result_words)
            topics: dict[int, bytes] = {}
            for _, address, size in results.tolist():
                if address not in topics:
                    topics[address] = hot.bytes_at(address, size)
                origins.append(topics[address])
            stored, _ = self._putter.put_encoded(data, copied, None)
            count += stored
            if stored < copied:
                break
        return count, origins

    def decision_records(
        self, places: Places, rule: CopyRule, op: bytes, groups: bytes
    ) -> tuple[int, bytes, Places]:
        """Return the records that decide half messages: final messages and op messages.

        These are not all that the kernel can make, if the scratch is full.

        Args:
            places: The half messages and decisions, a row of ``DecisionPlace`` each.
            rule: How final messages differ from half messages.
            op: An op message without body and offsets.
            groups: Names of producer groups, which rows have slices of.

        Returns:
            The number of half messages, their records, as ``MessageStore.put_encoded`` takes them,
            and for each half message the sizes of its two records, 0 for one that does not exist.
        """
        like = _bytes(op)
        self._words.op = hot.address_of(like)
        self._words.op_size = len(op)
        result_words = word_count(words.DecisionResult)
        for copied, data in self._copy_rows(
            hot.copy_for_commit, result_words, places, rule, groups
        ):
            return copied, data, self._sizes[: result_words * copied].reshape(copied, result_words)
        return 0, b"", places[:0]

    def _copy_rows(
        self, kernel: hot.Kernel, result_words: int, places: Places, rule: CopyRule, more: bytes
    ) -> Iterator[tuple[int, bytes]]:
        """Copy records; yield the number and the bytes of the copies of each call of the kernel.

        ``result_words`` are the words that the kernel writes to ``_sizes`` for each copy.
        """
        if not (self._is_on and rule.is_legal and rule.topic_bytes <= self._topic_max):
            return
        call = self._words
        call.rule = rule.words
        texts = _bytes(more)
        call.more = hot.address_of(texts)
        rows = self._prepare(places, result_words)
        count = 0
        while count < len(rows):
            call.places = hot.address_of(rows) + rows.strides[0] * count
            call.place_count = len(rows) - count
            copied = self._call(kernel)
            if copied:
                yield copied, hot.bytes_at(call.scratch, call.result_size)
                count += copied
            if not self._can_continue(copied):
                break

    def timer_properties(self, places: Places) -> npt.NDArray[np.int64]:
        """Return the timer properties of messages that wait, a row of ``TimerProperties`` each."""
        if not hot.is_compiled:
            unread = np.zeros((len(places), _TIMER_WORDS), np.int64)
            unread[:, words.TIMER.out_ms] = -1  # falls back to the processor
            return unread
        call = self._words
        rows = self._prepare(places, _TIMER_WORDS)
        count = 0
        while count < len(rows):
            call.places = hot.address_of(rows) + _PLACE_BYTES * count
            call.place_count = len(rows) - count
            call.results = hot.address_of(self._sizes) + _TIMER_BYTES * count
            count += self._call(hot.copy_timers)
            if count < len(rows):
                self._log.map_file(call.stop_offset)
        results = self._sizes[: _TIMER_WORDS * count]
        return results.reshape(count, _TIMER_WORDS).copy()

    def _prepare(self, places: Places, words_each: int) -> Places:
        """Make room for the results of a call; return its places as the kernels read them."""
        if len(self._sizes) < words_each * len(places):
            self._sizes = np.zeros(words_each * len(places), np.int64)
        self._words.results = hot.address_of(self._sizes)
        return np.ascontiguousarray(places, np.int64)

    def _call(self, kernel: hot.Kernel) -> int:
        self._block.readable = self._log.readable_offset
        return kernel(self._argument)

    def _can_continue(self, copied: int) -> bool:
        """Provide what the kernel stopped for; return whether it can continue."""
        stop = self._words.stop
        if stop == words.STOP_UNMAPPED:
            self._log.map_file(self._words.stop_offset)
            return True
        return stop == words.STOP_ROOM and copied > 0


_PLACE_BYTES = size_of(Place)
_RETRY = CopyRule(names.SCHEDULE_TOPIC.encode())
_TIMER_WORDS = word_count(words.TimerProperties)
_TIMER_BYTES = size_of(words.TimerProperties)
