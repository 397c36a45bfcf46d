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

from reput.broker.pop_acks import PopAcks
from reput.broker.pop_batch_acks import PopBatchAcks
from reput.broker.pop_requests import HEADER_AT
from reput.broker.processors import send
from reput.broker.put_times import PutTimes
from reput.broker.send_backs import SendBacks
from reput.broker.transaction_ends import TransactionEnds
from reput.format import command as commands, java, properties as props, send_reply
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.remoting.channel import Channel
from reput.remoting.connection import find_frame
from reput.store.flush import PendingPut
from reput.store.incoming import IncomingMessage, PutResult, PutStatus

if TYPE_CHECKING:
    from reput.broker.server import Broker

_OF_POP = (b'{"code":2000', b'{"code":2001')
"""How headers of requests about pops begin, as clients write them: neither sends nor pulls."""

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
        self.pop_acks = PopAcks(broker, buffer)
        self.pop_batch_acks = PopBatchAcks(broker)
        self.transaction_ends = TransactionEnds(broker, buffer)
        self.send_backs = SendBacks(broker, buffer)
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
        self._broker.store.open_receiving(
            self._broker.store_host,
            suffix,
            java.encode_utf8(config.broker_name),
            takes_sends=takes_sends,
        )

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
        while at < end and not channel.is_closed and not channel.has_stalled():
            code = 0
            if not self._buffer.startswith(_OF_POP, at + HEADER_AT):
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
                if not received.has_frame:
                    if received.has_more:
                        continue
                    break
                code = received.code
            behind = self._take_other(channel, view, at, end, code)
            if behind == at:
                return at
            at = behind
        return at

    def _take_other(self, channel: Channel, view: memoryview, at: int, end: int, code: int) -> int:
        """Take a frame that is no common send or pull, or some of one kind; return where it ends.

        Args:
            channel: Where it came from.
            view: The buffer.
            at: Where it begins.
            end: Where the bytes end.
            code: Its request code, if that was read; 0: it is of pops, most likely.
        """
        if code == RequestCode.END_TRANSACTION:
            behind = self.transaction_ends.take(channel, view, at, end)
        elif code == RequestCode.CONSUMER_SEND_MSG_BACK:
            behind = self.send_backs.take(channel, view, at, end)
        else:
            behind = self._broker.pop_requests.take(channel, view, at, end)
            if behind == at:
                behind = self.pop_acks.take(channel, view, at, end)
            if behind == at:
                behind = self.pop_batch_acks.take(channel, view, at, end)
        return channel.take_frames(view, at, end, 1) if behind == at else behind

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

    def count_puts(self, begun_ms: int, count: int = 1) -> None:
        """Count messages that others have put, who began at a monotonic time."""
        self.other_count += count
        self._took(begun_ms, count)

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
