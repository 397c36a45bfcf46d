"""Popped records as they are in a reply, which are decoded only if they are looked at.

Most messages go from the record to the client as bytes (``deliveries``).
"""

import struct
from typing import NamedTuple

from reput.client.core.pop_handles import ReplyHandles
from reput.format import message as records, pop_codec, properties as props
from reput.format.headers import PopMessageReplyHeader
from reput.format.message import StoredMessage
from reput.grpc.conversion import Receipt

SLACK = 32
"""Bytes after the records that kernels may read."""
_HEAD = struct.Struct(">ii 4x i 4x q q i 8x 8x 8x 8x i 8x i")
"""Size, magic, queue id, both offsets, system flags, times it was consumed, size of the body."""
_FIXED_BYTES = _HEAD.size + 1 + 2
_ODD_FLAGS = 0x31
"""Compressed, or with hosts of IPv6."""
_TAGS = props.TAGS.encode() + b"\1"


class PoppedRecord(NamedTuple):
    """A record that was popped, of the topic itself."""

    data: bytes
    """All records of the reply, then ``SLACK`` bytes."""
    position: int
    body_size: int
    receipt_text: str
    delivery_attempt: int
    due_ms: int
    """Time at which the message becomes visible again, in ms since the epoch."""

    @property
    def receipt(self) -> Receipt:
        """The handle."""
        return Receipt.parse(self.receipt_text)

    @property
    def message(self) -> StoredMessage:
        """The message."""
        return records.decode(self.data, self.position, check_crc=False)

    @property
    def tags(self) -> str | None:
        """The tag."""
        begin = self.position + _HEAD.size + self.body_size
        begin += 3 + self.data[begin]
        size = int.from_bytes(self.data[begin - 2 : begin])
        pairs = self.data[begin : begin + size]
        if not pairs.startswith(_TAGS):
            place = pairs.find(b"\2" + _TAGS)
            if place < 0:
                return None
            pairs = pairs[place + 1 :]
        return pairs[len(_TAGS) :].partition(b"\2")[0].decode()


def popped(
    body: bytes, reply: PopMessageReplyHeader, handles: ReplyHandles, broker_name: str
) -> list[PoppedRecord] | None:
    """Return the records of a reply; None if they may be unusual: of retry topics, or ordered."""
    if handles.kinds != {pop_codec.NORMAL} or reply.order_count_info:
        return None
    if not reply.start_offset_info:
        return None  # each handle has another start
    data = body + bytes(SLACK)
    due_ms = reply.pop_time + reply.invisible_time
    prefixes: dict[int, str] = {}
    items = []
    position, end = 0, len(body)
    while position < end:
        size, magic, queue_id, queue_offset, physical_offset, flags, consumed, body_size = (
            _HEAD.unpack_from(data, position)
        )
        if magic != records.MAGIC_V1 or flags & _ODD_FLAGS or position + size > end:
            return None
        if not 0 <= body_size <= size - _FIXED_BYTES:
            return None
        prefix = prefixes.get(queue_id)
        if prefix is None:
            handle = str(handles.of(pop_codec.NORMAL, queue_id, queue_offset, None))
            prefix = prefixes[queue_id] = handle[: -len(f"{queue_offset}")]
        text = f"{prefix}{queue_offset} {physical_offset}"
        items.append(PoppedRecord(data, position, body_size, text, consumed + 1, due_ms))
        position += size
    return items
