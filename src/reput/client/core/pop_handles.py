"""What a client makes of pops and their replies: handles, by which brokers know what it holds.

Source: rocketmq 5.5.0 ``MQClientAPIImpl.processPopResponse``, ``ExtraInfoUtil``, and
``ConsumeMessagePopConcurrentlyService`` for how long to wait after a failure.
"""

import base64
import dataclasses
from collections.abc import Iterable

from reput.errors import InvalidHeader
from reput.format import pop_codec
from reput.format.headers import ChangeInvisibleTimeReplyHeader, PopMessageReplyHeader
from reput.format.pop_codec import BatchAck, Handle

RETRY_DELAYS_S = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""How long a message rests that failed for the first time, for the second, ..."""


def retry_delay_ms(level: int) -> int:
    """Return how long a message rests, by how often it was retried, or as a listener says."""
    return RETRY_DELAYS_S[min(level, len(RETRY_DELAYS_S) - 1)] * 1000


class ReplyHandles:
    """The handles of one reply's messages.

    Args:
        reply: The reply's header.
        broker_name: Who sent it.

    Raises:
        InvalidHeader: What it says of queues cannot be read.
    """

    def __init__(self, reply: PopMessageReplyHeader, broker_name: str) -> None:
        self._reply = reply
        self._broker_name = broker_name
        self._starts = _infos(reply.start_offset_info)
        self._counts = _infos(reply.order_count_info)
        self.kinds = {kind for kind, _ in self._starts} or {pop_codec.NORMAL}
        """Of the topics that messages are from: the one that was asked for, or its retry topic."""

    def of(self, kind: str, queue_id: int, queue_offset: int, checkpoint: str | None) -> Handle:
        """Return the handle of a message.

        Args:
            kind: Of the topic that its record is of.
            queue_id: Of its record.
            queue_offset: Likewise.
            checkpoint: The property ``POP_CK``: a retried message's record has been moved, and this
                says from where.

        Raises:
            InvalidHeader: The property cannot be read.
        """
        if checkpoint is not None:
            words = checkpoint.split(" ")
            if len(words) < 8:
                raise InvalidHeader(f"POP_CK {checkpoint!r} has {len(words)} words; 8 are wanted")
            queue_id, queue_offset = _number(words[6], checkpoint), _number(words[7], checkpoint)
            return pop_codec.parse_handle(checkpoint, queue_id, queue_offset)
        reply = self._reply
        return Handle(
            self._starts.get((kind, str(queue_id)), queue_offset),
            reply.pop_time,
            reply.invisible_time,
            reply.revive_qid,
            kind,
            self._broker_name,
            queue_id,
            queue_offset,
        )

    def taken_count(self, handle: Handle) -> int:
        """Return how often a message was taken in order before."""
        of_queue = self._counts.get((handle.kind, str(handle.queue_id)), 0)
        name = f"qo{handle.queue_id}%{handle.queue_offset}"
        return self._counts.get((handle.kind, name), of_queue)


def changed(handle: Handle, reply: ChangeInvisibleTimeReplyHeader) -> Handle:
    """Return the handle that a message has after its invisible time was changed."""
    return dataclasses.replace(
        handle,
        start_offset=handle.queue_offset,
        pop_ms=reply.pop_time,
        invisible_ms=reply.invisible_time,
        revive_queue_id=reply.revive_qid,
    )


def batch_acks(group: str, held: Iterable[tuple[str, Handle]]) -> list[BatchAck]:
    """Return what acknowledges messages together: an entry for each checkpoint.

    Args:
        group: Who holds them.
        held: Of each message the topic that was asked for, and its handle.
    """
    first: dict[tuple[object, ...], tuple[str, Handle]] = {}
    bits: dict[tuple[object, ...], int] = {}
    for topic, one in held:
        checkpoint = (
            topic, one.kind, one.queue_id, one.start_offset, one.pop_ms, one.revive_queue_id,
            one.invisible_ms,
        )  # fmt: skip
        first.setdefault(checkpoint, (topic, one))
        bit = 1 << (one.queue_offset - one.start_offset)
        bits[checkpoint] = bits.get(checkpoint, 0) | bit
    return [
        BatchAck(
            group=group,
            topic=topic,
            kind=one.kind,
            start_offset=one.start_offset,
            queue_id=one.queue_id,
            revive_queue_id=one.revive_queue_id,
            pop_ms=one.pop_ms,
            invisible_ms=one.invisible_ms,
            bits=base64.b64encode(_little_endian(bits[checkpoint])).decode(),
        )
        for checkpoint, (topic, one) in first.items()
    ]


def _little_endian(bit_set: int) -> bytes:
    return bit_set.to_bytes((bit_set.bit_length() + 7) // 8, "little")


def _infos(text: str | None) -> dict[tuple[str, str], int]:
    """Return what ``kind key number;kind key number`` says."""
    found = {}
    for info in filter(None, (text or "").split(";")):
        words = info.split(" ")
        if len(words) != 3:
            raise InvalidHeader(f"info {info!r} of a pop has {len(words)} words; 3 are wanted")
        found[words[0], words[1]] = _number(words[2], info)
    return found


def _number(word: str, text: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise InvalidHeader(f"{text!r}: {error}") from error
