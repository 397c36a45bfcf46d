"""Taking: messages of a queue for a pop, and the checkpoint that says which, in one call.

    unit -> record -> what is returned
              |
         checkpoint -> log

What is common, and what the kernel makes of it: ``reput.store.kernels.pop``. The rest is the
caller's, through ``getting`` and ``putting``: both ways return and store the same.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reput.format import java, message as record, names, pop_codec
from reput.format.message import Host
from reput.store import incoming
from reput.store.commit_log import CommitLog
from reput.store.consume_queue import ConsumeQueues
from reput.store.hot_state import HotState
from reput.store.incoming import IncomingMessage
from reput.store.kernels import control_block as state, hot, pop_args as words
from reput.store.putting import Putter

_CALL = struct.Struct(f"={words.STORE_MS - words.QUEUE_ROW + 1}q")
"""The words of a call, from QUEUE_ROW on."""
_CALL_AT = 8 * words.QUEUE_ROW
_RESULT = struct.Struct(f"={words.RESULT_SIZE - words.RESULT_BYTES + 1}q")
"""What it tells, from RESULT_BYTES on."""
_RESULT_AT = 8 * words.RESULT_BYTES
_BUFFER_BYTES = 512 * 1024
"""Replies that are longer are the caller's."""
_KNOWN_MAX = 4096
_CODES_MAX = 256
"""Tags that are asked for at once: thousands of longer lists, remembered, would take gigabytes."""


class Taken(NamedTuple):
    """What was taken."""

    message_count: int
    data: bytes
    """Their records, one behind the other."""
    next_offset: int
    """Queue offset behind the last message that was looked at."""
    max_offset: int
    """Where the queue ends."""
    queue_offsets: Sequence[int]
    """Of the messages; a range, if they follow each other."""
    info: str
    """``pop_codec.message_info`` of them."""
    revive_offset: int
    """Queue offset of the checkpoint."""
    end_offset: int
    """Physical offset behind it."""


class _Texts:
    """The names that checkpoints say, of messages that a group takes of a topic."""

    def __init__(self, broker_name: str, group: str, topic: str) -> None:
        ends = pop_codec.checkpoint_ends(broker_name, group, topic)
        self._arrays = [np.frombuffer(one, np.uint8) for one in ends]
        first, last = self._arrays
        self.places = hot.address_of(first), len(first), hot.address_of(last), len(last)
        """FIRST to LAST_SIZE."""


class _Codes:
    """Tags codes that are wanted."""

    def __init__(self, tags_codes: tuple[int, ...]) -> None:
        self._array = np.sort(np.array(tags_codes, np.int64))
        self.place = hot.address_of(self._array), len(tags_codes)
        """CODES and CODE_COUNT."""


_UNKNOWN = _Texts("", "", "")


class PopReader:
    """Takes messages for pops.

    Args:
        hot_state: What kernels share.
        log: Where records are.
        queues: What is read.
        putter: Where checkpoints go.
    """

    def __init__(
        self, hot_state: HotState, log: CommitLog, queues: ConsumeQueues, putter: Putter
    ) -> None:
        self._block = hot_state.block
        self._log = log
        self._queues = queues
        self._putter = putter
        self._broker_name = ""
        self._texts: dict[tuple[str, str], _Texts | None] = {}
        """Topic and group -> what checkpoints say of them; None: theirs are not common."""
        self._codes: dict[tuple[int, ...], _Codes] = {}
        self._is_open = False
        self._array = np.zeros(words.WORDS, np.int64)
        self._words = self._array.data
        self._argument = hot.Address(hot.address_of(self._array))
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8)  # pages come as they are written to
        self._buffer_address = hot.address_of(self._buffer)
        self._scratch = np.zeros(words.SCRATCH_BYTES, np.uint8)
        self._offsets = np.zeros(words.MESSAGES_MAX, np.int64)
        self._offset_words = self._offsets.data
        self._info = np.zeros(words.INFO_BYTES, np.uint8)
        self._info_view = self._info.data
        self._words[words.BLOCK] = hot_state.address
        self._words[words.BUFFER] = self._buffer_address
        self._words[words.BUFFER_ROOM] = _BUFFER_BYTES
        self._words[words.SCRATCH] = hot.address_of(self._scratch)
        self._words[words.OFFSETS] = hot.address_of(self._offsets)
        self._words[words.INFO] = hot.address_of(self._info)

    def open(self, *, broker_name: str, topic: str, marks: bytes, host: Host) -> None:
        """Make ready; nothing is taken before, nor if its checkpoints are not common.

        Args:
            broker_name: Checkpoints say it.
            topic: Where they go.
            marks: Their properties, but for the last value and what ends it: the time of the pop.
            host: What they say of where they come from, and where they are.
        """
        name = java.encode_utf8(topic)
        self._is_open = (
            hot.is_compiled
            and len(host.address) == record.HOST_V4_BYTES - record.PORT.size
            and 0 < len(name) <= record.TOPIC_BYTES_MAX_V1
            and len(marks) <= words.MARKS_BYTES_MAX
        )
        if not self._is_open:
            return
        self._broker_name = broker_name
        self._texts.clear()
        empty = IncomingMessage("", b"", born_host=host, store_host=host)
        self._head = np.frombuffer(incoming.encode(empty, b"")[: words.HEAD_BYTES], np.uint8)
        self._topic = np.frombuffer(record.TOPIC_LENGTH_V1.pack(len(name)) + name, np.uint8)
        self._marks = np.frombuffer(marks, np.uint8)
        call = self._words
        call[words.HEAD] = hot.address_of(self._head)
        call[words.TOPIC] = hot.address_of(self._topic)
        call[words.TOPIC_SIZE] = len(self._topic)
        call[words.MARKS] = hot.address_of(self._marks)
        call[words.MARKS_SIZE] = len(marks)

    def take(
        self,
        topic: str,
        group: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        tags_codes: tuple[int, ...],
        *,
        pop_ms: int,
        invisible_ms: int,
        revive_queue_id: int,
    ) -> Taken | None:
        """Take messages, and put their checkpoint, which does not wait for the disk.

        Args:
            topic: Of the queue.
            group: Who takes them.
            queue_id: Of the queue.
            queue_offset: Of the first one; the checkpoint starts there.
            count_max: At most so many; the configuration's limits hold as well.
            tags_codes: Only messages with one of these; all, if none is given.
            pop_ms: The time.
            invisible_ms: How long the group holds them.
            revive_queue_id: Where the checkpoint goes.

        Returns:
            None if this is not common: nothing was done.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or not self._is_open or self._putter.refusal:
            return None
        texts = self._texts.get((topic, group), _UNKNOWN)
        if texts is _UNKNOWN:
            texts = self._make_texts(topic, group)
        if texts is None or (tags_codes and queue.extension is not None):
            return None
        if len(tags_codes) > _CODES_MAX:
            return None
        known = self._codes.get(tags_codes) or self._make_codes(tags_codes)
        codes = known.place
        self._block[state.READABLE] = self._log.readable_offset
        store_ms = self._putter.begin(pop_ms)
        try:
            _CALL.pack_into(
                self._words, _CALL_AT, queue.address, queue_offset, count_max, *codes,
                *texts.places, queue_id, pop_ms, invisible_ms, revive_queue_id, store_ms,
            )  # fmt: skip
            count = hot.take(self._argument)
        except struct.error:  # a number that is too large for a word
            return None
        finally:
            self._putter.end()
        if not count:
            return None
        size, next_offset, info_size, place, revive_offset, record_size = _RESULT.unpack_from(
            self._words, _RESULT_AT
        )
        queue_offsets: Sequence[int] = range(queue_offset, next_offset)
        if len(queue_offsets) != count:  # some that were looked at are not wanted
            queue_offsets = self._offset_words[:count].tolist()
        return Taken(
            count,
            hot.bytes_at(self._buffer_address, size),
            next_offset,
            queue.row[state.QUEUE_MAX_OFFSET],
            queue_offsets,
            str(self._info_view[:info_size], "ascii"),
            revive_offset,
            place + record_size,
        )

    def _make_texts(self, topic: str, group: str) -> _Texts | None:
        if len(self._texts) >= _KNOWN_MAX:
            self._texts.clear()
        is_common = not names.is_retry_topic(topic) and not names.is_light(topic)
        texts = _Texts(self._broker_name, group, topic) if is_common else None
        self._texts[topic, group] = texts
        return texts

    def _make_codes(self, tags_codes: tuple[int, ...]) -> _Codes:
        if len(self._codes) >= _KNOWN_MAX:
            self._codes.clear()
        found = self._codes[tags_codes] = _Codes(tags_codes)
        return found
