"""The reply to a pull that found messages: its fields and their order.

The compiled kernel assembles the same bytes from ``JSON_PIECES`` and ``BINARY_PIECES``, which are
cut out of replies built here.
"""

from reput.format import codes, command
from reput.format.codes import MASTER_ID
from reput.format.command import Command, Serialization
from reput.format.send_reply import cut

FOUND = "FOUND"
"""Remark of the reply: Java's ``GetMessageStatus``."""
SUGGESTED_MAX = 9
"""Largest broker id in replies of the kernel: it writes one digit."""


def fields(
    next_offset: int, min_offset: int, max_offset: int, suggested_broker: int
) -> dict[str, str]:
    """Return the fields of a reply, from queue offsets and the id of the suggested broker.

    The system flags are 0: other topics and groups are left to the processor.
    """
    return {
        "topicSysFlag": "0",
        "groupSysFlag": "0",
        "suggestWhichBrokerId": str(suggested_broker),
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
    suggested_broker: int = MASTER_ID,
) -> bytes:
    """Return the frame that answers a pull.

    Args:
        opaque: Opaque of the request.
        serialization: Serialization of the request.
        next_offset: Queue offset of the next pull.
        min_offset: Queue offset of the first message of the queue.
        max_offset: Queue offset after the last message of the queue.
        records: Concatenated records.
        suggested_broker: Id of the broker that the consumer should read from.
    """
    request = Command(codes.RequestCode.PULL_MESSAGE, opaque, serialization=serialization)
    answer = fields(next_offset, min_offset, max_offset, suggested_broker)
    return command.encode(command.reply(request, remark=FOUND, ext_fields=answer, body=records))


_HEADER_POSITION = command.LENGTH.size + command.MARK.size


def _json_pieces() -> tuple[bytes, ...]:
    frame = pull_reply(11111, Serialization.JSON, 22222, 33333, 44444, b"")
    return cut(frame[_HEADER_POSITION:], b"11111", b"22222", b"33333", b"44444")


def _binary_pieces() -> tuple[bytes, ...]:
    frame = pull_reply(0x55555555, Serialization.ROCKETMQ, 22222, 33333, 44444, b"")
    header = frame[_HEADER_POSITION:]
    extension_at = 17 + len(FOUND)
    head, extension = header[:extension_at], header[extension_at + 4 :]
    assert header == head + len(extension).to_bytes(4) + extension
    numbers = (b"\0\0\0\x05" + 5 * digit for digit in (b"2", b"3", b"4"))
    return (*cut(head, b"UUUU"), *cut(extension, *numbers))


JSON_PIECES = _json_pieces()
"""Pieces of a JSON header around opaque, next offset, minimum offset and maximum offset."""
BINARY_PIECES = _binary_pieces()
"""Parts of a binary header: before the opaque; from it to the size of the fields; before next
offset, minimum and maximum offset, each with its size; the rest."""
JSON_SUGGESTED = 1, JSON_PIECES[1].index(b'"suggestWhichBrokerId":"') + 24
"""Place of the digit of the suggested broker: number of the piece, position in it."""
BINARY_SUGGESTED = 2, BINARY_PIECES[2].index(b"suggestWhichBrokerId\0\0\0\x01") + 24
"""The same, in ``BINARY_PIECES``."""
