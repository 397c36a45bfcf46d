"""The reply to a pull that found messages: its fields and their order.

The compiled kernel assembles the same bytes from ``JSON_PIECES`` and ``BINARY_PIECES``, which are
cut out of replies built here.
"""

from reput.format import codes, command
from reput.format.command import Command, Serialization
from reput.format.send_reply import cut

FOUND = "FOUND"
"""Remark of the reply: Java's ``GetMessageStatus``."""
SUGGESTED_BROKER = 0
"""Broker id that consumers should read from: the master."""


def fields(next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
    """Return the fields of a reply, from queue offsets."""
    return {
        "suggestWhichBrokerId": str(SUGGESTED_BROKER),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
    }


def pull_reply(
    opaque: int,
    serialization: Serialization,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    records: bytes,
) -> bytes:
    """Return the frame that answers a pull.

    Args:
        opaque: Opaque of the request.
        serialization: Serialization of the request.
        next_offset: Queue offset of the next pull.
        min_offset: Queue offset of the first message of the queue.
        max_offset: Queue offset after the last message of the queue.
        records: Concatenated records.
    """
    request = Command(codes.RequestCode.PULL_MESSAGE, opaque, serialization=serialization)
    answer = fields(next_offset, min_offset, max_offset)
    return command.encode(command.reply(request, remark=FOUND, ext_fields=answer, body=records))


_BEHIND_MARK = command.LENGTH.size + command.MARK.size


def _json_pieces() -> tuple[bytes, ...]:
    frame = pull_reply(11111, Serialization.JSON, 22222, 33333, 44444, b"")
    return cut(frame[_BEHIND_MARK:], b"11111", b"22222", b"33333", b"44444")


def _binary_pieces() -> tuple[bytes, ...]:
    frame = pull_reply(0x55555555, Serialization.ROCKETMQ, 22222, 33333, 44444, b"")
    header = frame[_BEHIND_MARK:]
    extension_at = 17 + len(FOUND)
    head, extension = header[:extension_at], header[extension_at + 4 :]
    assert header == head + len(extension).to_bytes(4) + extension
    numbers = (b"\0\0\0\x05" + 5 * digit for digit in (b"2", b"3", b"4"))
    return (*cut(head, b"UUUU"), *cut(extension, *numbers))


JSON_PIECES = _json_pieces()
"""Parts of a JSON header: before opaque, next offset, minimum and maximum offset; the rest."""
BINARY_PIECES = _binary_pieces()
"""Parts of a binary header: before the opaque; from it to the size of the fields; before next
offset, minimum and maximum offset, each with its size; the rest."""
