"""Fast path of lookups: messages by key and by id, offsets by time, the ends of queues.

One call of a kernel answers the lookups that follow each other in the receive buffer. What it
leaves (long chains, large results, messages that are gone) falls back to the processors.
"""

import numpy as np
import numpy.typing as npt

from reput.broker.kernels import hot as kernels, lookup_request_args as requests
from reput.broker.kernels.scan_args import FIELD_WORDS
from reput.format import lookup_reply
from reput.store.index.lookup import FILES_MAX, steps_max
from reput.store.kernels import control_block as state, hot, lookup_args as words
from reput.store.message_store import MessageStore


class FastLookups:
    """Answers lookups with a kernel.

    Args:
        store: The store.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._block = store.hot_state.block
        self._argument = store.hot_state.argument
        config = store.config
        self._key_words = np.zeros(requests.WORDS, np.int64)
        self._key_args = self._key_words.data
        self._key_argument = hot.Address(hot.address_of(self._key_words))
        self._key_args[words.RECORD_BYTES_MAX] = config.record_bytes_max
        self._key_args[requests.KEY_COUNT_MAX] = min(config.max_msgs_num_batch, words.RECORDS_MAX)
        self._time_words = np.zeros(words.TIME_WORDS, np.int64)
        self._time_args = self._time_words.data
        self._time_argument = hot.Address(hot.address_of(self._time_words))
        self._time_args[words.TIME_RECORD_BYTES_MAX] = config.record_bytes_max
        self._texts = self._put_texts()

    def _put_texts(self) -> list[npt.NDArray[np.uint8]]:
        """Give the kernel templates and names; return the texts, which must be kept alive."""
        args = self._key_args
        texts = [
            np.frombuffer(text, np.uint8)
            for text in (*lookup_reply.TEMPLATES, *map(str.encode, requests.FIELD_NAMES))
        ]
        templates = texts[: len(lookup_reply.TEMPLATES)]
        for number, text in enumerate(templates):
            place = requests.TEMPLATES + 2 * number
            args[place], args[place + 1] = hot.address_of(text), len(text)
        args[requests.NAMES] = len(requests.FIELD_NAMES)
        for number, text in enumerate(texts[len(templates) :]):
            place = requests.NAMES + 1 + FIELD_WORDS * number
            args[place], args[place + 1] = hot.address_of(text), len(text)
        return texts

    def answer(
        self, position: int, end: int, key_letters_max: int, unique_count_max: int
    ) -> tuple[int, int, bytes]:
        """Answer the lookups that follow each other in the receive buffer.

        Args:
            position: The position of the first frame.
            end: The end of the bytes; the last frame may be incomplete.
            key_letters_max: Maximum size of a topic and key.
            unique_count_max: Maximum number of messages with a unique key.

        Returns:
            The number of requests that were answered, the position of the first other frame, and
            the replies, concatenated.
        """
        block, args, time_args = self._block, self._key_args, self._time_args
        self._store.index.publish_rows()
        args[words.STEPS_MAX] = steps_max()
        args[requests.KEY_LETTERS_MAX] = key_letters_max
        args[requests.UNIQUE_COUNT_MAX] = unique_count_max
        block[state.READABLE] = self._store.log.readable_offset
        block[state.RECEIVE_POSITION] = position
        block[state.RECEIVE_END] = end
        count = 0
        for _ in range(FILES_MAX):
            args[words.UNMAPPED] = time_args[words.TIME_UNMAPPED] = -1
            count = kernels.lookups(self._argument, self._key_argument, self._time_argument)
            unmapped = max(args[words.UNMAPPED], time_args[words.TIME_UNMAPPED])
            if count or unmapped < 0:
                break
            self._store.log.map_file(unmapped)
        if not count:
            return 0, position, b""
        replies = hot.bytes_at(block[state.REPLIES_ADDRESS], block[state.REPLIES_BYTES])
        return count, block[state.RECEIVE_POSITION], replies
