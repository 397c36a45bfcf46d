"""Replies of ReceiveMessage: messages as bytes of gRPC.

A kernel makes them from records (``grpc.kernels.grpc_delivery``). The others are converted one
by one.
"""

import ctypes
import hashlib
from collections.abc import Sequence

import numpy as np

from reput.format.kernels.rows import rows_of, start_of
from reput.grpc import conversion
from reput.grpc.http2 import messages
from reput.grpc.http2.call_reader import address_of, kernel
from reput.grpc.kernels.delivery_words import SCRATCH_BYTES, Delivery, DeliveryRow
from reput.grpc.receiving import Received, ReceiveParameters
from reput.grpc.records import SLACK, PoppedRecord
from reput.grpc.wire import protobuf
from reput.grpc.wire.grpc_messages import METHODS

_OUT_BYTES = 512 << 10
_ROWS_MAX = 32
_TOPIC_BYTES_MAX = 125
_REPLY = METHODS["ReceiveMessage"].reply


def encode(wanted: ReceiveParameters, item: Received | PoppedRecord) -> bytes:
    """Return a message of the reply."""
    message = conversion.incoming(
        item.message,
        topic=wanted.topic,
        receipt_handle=item.receipt_text,
        invisible_ms=wanted.invisible_ms,
        delivery_attempt=item.delivery_attempt,
    )
    return messages.encode(protobuf.encode(_REPLY, {"message": message}))


class Deliveries:
    """Makes messages of replies with the kernel.

    Raises:
        KernelsUnavailable: There are no compiled kernels.
    """

    def __init__(self) -> None:
        self._deliver = kernel("grpc_deliver", 2)
        self._block = Delivery()
        self._argument = ctypes.c_int64(self._block.address)
        self._rows = rows_of(DeliveryRow, _ROWS_MAX)
        self._out = np.zeros(_OUT_BYTES, np.uint8)
        self._scratch = np.zeros(SCRATCH_BYTES, np.uint8)
        block = self._block
        block.rows = start_of(self._rows)
        block.out = address_of(self._out)
        block.out_room = _OUT_BYTES
        block.scratch = address_of(self._scratch)

    def encode(
        self, wanted: ReceiveParameters, items: Sequence[Received | PoppedRecord]
    ) -> list[bytes]:
        """Return the messages of the reply."""
        name = wanted.topic.encode()
        first = items[0]
        if (
            not isinstance(first, PoppedRecord)
            or len(items) > _ROWS_MAX
            or len(name) > _TOPIC_BYTES_MAX
            or not name.isascii()
        ):
            return [encode(wanted, item) for item in items]
        data = first.data
        view = memoryview(data)
        texts: list[bytes] = []
        place = len(name)
        for row, item in zip(self._rows, items, strict=False):
            assert isinstance(item, PoppedRecord), "all items are of one reply"
            handle = item.receipt_text.encode()
            body = item.position + 88
            digest = hashlib.md5(view[body : body + item.body_size], usedforsecurity=False)
            digest_place = place + len(handle)
            row.record, row.attempt = item.position, item.delivery_attempt
            row.handle, row.handle_size, row.digest = place, len(handle), digest_place
            texts.append(handle)
            texts.append(digest.hexdigest().upper().encode())
            place = digest_place + 32
        memory = np.frombuffer(b"".join((name, *texts, bytes(SLACK))), np.uint8)
        records = np.frombuffer(data, np.uint8)
        block = self._block
        block.records = address_of(records)
        block.texts = block.topic.start = address_of(memory)
        block.topic.size = len(name)
        block.invisible_ms = wanted.invisible_ms
        count = len(items)
        done = self._deliver(self._argument, count)
        out = block.out
        if done == count:
            return [ctypes.string_at(out, self._rows[count - 1].end)]
        parts = []
        for row, item in zip(self._rows, items, strict=False):
            begin, end = row.begin, row.end
            is_made = end > begin
            parts.append(
                ctypes.string_at(out + begin, end - begin) if is_made else encode(wanted, item)
            )
        return parts
