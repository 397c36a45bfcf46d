"""The reply to a pull that found messages: what is in it, and in which order.

The compiled kernel writes the same from ``JSON_PIECES`` and ``BINARY_PIECES``, which are cut out of
replies that were made here.
"""

from reput.format import codes, command
from reput.format.command import Command, Serialization
from reput.format.send_reply import cut

FOUND = "FOUND"
"""Its remark: the name of what was found, as Java's ``GetMessageStatus``."""
SUGGESTED_BROKER = 0
"""The master."""


def fields(next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
    """Return the fields of a reply; queue offsets."""
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
        opaque: The request's.
        serialization: The request's.
        next_offset: Queue offset to ask for next.
        min_offset: Queue offset of the first message of the queue.
        max_offset: Queue offset behind the last one.
        records: What was found, one behind the other.
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
"""Of the header: before the opaque, the next offset, the least, the greatest; behind that."""
BINARY_PIECES = _binary_pieces()
"""Of the header: before the opaque; behind it, up to the size of the fields; of the fields: before
the next offset with its size, the least with its, the greatest with its; behind that."""
