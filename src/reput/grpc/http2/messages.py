"""Messages of gRPC: their prefix, gzip, timeouts, and texts of errors. Pure.

    message   1 compressed (0 or 1) | 4 length | bytes

Source: the document "gRPC over HTTP2" of the gRPC project.
"""

import re
import struct
import zlib

from reput.errors import CallFailed, excerpt
from reput.grpc import limits
from reput.grpc.http2.status import Status
from reput.remoting.time_slices import Steps

PREFIX = struct.Struct(">BI")
REASON_LETTERS = 1_000
"""Characters of the text of an error."""
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
STEP_BYTES = 256 * 1024
"""Bytes that one step of decompression returns: less than a millisecond."""
INPUT_BYTES = 8 * 1024
"""Bytes that one step reads: blocks without content take time, too."""
_RATIO_MAX = 1_032
"""Largest ratio of deflate: its longest match is 258 bytes, and takes two bits at least."""
_GZIP_WINDOW = 31  # of zlib: with the header of gzip


def timeout_s(text: bytes) -> float:
    """Decode the header grpc-timeout to seconds.

    Raises:
        CallFailed: It is not a number of up to 8 digits and a unit.
    """
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise CallFailed(
            Status.INTERNAL, f"grpc-timeout {text[:50]!r}; allowed: 1 to 8 digits and H M S m u n"
        )
    return int(match[1]) * _SECONDS[match[2]]


def encode(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return PREFIX.pack(0, len(message)) + message


def first(data: bytes | bytearray) -> tuple[int, int] | None:
    """Return the flag of the first message, and its end; None if it is incomplete.

    Raises:
        CallFailed: It exceeds a limit.
    """
    if len(data) < PREFIX.size:
        return None
    flag, size = PREFIX.unpack_from(data)
    check_size(size)
    end = PREFIX.size + size
    return None if len(data) < end else (flag, end)


def without_prefix(data: bytes | bytearray) -> bytes | bytearray:
    """Return the content of a message; a bytearray loses its prefix, as a copy of MiBs takes ms."""
    if isinstance(data, bytearray):
        del data[: PREFIX.size]
        return data
    return data[PREFIX.size :]


def check_size(size: int) -> None:
    """Refuse a message that is too large. Raises CallFailed."""
    limit = limits.GRPC_MESSAGE_BYTES
    if size > limit.maximum:
        raise CallFailed(Status.RESOURCE_EXHAUSTED, str(limit.exceeded(size)))


def inflated(message: bytes | bytearray, encoding: bytes) -> Steps[bytearray]:
    """Decompress the content of a message with the flag 1, in steps of ``STEP_BYTES``; return it.

    Raises:
        CallFailed: The encoding is unknown, the message is damaged, or exceeds a limit.
    """
    if encoding == b"identity":
        raise CallFailed(Status.INTERNAL, "a compressed message, without grpc-encoding")
    limit = limits.GRPC_INFLATED_BYTES
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    content = bytearray()  # not pieces to be joined: that is a step of several ms
    position = 0
    rest: bytes | bytearray = b""
    try:
        while not inflater.eof:
            if not rest:
                rest = message[position : position + INPUT_BYTES]
                position += INPUT_BYTES
            piece = inflater.decompress(rest, min(STEP_BYTES, limit.maximum + 1 - len(content)))
            if not piece and position >= len(message) and not inflater.unconsumed_tail:
                break
            rest = inflater.unconsumed_tail
            content += piece
            if len(content) > limit.maximum:
                raise CallFailed(Status.RESOURCE_EXHAUSTED, str(limit.exceeded()))
            yield
    except zlib.error as error:
        raise CallFailed(Status.INTERNAL, f"a message is not gzip: {error}") from None
    if not inflater.eof or inflater.unused_data or position < len(message):
        raise CallFailed(Status.INTERNAL, "a message is not gzip: it ends early, or too late")
    return content


def inflated_bytes_max(message: bytes | bytearray) -> int:
    """Return the largest size that a compressed message may have, as far as it is accepted."""
    return min(_RATIO_MAX * len(message), limits.GRPC_INFLATED_BYTES.maximum)


def encode_reason(reason: str) -> bytes:
    """Encode a text for the header grpc-message: UTF-8, and all but visible ASCII as %XX."""
    data = excerpt(reason, REASON_LETTERS).encode(errors="replace")
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in data
    ).strip()
