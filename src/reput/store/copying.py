"""Stored records put again: made anew from the mapped log and appended, without Python in between.

    places -> kernel: records in a scratch -> put_encoded
                 |
           not common: the caller's

What is common, and what a kernel makes of it: ``reput.store.kernels.copy_records``.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from reput.format import java, message as record, names, properties as props
from reput.store.commit_log import CommitLog
from reput.store.config import StoreConfig
from reput.store.consume_queue_view import UnitArray
from reput.store.hot_state import HotState
from reput.store.kernels import control_block as state, copy_args as words, hot
from reput.store.putting import Putter

SCRATCH_BYTES = 512 * 1024
"""Larger records are the caller's."""

Places = npt.NDArray[np.int64]
"""Where stored records stand, a row each, of ``PLACE_WORDS``: queue offset (-1: any), physical
offset, size (0: what the record says; below: the caller's), and which bytes of ``more`` are
appended to its properties."""


class CopyRule:
    """What becomes of stored records that are put again.

    Prepared transaction offset and body checksum are not taken over; all else is that is not named.

    Args:
        topic: Where they go, in UTF-8; None: each goes where its REAL_TOPIC and REAL_QID say.
        queue_id: Which queue of the topic.
        from_topic: Only what is stored under this topic; empty: any.
        sys_flags_off: Bits of the sys flag that are taken away.
        sys_flags_on: Bits that are set, after that.
        has_prepared_offset: The physical offset of what was stored becomes the prepared
            transaction offset, which is 0 otherwise.
        reconsume_more: Is added to how often the message was consumed.
        dropped: Names of properties that are left out; their pairs go, as they stand.
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
        reconsume_more: int = 0,
        dropped: Sequence[str] = (),
    ) -> None:
        self.topic_bytes = len(topic or b"")
        self.is_legal = topic is None or names.is_legal_topic(
            java.decode_utf8(topic), record.TOPIC_BYTES_MAX_V1
        )
        """Whether the topic that it gives, if any, is one that clients may make."""
        # The addresses of these are in the words.
        self._topic = _bytes(topic or b"")
        self._from_topic = _bytes(from_topic)
        self._dropped = _bytes("".join(one + props.PROPERTY_SEPARATOR for one in dropped).encode())
        found = np.zeros(words.RULE_WORDS, np.int64)
        found[words.TOPIC] = 0 if topic is None else hot.address_of(self._topic)
        found[words.TOPIC_SIZE] = self.topic_bytes
        found[words.QUEUE_ID] = queue_id
        found[words.FROM_TOPIC] = hot.address_of(self._from_topic)
        found[words.FROM_TOPIC_SIZE] = len(from_topic)
        found[words.SYS_FLAGS_OFF] = sys_flags_off
        found[words.SYS_FLAGS_ON] = sys_flags_on
        found[words.PREPARED_IS_PLACE] = has_prepared_offset
        found[words.RECONSUME_MORE] = reconsume_more
        found[words.DROPPED] = hot.address_of(self._dropped)
        found[words.DROPPED_SIZE] = sum(len(one) + 1 for one in dropped)
        self.words = found.data
        """As the kernel takes them."""


def _bytes(data: bytes) -> npt.NDArray[np.uint8]:
    # One more: an empty array has no address.
    return np.frombuffer(data + b"\0", np.uint8)


def places_of(units: UnitArray, queue_offset: int) -> Places:
    """Return where the records of units stand that follow each other in a queue.

    Args:
        units: Of a consume queue.
        queue_offset: Of the first.
    """
    places = np.zeros((len(units), words.PLACE_WORDS), np.int64)
    places[:, words.PLACE_QUEUE_OFFSET] = np.arange(queue_offset, queue_offset + len(units))
    places[:, words.PLACE_PHYSICAL_OFFSET] = units["physical_offset"]
    # What is no size is the caller's, too; 0 would be whatever the record says.
    places[:, words.PLACE_SIZE] = np.where(units["size"] > 0, units["size"], -1)
    return places


class Copier:
    """Puts stored records again.

    Args:
        config: Limits.
        hot_state: What kernels share.
        log: Where the records stand.
        putter: What appends them.
    """

    def __init__(
        self, config: StoreConfig, hot_state: HotState, log: CommitLog, putter: Putter
    ) -> None:
        self._log = log
        self._putter = putter
        self._block = hot_state.block
        # A checksum of the record itself is Python's to make room for.
        self._is_on = hot.is_compiled and not config.enabled_append_prop_crc
        self._topic_max = min(config.max_topic_length, record.TOPIC_BYTES_MAX_V1)
        self._array = np.zeros(words.WORDS, np.int64)
        self._words = self._array.data
        self._argument = hot.Address(hot.address_of(self._array))
        self._scratch = np.empty(SCRATCH_BYTES, np.uint8)  # pages come as they are written to
        self._sizes = np.zeros(0, np.int64)
        self._words[words.BLOCK] = hot_state.address
        self._words[words.TOPIC_MAX] = self._topic_max
        self._words[words.RECORD_MAX] = config.record_bytes_max
        self._words[words.HAS_LIGHT_QUEUES] = config.enable_multi_dispatch
        self._words[words.SCRATCH] = hot.address_of(self._scratch)
        self._words[words.SCRATCH_ROOM] = SCRATCH_BYTES

    def put(
        self, places: Places, rule: CopyRule, now_ms: int | None = None, *, more: bytes = b""
    ) -> tuple[int, int]:
        """Put records again, in their order, up to the first that is not common, or not taken.

        Does not wait for the disk.

        Args:
            places: Where they stand.
            rule: What becomes of them.
            now_ms: Their store time; the clock's.
            more: Properties that they get besides their own: of each those bytes that its row
                says, as ``properties.encode`` makes them.

        Returns:
            How many were put, and the physical offset behind the last one, 0 if there is none.
        """
        count = end_offset = 0
        for made, data in self._make(hot.again, 1, places, rule, more):
            stored, found = self._putter.put_encoded(data, made, now_ms)
            if stored:
                end_offset = found[2 * stored - 2] + int(self._sizes[stored - 1])
                count += stored
            if stored < made:
                break
        return count, end_offset

    def put_later(self, places: Places, more: bytes) -> tuple[int, list[bytes]]:
        """Put messages again that are sent back: they wait for the next attempt, as ``put`` does.

        Args:
            places: Where they stand, and how long they wait, a row of ``LATER_WORDS`` each.
            more: Where they go then, the pairs that rows cut out.

        Returns:
            How many were put, and the topics in UTF-8 that at least these were sent to at first.
        """
        count = 0
        origins: list[bytes] = []
        for made, data in self._make(hot.later, words.TOLD_WORDS, places, _LATER, more):
            told = self._sizes[: words.TOLD_WORDS * made].reshape(made, words.TOLD_WORDS)
            known: dict[int, bytes] = {}
            for _, at, size in told.tolist():
                if at not in known:
                    known[at] = hot.bytes_at(at, size)
                origins.append(known[at])
            stored, _ = self._putter.put_encoded(data, made, None)
            count += stored
            if stored < made:
                break
        return count, origins

    def decided(
        self, places: Places, rule: CopyRule, op: bytes, groups: bytes
    ) -> tuple[int, bytes, Places]:
        """Return what is put of half messages that their producers have decided.

        Not of all that are common, if there is no room for so much.

        Args:
            places: Where they stand, and what was decided, a row of ``DECIDED_WORDS`` each.
            rule: What becomes of those that are committed.
            op: An op message that lacks its body and its place.
            groups: Names of producer groups, which rows cut out.

        Returns:
            Of how many half messages, their records, as ``MessageStore.put_encoded`` takes them,
            and of each the sizes of its two, 0 for one that is not.
        """
        like = _bytes(op)
        self._words[words.OP] = hot.address_of(like)
        self._words[words.OP_SIZE] = len(op)
        told_words = words.DECIDED_TOLD_WORDS
        for made, data in self._make(hot.decided, told_words, places, rule, groups):
            return made, data, self._sizes[: told_words * made].reshape(made, told_words)
        return 0, b"", places[:0]

    def _make(
        self, kernel: hot.Kernel, told_words: int, places: Places, rule: CopyRule, more: bytes
    ) -> Iterator[tuple[int, bytes]]:
        """Make records; return some at a time: how many, and what they are.

        Of each of these so many words are told.
        """
        if not (self._is_on and rule.is_legal and rule.topic_bytes <= self._topic_max):
            return
        call = self._words
        call[: words.RULE_WORDS] = rule.words
        texts = _bytes(more)
        call[words.MORE] = hot.address_of(texts)
        rows = self._take(places, told_words)
        count = 0
        while count < len(rows):
            call[words.PLACES] = hot.address_of(rows) + rows.strides[0] * count
            call[words.PLACE_COUNT] = len(rows) - count
            made = self._call(kernel)
            if made:
                yield made, hot.bytes_at(call[words.SCRATCH], call[words.RESULT_BYTES])
                count += made
            if not self._goes_on(made):
                break

    def waiting(self, places: Places) -> npt.NDArray[np.int64]:
        """Return what messages that wait for the timer say, a row of ``WAITING_WORDS`` each."""
        if not hot.is_compiled:
            unread = np.zeros((len(places), words.WAITING_WORDS), np.int64)
            unread[:, words.WAITING_OUT_MS] = -1  # falls back to the processor
            return unread
        call = self._words
        rows = self._take(places, words.WAITING_WORDS)
        count = 0
        while count < len(rows):
            call[words.PLACES] = hot.address_of(rows) + _PLACE_BYTES * count
            call[words.PLACE_COUNT] = len(rows) - count
            call[words.SIZES] = hot.address_of(self._sizes) + _WAITING_BYTES * count
            count += self._call(hot.waiting)
            if count < len(rows):
                self._log.map_file(call[words.STOP_OFFSET])
        found = self._sizes[: words.WAITING_WORDS * count]
        return found.reshape(count, words.WAITING_WORDS).copy()

    def _take(self, places: Places, words_each: int) -> Places:
        """Make room for what is told of places; return them as the kernels take them."""
        if len(self._sizes) < words_each * len(places):
            self._sizes = np.zeros(words_each * len(places), np.int64)
        self._words[words.SIZES] = hot.address_of(self._sizes)
        return np.ascontiguousarray(places, np.int64)

    def _call(self, kernel: hot.Kernel) -> int:
        self._block[state.READABLE] = self._log.readable_offset
        return kernel(self._argument)

    def _goes_on(self, made: int) -> bool:
        """Provide what the kernel stopped for; return whether to call it again."""
        stop = self._words[words.STOP]
        if stop == words.STOP_UNMAPPED:
            self._log.map_file(self._words[words.STOP_OFFSET])
            return True
        return stop == words.STOP_ROOM and made > 0


_PLACE_BYTES = 8 * words.PLACE_WORDS
_LATER = CopyRule(names.SCHEDULE_TOPIC.encode())
_WAITING_BYTES = 8 * words.WAITING_WORDS
