"""Frames of HTTP/2: types, flags, settings, error codes, and their encoding. Pure.

    frame   3 length of the payload | 1 type | 1 flags | 4 stream, 31 bits | payload

Source: RFC 9113, 4, 6 and 7.
"""

import enum
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client."""

HEAD = struct.Struct(">IBI")
"""Head of a frame: length and type in one word, flags, stream."""
PAYLOAD_BYTES_MAX = 16_384
"""Largest payload until a peer allows more, in bytes."""
WINDOW_MAX = (1 << 31) - 1
"""Largest window, in bytes."""
WINDOW_DEFAULT = 65_535
"""Window of a connection, and of a stream unless settings change it, in bytes."""
STREAM_MASK = (1 << 31) - 1


class FrameType:
    """Types of frames; integers, as they are compared for each frame."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag:
    """Flags of frames."""

    END_STREAM = 0x1
    ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(enum.IntEnum):
    """Numbers of settings."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(enum.IntEnum):
    """Reasons of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


_NUMBER = struct.Struct(">IBII")
_GOAWAY = struct.Struct(">IBIII")
_SETTING = struct.Struct(">HI")

SETTINGS_ACK = HEAD.pack(FrameType.SETTINGS, Flag.ACK, 0)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Encode settings, as pairs of number and value."""
    return frame(FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values))


def decode_settings(payload: bytes) -> list[tuple[int, int]]:
    """Decode the payload of settings, whose length must be a multiple of 6."""
    return list(_SETTING.iter_unpack(payload))


def window_update(stream_id: int, count: int) -> bytes:
    """Encode a frame that lets the peer send ``count`` more bytes."""
    return _NUMBER.pack(4 << 8 | FrameType.WINDOW_UPDATE, 0, stream_id, count)


def rst_stream(stream_id: int, code: int) -> bytes:
    """Encode a frame that ends a stream at once."""
    return _NUMBER.pack(4 << 8 | FrameType.RST_STREAM, 0, stream_id, code)


def goaway(last_stream_id: int, code: int, reason: bytes = b"") -> bytes:
    """Encode a frame that ends a connection; ``reason`` is for people."""
    return _GOAWAY.pack((8 + len(reason)) << 8 | FrameType.GOAWAY, 0, 0, last_stream_id, code) + (
        reason
    )


def headers(stream_id: int, block: bytes, *, is_end: bool = False) -> bytes:
    """Encode a header block as one HEADERS frame, or with CONTINUATION frames if it is long."""
    flags = Flag.END_STREAM if is_end else 0
    if len(block) <= PAYLOAD_BYTES_MAX:
        return frame(FrameType.HEADERS, flags | Flag.END_HEADERS, stream_id, block)
    pieces = []
    for begin in range(0, len(block), PAYLOAD_BYTES_MAX):
        kind = FrameType.CONTINUATION if begin else FrameType.HEADERS
        if begin + PAYLOAD_BYTES_MAX >= len(block):
            flags |= Flag.END_HEADERS
        pieces.append(frame(kind, flags, stream_id, block[begin : begin + PAYLOAD_BYTES_MAX]))
        flags = 0
    return b"".join(pieces)
