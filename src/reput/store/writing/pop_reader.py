"""Fast path of pops: reads messages of a queue and puts their checkpoint, in one call of a kernel.

    unit -> record -> result
              |
         checkpoint -> log

The pops that it handles: ``reput.store.kernels.pop``. Other pops fall back to the caller, which
uses ``getting`` and ``putting``: both ways return and store the same.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reput.format import java, message as record, names, pop_codec
from reput.format.kernels.rows import WORD_BYTES, columns_of, word_count
from reput.format.message import Host
from reput.store.hot_state import HotState
from reput.store.kernels import hot, pop_args as words
from reput.store.kernels.pop_args import PopCall
from reput.store.log.commit_log import CommitLog
from reput.store.queues.consume_queues import ConsumeQueues
from reput.store.writing import incoming
from reput.store.writing.incoming import IncomingMessage
from reput.store.writing.putting import Putter

# Once a pop, all at once: sixteen attributes take three times as long.
_NUMBERS = columns_of(PopCall)
_CALL = struct.Struct(f"={_NUMBERS.store_ms - _NUMBERS.queue_row + 1}q")
"""Arguments of a call, from ``queue_row`` on."""
_CALL_AT = WORD_BYTES * _NUMBERS.queue_row
_RESULT = struct.Struct(f"={word_count(PopCall) - _NUMBERS.result_size}q")
"""Results of a call, from ``result_size`` on."""
_RESULT_AT = WORD_BYTES * _NUMBERS.result_size
_BUFFER_BYTES = 512 * 1024
"""Maximum size of the records of a pop, bytes. Longer ones fall back."""
_KNOWN_MAX = 4096
_CODES_MAX = 256
"""Maximum of tags: thousands of longer lists, which are cached, would take gigabytes."""


class PopBatch(NamedTuple):
    """Messages that were popped."""

    message_count: int
    data: bytes
    """Records of the popped messages, concatenated."""
    next_offset: int
    """Queue offset after the last message that was read."""
    max_offset: int
    """Queue offset after the last message of the queue."""
    queue_offsets: Sequence[int]
    """Queue offsets of the messages; a range if they are consecutive."""
    info: str
    """``pop_codec.message_info`` of the messages."""
    revive_offset: int
    """Queue offset of the checkpoint."""
    end_offset: int
    """Physical offset after the checkpoint."""


class _Texts:
    """The part of a checkpoint's JSON that is the same for a group and a topic."""

    def __init__(self, broker_name: str, group: str, topic: str) -> None:
        ends = pop_codec.checkpoint_ends(broker_name, group, topic)
        self._arrays = [np.frombuffer(text, np.uint8) for text in ends]
        first, last = self._arrays
        self.arguments = hot.address_of(first), len(first), hot.address_of(last), len(last)
        """Arguments ``first`` to ``last_size``."""


class _Codes:
    """Wanted tags codes."""

    def __init__(self, tags_codes: tuple[int, ...]) -> None:
        self._array = np.sort(np.array(tags_codes, np.int64))
        self.arguments = hot.address_of(self._array), len(tags_codes)
        """Arguments ``codes`` and ``code_count``."""


_UNKNOWN = _Texts("", "", "")


class PopReader:
    """Reads messages for pops.

    Args:
        hot_state: The memory that kernels and Python share.
        log: The commit log.
        queues: The consume queues.
        putter: Appends checkpoints.
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
        """Topic and group -> the texts of their checkpoints; None: their pops fall back."""
        self._codes: dict[tuple[int, ...], _Codes] = {}
        self._is_open = False
        self._words = PopCall()
        self._argument = hot.Address(self._words.address)
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8)  # pages are allocated as they are written
        self._buffer_address = hot.address_of(self._buffer)
        self._scratch = np.zeros(words.SCRATCH_BYTES, np.uint8)
        self._offsets = np.zeros(words.MESSAGES_MAX, np.int64)
        self._offset_words = self._offsets.data
        self._info = np.zeros(words.INFO_BYTES, np.uint8)
        self._info_view = self._info.data
        self._words.block = hot_state.address
        self._words.buffer = self._buffer_address
        self._words.buffer_room = _BUFFER_BYTES
        self._words.scratch = hot.address_of(self._scratch)
        self._words.offsets = hot.address_of(self._offsets)
        self._words.info = hot.address_of(self._info)

    def open(self, *, broker_name: str, topic: str, marks: bytes, host: Host) -> None:
        """Prepare for ``pop``; without it all pops fall back.

        They do so as well if host, topic or marks do not fit the checkpoints of the kernel.

        Args:
            broker_name: The broker name in checkpoints.
            topic: The topic of checkpoints.
            marks: Their properties, without the last value, the time of the pop, and its separator.
            host: Their born host and store host.
        """
        name = java.encode_utf8(topic)
        self._is_open = (
            hot.is_compiled
            and len(host.address) == record.HOST_V4_BYTES - record.PORT.size
            and 0 < len(name) <= record.TOPIC_BYTES_MAX_V1
            and len(marks) <= words.PROPERTIES_BYTES_MAX
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
        call.head = hot.address_of(self._head)
        call.topic = hot.address_of(self._topic)
        call.topic_size = len(self._topic)
        call.properties = hot.address_of(self._marks)
        call.properties_size = len(marks)

    def pop(
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
    ) -> PopBatch | None:
        """Pop messages, and put their checkpoint, which is not durable yet.

        Args:
            topic: The topic.
            group: The consumer group.
            queue_id: The queue.
            queue_offset: Queue offset of the first message, and of the checkpoint.
            count_max: Maximum of messages; the configuration's limits hold as well.
            tags_codes: Hashes of the wanted tags; empty: all messages.
            pop_ms: The time of the pop.
            invisible_ms: How long the messages are invisible to others.
            revive_queue_id: The queue of the checkpoint.

        Returns:
            None if the pop falls back; then nothing was done.
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
        codes = self._codes.get(tags_codes) or self._make_codes(tags_codes)
        self._block.readable = self._log.readable_offset
        store_ms = self._putter.begin(pop_ms)
        try:
            _CALL.pack_into(
                self._words, _CALL_AT, queue.address, queue_offset, count_max, *codes.arguments,
                *texts.arguments, queue_id, pop_ms, invisible_ms, revive_queue_id, store_ms,
            )  # fmt: skip
            count = hot.pop_batch(self._argument)
        except struct.error:  # a number that does not fit a word
            return None
        finally:
            self._putter.end()
        if not count:
            return None
        size, next_offset, info_size, place, revive_offset, record_size = _RESULT.unpack_from(
            self._words, _RESULT_AT
        )
        queue_offsets: Sequence[int] = range(queue_offset, next_offset)
        if len(queue_offsets) != count:  # some messages that were read are not wanted
            queue_offsets = self._offset_words[:count].tolist()
        return PopBatch(
            count,
            hot.bytes_at(self._buffer_address, size),
            next_offset,
            queue.row.max_offset,
            queue_offsets,
            str(self._info_view[:info_size], "ascii"),
            revive_offset,
            place + record_size,
        )

    def _make_texts(self, topic: str, group: str) -> _Texts | None:
        if len(self._texts) >= _KNOWN_MAX:
            self._texts.clear()
        is_fast = not names.is_retry_topic(topic) and not names.is_light(topic)
        texts = _Texts(self._broker_name, group, topic) if is_fast else None
        self._texts[topic, group] = texts
        return texts

    def _make_codes(self, tags_codes: tuple[int, ...]) -> _Codes:
        if len(self._codes) >= _KNOWN_MAX:
            self._codes.clear()
        codes = self._codes[tags_codes] = _Codes(tags_codes)
        return codes
