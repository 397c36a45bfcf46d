"""Fast path of sends and pulls, straight from the bytes of a connection.

One call of a kernel stores all sends, or answers all pulls, that a buffer begins with, and writes
their replies. Where it stops for a missing queue, file or room, that is provided as for any put
(``putting``). A frame that it does not handle falls back to the caller. The pulls that it answers:
``pull_subscriptions``.
"""

from typing import NamedTuple

import numpy as np

from reput.broker.kernels import hot as kernels, send_rules
from reput.errors import WriteFailed
from reput.format.message import Host
from reput.store.kernels import control_block as state, hot
from reput.store.message_store import MessageStore
from reput.store.writing.flush import PendingPut
from reput.store.writing.incoming import Refused

_REPLIES_BYTES = 512 * 1024
_SCRATCH_BYTES = 512 * 1024
_NOTES = 2048
_NOTES_AFTER_STOP = 8
"""Maximum of frames in a round after the kernel has stopped for something: the records after the
one that it stopped for are made again, and there may be a stop for each of them.
"""
_STOPS_MAX = 32
"""Maximum of queues, files and such that one call provides: each takes 0.1 ms or more."""
_DELAY_MS_MAX = 1 << 40
"""Maximum delay, 34 years. Longer ones fall back, whatever the configuration allows."""
_DONE = frozenset({state.STOP_DONE, state.STOP_FRAME, state.STOP_REPLIES, state.STOP_LENGTH})


class Received(NamedTuple):
    """Result of ``SendIngest.receive``."""

    position: int
    """Position after the last frame that was handled."""
    send_count: int
    """Number of sends that were stored."""
    pull_count: int
    """Number of pulls that were answered; 0 if there are sends."""
    replies: bytes
    """Replies, concatenated."""
    has_frame: bool
    """Whether the frame at ``position`` falls back to the caller. It may be invalid."""
    code: int
    """Request code of that frame, a hint; 0 if it was not found."""
    has_more: bool
    """Whether the kernel can handle more of the buffer; call again."""
    pending: PendingPut | None = None
    """The pending put that replies to sends wait for; None if they need not wait."""


class SendIngest:
    """Stores sends and answers pulls with a kernel.

    Args:
        store: The store, which provides files, rows and room.
    """

    def __init__(self, store: MessageStore) -> None:
        self._argument = store.hot_state.argument
        self._block = store.hot_state.block
        self._store = store
        self._putter = store.putter
        self._is_open = False
        self._takes_sends = False

    def open(
        self, store_host: Host, suffix: bytes, broker_name: bytes, *, takes_sends: bool = True
    ) -> None:
        """Prepare for ``receive``. Without compiled kernels everything falls back.

        Args:
            store_host: The host in message ids; sends are stored only if it is IPv4.
            suffix: Whole pairs that are added to the properties of each message.
            broker_name: The broker name in recall handles, in UTF-8.
            takes_sends: Whether sends may be stored.
        """
        block, config = self._block, self._store.config
        self._replies = np.empty(_REPLIES_BYTES, np.uint8)
        self._scratch = np.empty(_SCRATCH_BYTES, np.uint8)
        self._notes = np.zeros(_NOTES * send_rules.NOTE_BYTES // 8, np.int64)
        self._suffix = np.frombuffer(suffix + b"\0", np.uint8)
        self._broker_name = np.frombuffer(broker_name + b"\0", np.uint8)
        block.replies_address = hot.address_of(self._replies)
        block.replies_room = len(self._replies)
        block.scratch_address = hot.address_of(self._scratch)
        block.scratch_room = len(self._scratch)
        block.notes = hot.address_of(self._notes)
        block.notes_room = _NOTES
        block.suffix_address = hot.address_of(self._suffix)
        block.suffix_size = len(suffix)
        block.broker_name = hot.address_of(self._broker_name)
        block.broker_name_size = len(broker_name)
        block.timer_precision_ms = config.timer_precision_ms
        block.timer_delay_ms_max = min(config.timer_max_delay_sec * 1000, _DELAY_MS_MAX)
        block.body_bytes_max = config.max_message_size
        block.record_bytes_max = config.record_bytes_max
        self._is_open = kernels.is_compiled
        self._takes_sends = takes_sends and not store_host.is_v6
        if self._takes_sends:
            block.store_address = int.from_bytes(store_host.address, "big")
            block.store_port = store_host.port

    def receive(
        self,
        address: int,
        position: int,
        end: int,
        born_host: Host,
        *,
        takes_pulls: bool = True,
        takes_sends: bool = True,
    ) -> Received:
        """Handle the sends, or the pulls, that a buffer begins with, up to the first other frame.

        Args:
            address: The address of the buffer, which must not move during the call.
            position: The position of the first frame.
            end: The end of the bytes; the last frame may be incomplete.
            born_host: The connection's other side.
            takes_pulls: Whether pulls may be answered.
            takes_sends: Whether sends may be stored.
        """
        if not self._is_open:
            return Received(position, 0, 0, b"", has_frame=True, code=0, has_more=False)
        block = self._block
        is_v4 = len(born_host.address) == 4
        takes_sends = takes_sends and self._takes_sends and is_v4 and self._can_put()
        block.receive_is_on = takes_sends
        block.deliver_is_on = takes_pulls
        block.readable = self._store.log.readable_offset
        block.receive_address = address
        block.receive_position = position
        block.receive_end = end
        block.replies_bytes = 0
        if takes_sends:
            block.born_address = int.from_bytes(born_host.address, "big")
            block.born_port = born_host.port
        count = stop_count = 0
        block.notes_room = _NOTES
        now_ms = block.input_time = self._putter.begin()
        try:
            while True:
                count += kernels.receive(self._argument)
                stop = block.stop
                if stop in _DONE or not self._provide(stop, now_ms):
                    break
                stop_count += 1
                if stop_count == _STOPS_MAX:
                    stop = state.STOP_REPLIES
                    break
                block.notes_room = _NOTES_AFTER_STOP
        finally:
            self._putter.end()
        pull_count = block.deliver_count
        replies = b""
        if count or pull_count:
            replies = hot.bytes_at(block.replies_address, block.replies_bytes)
        return Received(
            block.receive_position,
            count,
            pull_count,
            replies,
            has_frame=stop not in (state.STOP_DONE, state.STOP_REPLIES),
            code=block.frame_code if stop == state.STOP_FRAME else 0,
            has_more=stop == state.STOP_REPLIES,
            pending=self._store.begin_wait() if count else None,
        )

    def _can_put(self) -> bool:
        return not self._putter.refusal and not self._store.lacks_replicas

    def _provide(self, stop: int, now_ms: int) -> bool:
        """Provide what a record lacks; return whether that succeeded.

        If not, the frame falls back to the caller, whose put then fails with the reason.
        """
        address = self._block.scratch_address + self._block.input_position
        try:
            return self._putter.provide(stop, hot.bytes_of_record(address), now_ms)
        except (Refused, WriteFailed):
            return False
