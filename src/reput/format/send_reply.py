"""The reply to a send: its fields and their order, which is that of Java's binary replies.

The compiled kernel assembles the same bytes from ``JSON_PIECES`` and ``BINARY_PIECES``, which are
cut out of replies built here.
"""

from reput.format import codes, command
from reput.format.command import Command, Serialization

REGION = "DefaultRegion"


TRANSACTION_ID = "transactionId"
"""Name of the field with the unique key of the message, of any message (5.0); 4.9.7 has none."""
RECALL_HANDLE = "recallHandle"
"""Name of the last field of the reply to a timer message that can be recalled (5.4)."""


def fields(
    message_id: str, queue_id: int, queue_offset: int, transaction_id: str = ""
) -> dict[str, str]:
    """Return the fields of a reply: position and ids of a stored message.

    ``transaction_id`` is its unique key; without one, the field is left out.
    """
    return {
        "msgId": message_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        **({TRANSACTION_ID: transaction_id} if transaction_id else {}),
        "TRACE_ON": "true",
        "MSG_REGION": REGION,
    }


def send_reply(
    opaque: int,
    serialization: Serialization,
    message_id: str,
    queue_id: int,
    queue_offset: int,
    transaction_id: str = "",
    recall_handle: str = "",
) -> bytes:
    """Return the frame that answers a send.

    Args:
        opaque: Opaque of the request.
        serialization: Serialization of the request.
        message_id: Offset id, or several separated by commas.
        queue_id: Queue of the message.
        queue_offset: Queue offset of the first message.
        transaction_id: Unique key of the message; empty if it has none.
        recall_handle: Recall handle of a timer message; empty if none.
    """
    request = Command(codes.RequestCode.SEND_MESSAGE, opaque, serialization=serialization)
    answer = fields(message_id, queue_id, queue_offset, transaction_id)
    if recall_handle:
        answer[RECALL_HANDLE] = recall_handle
    return command.encode(command.reply(request, ext_fields=answer))


_HEADER_POSITION = command.LENGTH.size + command.MARK.size


def cut(text: bytes, *marks: bytes) -> tuple[bytes, ...]:
    """Split bytes at marks, each of which occurs once."""
    pieces = []
    for mark in marks:
        assert text.count(mark) == 1
        piece, _, text = text.partition(mark)
        pieces.append(piece)
    return (*pieces, text)


def _json_pieces() -> tuple[bytes, ...]:
    frame = send_reply(11111, Serialization.JSON, "<ID>", 22222, 33333, "<KEY>")
    return cut(frame[_HEADER_POSITION:], b"11111", b"<ID>", b"22222", b"33333", b"<KEY>")


def _json_handle_pieces() -> tuple[bytes, ...]:
    frame = send_reply(11111, Serialization.JSON, "<ID>", 22222, 33333, "<KEY>", "<HANDLE>")
    *before, after_key, end = cut(
        frame[_HEADER_POSITION:], b"11111", b"<ID>", b"22222", b"33333", b"<KEY>", b"<HANDLE>"
    )
    assert tuple(before) == JSON_PIECES[:-1]
    return after_key, end


def _binary_pieces() -> tuple[bytes, ...]:
    frame = send_reply(0x55555555, Serialization.ROCKETMQ, "<ID>", 22222, 33333)
    header = frame[_HEADER_POSITION:]
    opaque, queue_id, queue_offset = b"UUUU", b"\0\0\0\x0522222", b"\0\0\0\x0533333"
    extension_at = 17
    head, extension = header[:extension_at], header[extension_at + 4 :]
    size = len(extension).to_bytes(4)
    assert header == head + size + extension
    names = cut(extension, b"\0\0\0\x04<ID>", queue_id, queue_offset)
    return (*cut(head, opaque), *names)


JSON_PIECES = _json_pieces()
"""Parts of a JSON header: before opaque, message id, queue id, queue offset and unique key; the
rest, which follows the queue offset if there is no key."""
JSON_HANDLE_PIECES = _json_handle_pieces()
"""Parts before and after a recall handle; they replace the last of ``JSON_PIECES``."""
BINARY_HANDLE_NAME = len(RECALL_HANDLE).to_bytes(2) + RECALL_HANDLE.encode()
"""Bytes before the size of a recall handle, which is the last field."""
BINARY_KEY_NAME = len(TRANSACTION_ID).to_bytes(2) + TRANSACTION_ID.encode()
"""Bytes before the size of the unique key, which follows the queue offset."""
BINARY_PIECES = _binary_pieces()
"""Parts of a binary header: before the opaque; from it to the size of the fields; before message
id, queue id and queue offset, each with its size; the rest."""
