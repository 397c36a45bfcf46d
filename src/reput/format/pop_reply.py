"""The head of the reply to a pop that found messages, built by one format string.

The general encoder would convert seven fields one by one. Pops use JSON only: their codes do not
fit a binary header.
"""

import struct

from reput.format import command, headers
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import PopMessageReplyHeader

FOUND = "FOUND"
"""Remark of the reply: Java's ``GetMessageStatus``."""

_LENGTH_AND_MARK = struct.Struct(">ii")


def _template() -> bytes:
    header = PopMessageReplyHeader(
        pop_time=22222, invisible_time=22222, revive_qid=22222, rest_num=22222,
        start_offset_info="INFO", msg_offset_info="INFO",
    )  # fmt: skip
    request = Command(RequestCode.POP_MESSAGE, 11111)
    reply = command.reply(request, remark=FOUND, ext_fields=headers.encode(header))
    text = command.encode(reply)[_LENGTH_AND_MARK.size :]
    assert b"%" not in text
    return text.replace(b"11111", b"%d").replace(b"22222", b"%d").replace(b"INFO", b"%b")


_TEMPLATE = _template()


def found_head(
    opaque: int,
    pop_ms: int,
    invisible_ms: int,
    revive_queue_id: int,
    rest: int,
    start_infos: str,
    message_infos: str,
    body_size: int,
) -> bytes:
    """Return the frame that answers a pop, without its body; see ``PopMessageReplyHeader``.

    Args:
        opaque: Opaque of the request.
        pop_ms: Time of the pop, in ms.
        invisible_ms: Invisible time of the messages, in ms.
        revive_queue_id: Revive queue of the checkpoints.
        rest: Number of messages left in the queues.
        start_infos: Starts of the checkpoints, in ASCII.
        message_infos: Queue offsets of the messages, in ASCII.
        body_size: Size of the records that follow, in bytes.
    """
    header = _TEMPLATE % (
        opaque,
        pop_ms,
        invisible_ms,
        revive_queue_id,
        rest,
        start_infos.encode("ascii"),
        message_infos.encode("ascii"),
    )
    size = command.MARK.size + len(header) + body_size
    return _LENGTH_AND_MARK.pack(size, len(header)) + header
