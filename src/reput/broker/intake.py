"""From the bytes of clients into the store, and out of it.

One read of a connection is one pass: a kernel handles all common sends and pulls that stand in the
buffer, and their replies leave in one write. What is not common goes, in its place, through the
processors (architecture: hot path). Both ways give the same records and the same replies.

Where a put must wait for the disk, its reply waits here.
"""

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.broker.processors import send
from reput.broker.put_times import PutTimes
from reput.format import command as commands, properties as props, send_reply
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.connection import find_frame
from reput.store.flush import PendingPut
from reput.store.incoming import IncomingMessage, PutResult, PutStatus

if TYPE_CHECKING:
    from reput.broker.server import Broker

Answer = Callable[[PutResult], Command]
"""What becomes of a put -> the reply."""


@dataclass(slots=True)
class _Waiting:
    """Replies that wait for the disk."""

    put: PendingPut
    channel: Channel
    answer: Callable[[PutResult], bytes]
    begun_ms: int
    send_count: int = 1


class Intake:
    """Puts messages, and sends the replies when they are due.

    Args:
        broker: Whose messages they are.
        buffer: What connections are read into.
    """

    def __init__(self, broker: "Broker", buffer: bytearray) -> None:
        self.common_count = 0
        """Sends that the kernel took."""
        self.other_count = 0
        """Sends that went through a processor."""
        self.common_pull_count = 0
        """Pulls that the kernel answered."""
        self.put_times = PutTimes()
        self._broker = broker
        self._clock = broker.clock
        self._buffer = buffer
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._waiting: deque[_Waiting] = deque()
        self._has_put = False  # during a read

    def __len__(self) -> int:
        """How many replies wait."""
        return len(self._waiting)

    def open(self) -> None:
        """Let the kernel answer; sends only if its replies to them are those that are wanted."""
        config = self._broker.config
        suffix = props.encode({props.CLUSTER: config.broker_cluster_name})
        takes_sends = config.region_id == send_reply.REGION and config.trace_on
        self._broker.store.open_receiving(self._broker.store_host, suffix, takes_sends=takes_sends)

    def on_bytes(
        self, channel: Channel, view: memoryview, end: int, *, takes_pulls: bool = True
    ) -> int:
        """Handle what a connection sent; see ``remoting.channel.Owner``."""
        try:
            if view.obj is not self._buffer:
                return channel.take_frames(view, 0, end)  # a large frame
            return self._take(channel, view, end, takes_pulls)
        finally:
            if self._has_put:
                self._has_put = False
                # Those who wait for messages shall not wait for the next step as well.
                if len(self._broker.held_pulls) or len(self._broker.pops.held):
                    self._broker.store.notify()

    def _take(self, channel: Channel, view: memoryview, end: int, takes_pulls: bool) -> int:
        at = 0
        store = self._broker.store
        # It may stall: few bytes of pulls make many of replies.
        while not channel.is_closed and not channel.has_stalled():
            begun_ms = self._clock.monotonic_ms()
            received, pending = store.receive(
                self._address, at, end, channel.host, takes_pulls=takes_pulls
            )
            at = received.position
            if received.send_count:
                self._has_put = True
                self.common_count += received.send_count
                self._send(channel, received.replies, pending, begun_ms, received.send_count)
            elif received.pull_count:
                self.common_pull_count += received.pull_count
                channel.write(received.replies)
            if received.has_frame:
                behind = channel.take_frames(view, at, end, 1)
                if behind == at:
                    return at
                at = behind
            elif not received.has_more:
                break
        return at

    def _send(
        self,
        channel: Channel,
        replies: bytes,
        pending: PendingPut | None,
        begun_ms: int,
        send_count: int,
    ) -> None:
        if pending is None:
            channel.write(replies)
            self._took(begun_ms, send_count)
            return
        self._waiting.append(
            _Waiting(
                pending, channel, lambda result: _with_status(replies, result), begun_ms, send_count
            )
        )
        self._broker.loops.sync_soon()

    def _took(self, begun_ms: int, send_count: int = 1) -> None:
        self.put_times.add(self._clock.monotonic_ms() - begun_ms, send_count)

    def put(
        self,
        channel: Channel,
        request: Command,
        message: IncomingMessage,
        answer: Answer,
        *,
        is_batch: bool = False,
    ) -> Command | None:
        """Store a message or batch; return the reply, or None if it comes when the disk has it."""
        self._has_put = True
        self.other_count += 1
        begun_ms = self._clock.monotonic_ms()
        put = self._broker.store.begin_put(message, is_batch=is_batch)
        if put.result is not None:
            if put.result.status.is_stored:
                self._took(begun_ms)
            else:
                self._broker.stats.put_failed_count += 1
            return answer(put.result)
        if not request.is_oneway:
            self._waiting.append(
                _Waiting(put, channel, lambda result: commands.encode(answer(result)), begun_ms)
            )
        self._broker.loops.sync_soon()
        return None

    def settle(self) -> None:
        """Send the replies that need not wait any longer."""
        waiting = self._waiting
        while waiting and (result := waiting[0].put.result) is not None:
            one = waiting.popleft()
            one.channel.write(one.answer(result))
            self._took(one.begun_ms, one.send_count)


def _with_status(replies: bytes, result: PutResult) -> bytes:
    """Return replies that say what became of their messages, which wait together."""
    if result.status is PutStatus.PUT_OK:
        return replies
    changed = []
    at = 0
    while (place := find_frame(replies, at, len(replies))) is not None:
        reply = commands.decode(replies[place[0] : place[1]])
        reply.code = send.CODES[result.status]
        reply.remark = result.status.name
        changed.append(commands.encode(reply))
        at = place[1]
    return b"".join(changed)
