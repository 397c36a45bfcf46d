"""Handles of popped messages, computed from pop replies, and batch acknowledgements.

Source: rocketmq 5.5.0 ``MQClientAPIImpl.processPopResponse``, ``ExtraInfoUtil``, and
``ConsumeMessagePopConcurrentlyService`` for the delays after a failure.
"""

import base64
import dataclasses
from collections.abc import Iterable

from reput.errors import InvalidHeader
from reput.format import limits, pop_codec
from reput.format.headers import ChangeInvisibleTimeReplyHeader, PopMessageReplyHeader
from reput.format.pop_codec import BatchAck, Handle

RETRY_DELAYS_S = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""Delays before a failed message is delivered again, by number of failures, in ms."""


def retry_delay_ms(level: int) -> int:
    """Return the delay before the next delivery of a failed message, in ms."""
    return RETRY_DELAYS_S[min(level, len(RETRY_DELAYS_S) - 1)] * 1000


class ReplyHandles:
    """The handles of the messages of one reply.

    Args:
        reply: Header of the reply.
        broker_name: Broker that sent it.

    Raises:
        InvalidHeader: The infos of the queues cannot be decoded.
    """

    def __init__(self, reply: PopMessageReplyHeader, broker_name: str) -> None:
        self._reply = reply
        self._broker_name = broker_name
        self._starts = _infos(reply.start_offset_info)
        self._counts = _infos(reply.order_count_info)
        self.kinds = {kind for kind, _ in self._starts} or {pop_codec.NORMAL}
        """Marks of the messages' topics: the requested topic or its retry topics."""

    def of(self, kind: str, queue_id: int, queue_offset: int, checkpoint: str | None) -> Handle:
        """Return the handle of a message.

        Args:
            kind: Mark of the topic of its record.
            queue_id: Queue id of its record.
            queue_offset: Queue offset of its record.
            checkpoint: Its property ``POP_CK``: the original position of a retried message.

        Raises:
            InvalidHeader: The property cannot be decoded, or the message is far from the start of
                its checkpoint.
        """
        if checkpoint is not None:
            words = checkpoint.split(" ")
            if len(words) < 8:
                raise InvalidHeader(f"POP_CK {checkpoint!r} has {len(words)} words; 8 are wanted")
            queue_id, queue_offset = _number(words[6], checkpoint), _number(words[7], checkpoint)
            return _possible(pop_codec.parse_handle(checkpoint, queue_id, queue_offset))
        reply = self._reply
        handle = Handle(
            self._starts.get((kind, str(queue_id)), queue_offset),
            reply.pop_time,
            reply.invisible_time,
            reply.revive_qid,
            kind,
            self._broker_name,
            queue_id,
            queue_offset,
        )
        return _possible(handle)

    def taken_count(self, handle: Handle) -> int:
        """Return the number of earlier deliveries of a message, in order."""
        of_queue = self._counts.get((handle.kind, str(handle.queue_id)), 0)
        name = f"qo{handle.queue_id}%{handle.queue_offset}"
        return self._counts.get((handle.kind, name), of_queue)


def changed(handle: Handle, reply: ChangeInvisibleTimeReplyHeader) -> Handle:
    """Return the handle of a message after a change of its invisible time."""
    return dataclasses.replace(
        handle,
        start_offset=handle.queue_offset,
        pop_ms=reply.pop_time,
        invisible_ms=reply.invisible_time,
        revive_queue_id=reply.revive_qid,
    )


def batch_acks(group: str, held: Iterable[tuple[str, Handle]]) -> list[BatchAck]:
    """Return one batch acknowledgement per checkpoint.

    Args:
        group: Group of the messages.
        held: Requested topic and handle of each message.
    """
    first: dict[tuple[object, ...], tuple[str, Handle]] = {}
    bits: dict[tuple[object, ...], int] = {}
    for topic, handle in held:
        checkpoint = (
            topic, handle.kind, handle.queue_id, handle.start_offset, handle.pop_ms,
            handle.revive_queue_id, handle.invisible_ms,
        )  # fmt: skip
        first.setdefault(checkpoint, (topic, handle))
        bit = 1 << (handle.queue_offset - handle.start_offset)
        bits[checkpoint] = bits.get(checkpoint, 0) | bit
    return [
        BatchAck(
            group=group,
            topic=topic,
            kind=handle.kind,
            start_offset=handle.start_offset,
            queue_id=handle.queue_id,
            revive_queue_id=handle.revive_queue_id,
            pop_ms=handle.pop_ms,
            invisible_ms=handle.invisible_ms,
            bits=base64.b64encode(_little_endian(bits[checkpoint])).decode(),
        )
        for checkpoint, (topic, handle) in first.items()
    ]


def _possible(handle: Handle) -> Handle:
    """Return a handle whose distance fits in the bits of an acknowledgement."""
    distance, limit = handle.queue_offset - handle.start_offset, limits.ACK_SPAN
    if not 0 <= distance <= limit.maximum:
        raise InvalidHeader(
            f"queue offset {handle.queue_offset} of a pop that begins at {handle.start_offset}; "
            f"allowed: up to {limit.maximum} after it, limit {limit.name}"
        )
    return handle


def _little_endian(bit_set: int) -> bytes:
    return bit_set.to_bytes((bit_set.bit_length() + 7) // 8, "little")


def _infos(text: str | None) -> dict[tuple[str, str], int]:
    """Parse ``kind key number;kind key number``."""
    numbers = {}
    for info in filter(None, (text or "").split(";")):
        words = info.split(" ")
        if len(words) != 3:
            raise InvalidHeader(f"info {info!r} of a pop has {len(words)} words; 3 are wanted")
        numbers[words[0], words[1]] = _number(words[2], info)
    return numbers


def _number(word: str, text: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise InvalidHeader(f"{text!r}: {error}") from error
