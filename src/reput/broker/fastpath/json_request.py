"""Requests with a JSON header whose text is compared instead of parsed.

A client sends the same header again and again, with another opaque. Its text without the opaque is
a key, under which its meaning is looked up.
"""

from typing import NamedTuple

from reput.errors import NotAFrame
from reput.format import command as commands
from reput.format.codes import RequestCode
from reput.format.command import MARK, Command
from reput.remoting.connection import find_frame

HEADER_POSITION = commands.LENGTH.size + MARK.size
"""The position of the header in a frame, bytes."""
_OPAQUE = b'"opaque":'
_OPAQUE_MAX = (1 << 31) - 1


class JsonRequest(NamedTuple):
    """A request in a buffer. Positions are those of the buffer."""

    opaque: int
    key: bytes
    """The header's text without the opaque."""
    header_position: int
    body_position: int
    end: int

    def decode(self, view: memoryview, code: int) -> Command:
        """Return the decoded request.

        Raises:
            NotAFrame: Code, flag or opaque of its header are not those of its beginning.
        """
        request = commands.decode(view[self.header_position - MARK.size : self.end])
        if (request.code, request.flag, request.opaque) != (code, 0, self.opaque):
            raise NotAFrame(
                "its header has another code, flag or opaque than its beginning suggests"
            )
        return request


def beginning_of(code: RequestCode) -> bytes:
    """Return the beginning of the header of a request, as clients write it."""
    return b'{"code":%d,' % code


def find_request(view: memoryview, position: int, end: int) -> JsonRequest | None:
    """Return the request at a position of a buffer, whose header begins with its code.

    Args:
        view: The buffer.
        position: The position of the frame.
        end: The end of the bytes in the buffer.

    Returns:
        None if the frame is not complete, or its header is written in another way.
    """
    header_position = position + HEADER_POSITION
    frame = find_frame(view, position, end)
    if frame is None or frame[1] > end:
        return None
    content, frame_end = frame
    (size,) = MARK.unpack_from(view, content)  # its high byte, the serialization, is 0
    if not 0 < size <= frame_end - header_position:
        return None
    header = bytes(view[header_position : header_position + size])
    start = header.find(_OPAQUE)
    stop = header.find(b",", start)
    digits = header[start + len(_OPAQUE) : stop]
    # The same text inside of a value has a backslash before its quotes.
    if start < 0 or stop < 0 or not digits.isdigit() or header.find(_OPAQUE, stop) >= 0:
        return None
    opaque = int(digits)
    if opaque > _OPAQUE_MAX or (digits[:1] == b"0" and opaque):
        return None
    key = header[:start] + header[stop:]
    return JsonRequest(opaque, key, header_position, header_position + size, frame_end)
