"""Fast path of lookups: messages by key and by id, offsets by time, the ends of queues.

One call of a kernel answers the lookups that follow each other in the receive buffer. What it
leaves (long chains, large results, messages that are gone) falls back to the processors.
"""

import numpy as np
import numpy.typing as npt

from reput.broker.kernels import hot as kernels, lookup_request_args as requests
from reput.broker.kernels.lookup_request_args import LookupCall
from reput.format import lookup_reply
from reput.format.kernels.rows import row_and_tail
from reput.store.index.lookup import FILES_MAX, steps_max
from reput.store.kernels import hot, lookup_args as words
from reput.store.kernels.control_block import KnownField
from reput.store.kernels.lookup_args import TimeSearch
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
        self._key_args, self._names = row_and_tail(
            LookupCall, KnownField, len(requests.FIELD_NAMES)
        )
        self._key_argument = hot.Address(self._key_args.address)
        self._key_args.record_size_max = config.record_bytes_max
        self._key_args.key_count_max = min(config.max_msgs_num_batch, words.RECORDS_MAX)
        self._time_args = TimeSearch()
        self._time_argument = hot.Address(self._time_args.address)
        self._time_args.record_size_max = config.record_bytes_max
        self._texts = self._put_texts()

    def _put_texts(self) -> list[npt.NDArray[np.uint8]]:
        """Give the kernel templates and names; return the texts, which must be kept alive."""
        args = self._key_args
        texts = [
            np.frombuffer(text, np.uint8)
            for text in (*lookup_reply.TEMPLATES, *map(str.encode, requests.FIELD_NAMES))
        ]
        templates = texts[: len(lookup_reply.TEMPLATES)]
        for template, text in zip(args.templates, templates, strict=True):
            template.start, template.size = hot.address_of(text), len(text)
        args.names.count = len(requests.FIELD_NAMES)
        for field, text in zip(self._names, texts[len(templates) :], strict=True):
            field.name, field.name_size = hot.address_of(text), len(text)
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
        args.steps_max = steps_max()
        args.key_letters_max = key_letters_max
        args.unique_count_max = unique_count_max
        block.readable = self._store.log.readable_offset
        block.receive_position = position
        block.receive_end = end
        count = 0
        for _ in range(FILES_MAX):
            args.unmapped = time_args.unmapped = -1
            count = kernels.lookups(self._argument, self._key_argument, self._time_argument)
            unmapped = max(args.unmapped, time_args.unmapped)
            if count or unmapped < 0:
                break
            self._store.log.map_file(unmapped)
        if not count:
            return 0, position, b""
        replies = hot.bytes_at(block.replies_address, block.replies_bytes)
        return count, block.receive_position, replies
