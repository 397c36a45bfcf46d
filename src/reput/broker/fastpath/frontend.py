"""Receives the bytes of connections: consecutive requests of one kind are served together.

One read of a connection is one pass. The kernel ``receive`` stores consecutive sends and answers
consecutive pulls, and their replies are sent in one write. Pops, acknowledgements, messages that
are sent back, ends of transactions and lookups have a shortcut each. All other requests fall back
to the processors, in their place.
"""

import ctypes

from reput.broker import limits
from reput.broker.fastpath.ack_batches import FastAckBatches
from reput.broker.fastpath.acks import FastAcks
from reput.broker.fastpath.gate import Gate
from reput.broker.fastpath.json_request import HEADER_POSITION, beginning_of
from reput.broker.fastpath.lookups import FastLookups
from reput.broker.fastpath.pops import FastPops
from reput.broker.fastpath.send_backs import FastSendBacks
from reput.broker.fastpath.send_ingest import Received, SendIngest
from reput.broker.fastpath.transaction_ends import FastTransactionEnds
from reput.broker.parts import Parts
from reput.broker.processors import send
from reput.broker.transaction.transactions import TOPICS as TRANSACTION_TOPICS
from reput.format import command as commands, java, names, properties as props, send_reply
from reput.format.codes import RequestCode
from reput.remoting.channel import Channel
from reput.remoting.connection import find_frame
from reput.store.writing.incoming import PutResult, PutStatus

_OF_POP = (b'{"code":2000', b'{"code":2001')
"""Beginnings of the headers of requests about pops: they are neither sends nor pulls."""
_LOOKUPS = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.VIEW_MESSAGE_BY_ID,
    }
)
_BEGINNING_BYTES = len(beginning_of(RequestCode.POP_MESSAGE))


class Frontend:
    """Serves consecutive requests together, and passes the others to the processors.

    Args:
        parts: The parts of the broker.
        buffer: The buffer that connections are read into; it must not move.
    """

    def __init__(self, parts: Parts, buffer: bytearray) -> None:
        self._parts = parts
        self._pending_replies = parts.pending_replies
        self._clock = parts.clock
        self._buffer = buffer
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._gate = None if parts.access is None else Gate(parts.access, self._address)
        self._send_ingest = SendIngest(parts.store)
        self._lookups = FastLookups(parts.store)
        self._pops = FastPops(parts)
        self._of_pop = {
            beginning_of(RequestCode.POP_MESSAGE): self._pops.serve,
            beginning_of(RequestCode.ACK_MESSAGE): FastAcks(parts, buffer).serve,
            beginning_of(RequestCode.BATCH_ACK_MESSAGE): FastAckBatches(parts).serve,
        }
        """Beginning of a header -> the shortcut of requests about pops."""
        self._transaction_ends = FastTransactionEnds(parts, buffer)
        self._send_backs = FastSendBacks(parts, buffer)
        parts.topics.on_change.append(self._topic_changed)
        parts.topics.on_written.append(self._set_write_queues)
        parts.subscription_groups.on_change.append(self._forget_readers)
        parts.settings.on_change.append(lambda change: self._settings_changed())
        for name in parts.topics.all():
            self._topic_changed(name)

    def open(self) -> None:
        """Enable the kernel, for sends only if its fixed replies fit the configuration."""
        config = self._parts.settings.broker
        suffix = props.encode({props.CLUSTER: config.broker_cluster_name})
        takes_sends = config.region_id == send_reply.REGION and config.trace_on
        self._send_ingest.open(
            self._parts.identity.store_host,
            suffix,
            java.encode_utf8(config.broker_name),
            takes_sends=takes_sends,
        )

    # What the kernel knows ----------------------------------------------------------------------

    def _forget_readers(self) -> None:
        """Forget the permissions and subscriptions of readers."""
        self._parts.pull_subscriptions.clear()
        self._pops.forget()
        if self._gate is not None:
            self._gate.forget()

    def _settings_changed(self) -> None:
        self._forget_readers()
        self._switch_halves()

    def _topic_changed(self, name: str) -> None:
        parts = self._parts
        self._forget_readers()
        self._set_write_queues(name)
        if name in TRANSACTION_TOPICS:
            self._switch_halves()
        if name == names.TIMER_TOPIC:
            has_topic = parts.topics.get(name) is not None
            parts.store.take_timers(is_on=has_topic and parts.timers.takes_all)

    def _set_write_queues(self, name: str) -> None:
        self._parts.store.set_write_queues(name, self._parts.topics.write_queue_count(name))

    def _switch_halves(self) -> None:
        self._parts.store.take_halves(is_on=self._parts.transactions.takes_halves)

    # Requests -----------------------------------------------------------------------------------

    def on_bytes(
        self, channel: Channel, view: memoryview, end: int, *, takes_pulls: bool = True
    ) -> int:
        """Serve what a connection sent; see ``remoting.channel.Owner``."""
        if view.obj is not self._buffer:
            return channel.take_frames(view, 0, end)  # a large frame
        if self._gate is None:
            return self._serve(channel, view, 0, end, takes_pulls)
        return self._gate.serve(
            channel,
            view,
            end,
            lambda start, stop: self._serve(channel, view, start, stop, takes_pulls),
        )

    def _serve(
        self, channel: Channel, view: memoryview, position: int, end: int, takes_pulls: bool
    ) -> int:
        """Serve the frames between two positions; return the position of the first unserved one."""
        # Replies are larger than pulls: the connection may take no more of them now.
        while position < end and not channel.is_closed and not channel.has_stalled():
            code = 0
            if not self._pending_replies.is_full and not self._buffer.startswith(
                _OF_POP, position + HEADER_POSITION
            ):
                received = self._receive(channel, position, end, takes_pulls)
                position = received.position
                if not received.has_frame:
                    if received.has_more:
                        continue
                    break
                code = received.code
            frame_end = self._serve_others(channel, view, position, end, code)
            if frame_end == position:
                return position
            position = frame_end
        return position

    def _receive(self, channel: Channel, position: int, end: int, takes_pulls: bool) -> Received:
        """Serve consecutive sends or consecutive pulls."""
        begun_ms = self._clock.monotonic_ms()
        received = self._send_ingest.receive(
            self._address,
            position,
            end,
            channel.host,
            takes_pulls=takes_pulls,
            takes_sends=self._parts.put_stalls.is_over,
        )
        if received.send_count:
            self._parts.fast_counts.sends += received.send_count
            self._reply(channel, received, begun_ms)
        elif received.pull_count:
            self._parts.fast_counts.pulls += received.pull_count
            channel.write(received.replies)
        return received

    def _reply(self, channel: Channel, received: Received, begun_ms: int) -> None:
        replies, pending = received.replies, received.pending
        if pending is None:
            self._pending_replies.has_put = True
            channel.write(replies)
            self._pending_replies.end_put(begun_ms, received.send_count)
        else:
            self._parts.put_stalls.end(begun_ms)
            self._pending_replies.add(
                pending,
                channel,
                lambda result: _with_status(replies, result),
                begun_ms,
                received.send_count,
            )

    def _serve_others(
        self, channel: Channel, view: memoryview, position: int, end: int, code: int
    ) -> int:
        """Serve a request that ``receive`` has left, or several of its kind.

        Args:
            channel: The connection.
            view: The buffer.
            position: The position of the frame.
            end: The end of the bytes in the buffer.
            code: The request code; 0: not read, most likely one about pops.

        Returns:
            The position of the first frame that is not served; ``position`` if it is not complete.
        """
        if code == RequestCode.END_TRANSACTION:
            frame_end = self._transaction_ends.serve(channel, view, position, end)
        elif code == RequestCode.CONSUMER_SEND_MSG_BACK:
            frame_end = self._send_backs.serve(channel, view, position, end)
        elif code in _LOOKUPS:
            frame_end = self._answer_lookups(channel, position, end)
        else:
            start = position + HEADER_POSITION
            serve = self._of_pop.get(bytes(view[start : start + _BEGINNING_BYTES]))
            frame_end = position if serve is None else serve(channel, view, position, end)
        if frame_end != position:
            return frame_end
        return channel.take_frames(view, position, end, 1)

    def _answer_lookups(self, channel: Channel, position: int, end: int) -> int:
        """Answer consecutive lookups; return the end of the last one."""
        parts = self._parts
        count, position, replies = self._lookups.answer(
            position,
            end,
            limits.QUERY_KEY_LETTERS.maximum,
            parts.settings.broker.default_query_max_num,
        )
        if count:
            parts.fast_counts.lookups += count
            channel.write(replies)
        return position


def _with_status(replies: bytes, result: PutResult) -> bytes:
    """Return replies with the status of their messages, which were made durable together."""
    if result.status is PutStatus.PUT_OK:
        return replies
    changed = []
    position = 0
    while (frame := find_frame(replies, position, len(replies))) is not None:
        reply = commands.decode(replies[frame[0] : frame[1]])
        reply.code = send.CODES[result.status]
        reply.remark = result.status.name
        changed.append(commands.encode(reply))
        position = frame[1]
    return b"".join(changed)
