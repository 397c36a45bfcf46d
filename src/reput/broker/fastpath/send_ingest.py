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
        block[state.REPLIES_ADDRESS] = hot.address_of(self._replies)
        block[state.REPLIES_ROOM] = len(self._replies)
        block[state.SCRATCH_ADDRESS] = hot.address_of(self._scratch)
        block[state.SCRATCH_ROOM] = len(self._scratch)
        block[state.NOTES_ADDRESS] = hot.address_of(self._notes)
        block[state.NOTES_ROOM] = _NOTES
        block[state.SUFFIX_ADDRESS] = hot.address_of(self._suffix)
        block[state.SUFFIX_SIZE] = len(suffix)
        block[state.BROKER_NAME] = hot.address_of(self._broker_name)
        block[state.BROKER_NAME_SIZE] = len(broker_name)
        block[state.TIMER_PRECISION_MS] = config.timer_precision_ms
        block[state.TIMER_DELAY_MS_MAX] = min(config.timer_max_delay_sec * 1000, _DELAY_MS_MAX)
        block[state.BODY_BYTES_MAX] = config.max_message_size
        block[state.RECORD_BYTES_MAX] = config.record_bytes_max
        self._is_open = kernels.is_compiled
        self._takes_sends = takes_sends and not store_host.is_v6
        if self._takes_sends:
            block[state.STORE_ADDRESS] = int.from_bytes(store_host.address, "big")
            block[state.STORE_PORT] = store_host.port

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
        block[state.RECEIVE_IS_ON] = takes_sends
        block[state.DELIVER_IS_ON] = takes_pulls
        block[state.READABLE] = self._store.log.readable_offset
        block[state.RECEIVE_ADDRESS] = address
        block[state.RECEIVE_POSITION] = position
        block[state.RECEIVE_END] = end
        block[state.REPLIES_BYTES] = 0
        if takes_sends:
            block[state.BORN_ADDRESS] = int.from_bytes(born_host.address, "big")
            block[state.BORN_PORT] = born_host.port
        count = stop_count = 0
        block[state.NOTES_ROOM] = _NOTES
        now_ms = block[state.INPUT_TIME] = self._putter.begin()
        try:
            while True:
                count += kernels.receive(self._argument)
                stop = block[state.STOP]
                if stop in _DONE or not self._provide(stop, now_ms):
                    break
                stop_count += 1
                if stop_count == _STOPS_MAX:
                    stop = state.STOP_REPLIES
                    break
                block[state.NOTES_ROOM] = _NOTES_AFTER_STOP
        finally:
            self._putter.end()
        pull_count = block[state.DELIVER_COUNT]
        replies = b""
        if count or pull_count:
            replies = hot.bytes_at(block[state.REPLIES_ADDRESS], block[state.REPLIES_BYTES])
        return Received(
            block[state.RECEIVE_POSITION],
            count,
            pull_count,
            replies,
            has_frame=stop not in (state.STOP_DONE, state.STOP_REPLIES),
            code=block[state.FRAME_CODE] if stop == state.STOP_FRAME else 0,
            has_more=stop == state.STOP_REPLIES,
            pending=self._store.begin_wait() if count else None,
        )

    def _can_put(self) -> bool:
        return not self._putter.refusal and not self._store.lacks_replicas

    def _provide(self, stop: int, now_ms: int) -> bool:
        """Provide what a record lacks; return whether that succeeded.

        If not, the frame falls back to the caller, whose put then fails with the reason.
        """
        address = self._block[state.SCRATCH_ADDRESS] + self._block[state.INPUT_POSITION]
        try:
            return self._putter.provide(stop, hot.bytes_of_record(address), now_ms)
        except (Refused, WriteFailed):
            return False
