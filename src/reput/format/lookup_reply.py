"""JSON headers of the replies to lookups as templates, which a kernel fills in.

Bytes below a blank stand for numbers: they do not occur in JSON.
"""

from reput.format import codes, command, headers
from reput.format.codes import ResponseCode
from reput.format.command import Command
from reput.format.headers import OffsetReplyHeader, QueryMessageReplyHeader

OPAQUE, FIRST, SECOND = 1, 2, 3
"""Bytes of a template: the opaque, and two numbers in the order of ``*_NUMBERS``."""
NOT_FOUND = "can not find message, maybe time range not correct"
_NUMBERS = (11_111, 22_222, 33_333)
_HEADER_POSITION = command.LENGTH.size + command.MARK.size


def _template(
    fields: dict[str, str] | None, code: int = ResponseCode.SUCCESS, remark: str | None = None
) -> bytes:
    request = Command(codes.RequestCode.VIEW_MESSAGE_BY_ID, _NUMBERS[0])
    text = command.encode(command.reply(request, code, remark, fields))[_HEADER_POSITION:]
    for mark, number in enumerate(_NUMBERS, OPAQUE):
        text = text.replace(b"%d" % number, bytes([mark]))
    return text


_INDEX_END = headers.encode(
    QueryMessageReplyHeader(
        index_last_update_timestamp=_NUMBERS[1], index_last_update_phyoffset=_NUMBERS[2]
    )
)
MESSAGES = _template(_INDEX_END)
"""Header before the messages with a key. Numbers: end time and end offset of the index."""
NO_MESSAGES = _template(_INDEX_END, ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)
"""Header of the reply if there is none. Numbers as in ``MESSAGES``."""
QUEUE_OFFSET = _template(headers.encode(OffsetReplyHeader(offset=_NUMBERS[1])))
"""Header of a reply with a queue offset, which is the first number."""
RECORD = _template(None)
"""Header before the record at a physical offset, without numbers."""
TEMPLATES = (MESSAGES, NO_MESSAGES, QUEUE_OFFSET, RECORD)
