"""The head of the reply to a pop that found messages, made of numbers and infos at once.

A header of seven fields would become text field by field. Requests with codes of pops are in JSON
alone, as their codes do not fit a binary header.
"""

import struct

from reput.format import command, headers
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import PopMessageReplyHeader

FOUND = "FOUND"
"""Its remark, as Java's ``GetMessageStatus``."""

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
        opaque: The request's.
        pop_ms: When the messages were taken.
        invisible_ms: For how long.
        revive_queue_id: Of their checkpoints.
        rest: Messages that are left.
        start_infos: ASCII; where the checkpoints start.
        message_infos: ASCII; which messages they are.
        body_size: Bytes of the records that follow.
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
