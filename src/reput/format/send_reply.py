"""The reply to a send: what is in it, and in which order.

As Java's, whose binary replies have the fields in this order. The compiled kernel writes the same
from ``JSON_PIECES`` and ``BINARY_PIECES``, which are cut out of replies that were made here.
"""

from reput.format import codes, command
from reput.format.command import Command, Serialization

REGION = "DefaultRegion"


RECALL_HANDLE = "recallHandle"
"""The last field of a reply, if the message waits for the timer and may be recalled (5.4)."""


def fields(message_id: str, queue_id: int, queue_offset: int) -> dict[str, str]:
    """Return the fields of a reply that says where a message is stored."""
    return {
        "msgId": message_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "TRACE_ON": "true",
        "MSG_REGION": REGION,
    }


def send_reply(
    opaque: int,
    serialization: Serialization,
    message_id: str,
    queue_id: int,
    queue_offset: int,
    recall_handle: str = "",
) -> bytes:
    """Return the frame that answers a send.

    Args:
        opaque: The request's.
        serialization: The request's.
        message_id: Offset id, or several with commas between them.
        queue_id: Where it is stored.
        queue_offset: Of the first message.
        recall_handle: Of a message that waits for the timer; empty: it has none.
    """
    request = Command(codes.RequestCode.SEND_MESSAGE, opaque, serialization=serialization)
    answer = fields(message_id, queue_id, queue_offset)
    if recall_handle:
        answer[RECALL_HANDLE] = recall_handle
    return command.encode(command.reply(request, ext_fields=answer))


_BEHIND_MARK = command.LENGTH.size + command.MARK.size


def cut(text: bytes, *marks: bytes) -> tuple[bytes, ...]:
    """Return what stands before, between and behind marks, each of which is there once."""
    pieces = []
    for mark in marks:
        assert text.count(mark) == 1
        piece, _, text = text.partition(mark)
        pieces.append(piece)
    return (*pieces, text)


def _json_pieces() -> tuple[bytes, ...]:
    frame = send_reply(11111, Serialization.JSON, "<ID>", 22222, 33333)
    return cut(frame[_BEHIND_MARK:], b"11111", b"<ID>", b"22222", b"33333")


def _json_handle_pieces() -> tuple[bytes, ...]:
    frame = send_reply(11111, Serialization.JSON, "<ID>", 22222, 33333, "<HANDLE>")
    *before, behind_offset, end = cut(
        frame[_BEHIND_MARK:], b"11111", b"<ID>", b"22222", b"33333", b"<HANDLE>"
    )
    assert tuple(before) == JSON_PIECES[:-1]
    return behind_offset, end


def _binary_pieces() -> tuple[bytes, ...]:
    frame = send_reply(0x55555555, Serialization.ROCKETMQ, "<ID>", 22222, 33333)
    header = frame[_BEHIND_MARK:]
    opaque, queue_id, queue_offset = b"UUUU", b"\0\0\0\x0522222", b"\0\0\0\x0533333"
    extension_at = 17
    head, extension = header[:extension_at], header[extension_at + 4 :]
    size = len(extension).to_bytes(4)
    assert header == head + size + extension
    names = cut(extension, b"\0\0\0\x04<ID>", queue_id, queue_offset)
    return (*cut(head, opaque), *names)


JSON_PIECES = _json_pieces()
"""Of the header: before the opaque, before the id, the queue id, the queue offset, behind it."""
JSON_HANDLE_PIECES = _json_handle_pieces()
"""In place of the last one, if there is a recall handle: before and behind it."""
BINARY_HANDLE_NAME = len(RECALL_HANDLE).to_bytes(2) + RECALL_HANDLE.encode()
"""What stands before the size of a recall handle; both come behind all other fields."""
BINARY_PIECES = _binary_pieces()
"""Of the header: before the opaque; behind it, up to the size of the fields; of the fields: before
the id with its size, the queue id with its, the queue offset with its; behind that."""
