"""Message bodies: checksum and compression.

The client compresses (bodies over 4096 bytes by default, never batches), the broker stores the
bytes as received, and the checksum covers the stored bytes. LZ4 is the frame format, zlib has its
header.
"""

import zlib
from collections.abc import Callable
from typing import Any

from reput.errors import CorruptRecord
from reput.extras import extra_missing
from reput.format import sys_flag as flags

BODY_BYTES_MAX = 128 * 1024 * 1024
"""Maximum size of a decompressed body: a damaged or hostile frame must not exhaust the memory."""

_STEP_BYTES = 4 * 1024
"""Compressed bytes per call of a decompressor: zstd's has no output limit, and may expand these to
128 MB."""


def crc(body: bytes | memoryview) -> int:
    """Return BODYCRC: CRC-32 of the stored body with the sign bit cleared; 0 for an empty body."""
    return zlib.crc32(body) & 0x7FFFFFFF


def compression_name(sys_flag: int) -> str:
    """Return ``none``, ``zlib``, ``lz4`` or ``zstd``, or ``unknown N`` for undefined types."""
    if not sys_flag & flags.COMPRESSED:
        return "none"
    kind = sys_flag & flags.COMPRESSION_TYPE_MASK
    if kind in (0, flags.COMPRESSION_ZLIB):
        return "zlib"
    if kind == flags.COMPRESSION_LZ4:
        return "lz4"
    if kind == flags.COMPRESSION_ZSTD:
        return "zstd"
    return f"unknown {kind >> 8}"


def decompress(body: bytes | memoryview, sys_flag: int) -> bytes:
    """Return the decompressed body.

    Raises:
        CorruptRecord: The body is not of the type in ``sys_flag``, ends early, has an unknown
            compression type, or decompresses to more than ``BODY_BYTES_MAX``.
        ExtraMissing: The package of LZ4 or Zstandard is not installed.
    """
    kind = compression_name(sys_flag)
    if kind == "none" or not len(body):
        return bytes(body)
    if kind == "zlib":
        return _inflate(body)
    if kind == "lz4":
        return _unpack_lz4(body)
    if kind == "zstd":
        return _unpack_zstd(body)
    raise CorruptRecord(f"body has compression type {kind}; known are zlib, lz4 and zstd")


def compress(body: bytes, sys_flag: int, level: int = 5) -> bytes:
    """Return the body compressed as ``sys_flag`` specifies; unchanged without ``COMPRESSED``.

    Raises:
        ValueError: The compression type is unknown.
    """
    kind = compression_name(sys_flag)
    if kind == "none":
        return body
    if kind == "zlib":
        return zlib.compress(body, level)
    if kind == "lz4":
        import lz4.frame

        return bytes(lz4.frame.compress(body))
    if kind == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=level).compress(body)
    raise ValueError(f"compression type {kind}; known are zlib, lz4 and zstd")


# lz4 and zstandard are imported on first use: most stores need neither, and the kernels are built
# without them.


def _inflate(body: bytes | memoryview) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise CorruptRecord(f"body is not zlib: {error}") from error
    return _checked(data, inflater.eof, "zlib")


def _unpack_lz4(body: bytes | memoryview) -> bytes:
    try:
        import lz4.frame
    except ModuleNotFoundError as error:
        raise extra_missing("a body compressed with LZ4", error) or error from error

    try:
        return _unpack_frames(body, lz4.frame.LZ4FrameDecompressor, "lz4")
    except (RuntimeError, EOFError) as error:
        raise CorruptRecord(f"body is not lz4: {error}") from error


def _unpack_zstd(body: bytes | memoryview) -> bytes:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise extra_missing("a body compressed with Zstandard", error) or error from error

    # Java streams: the frame lacks the decompressed size that the one-call API needs.
    try:
        return _unpack_frames(body, zstandard.ZstdDecompressor().decompressobj, "zstd")
    except zstandard.ZstdError as error:
        raise CorruptRecord(f"body is not zstd: {error}") from error


def _unpack_frames(body: bytes | memoryview, new_reader: Callable[[], Any], kind: str) -> bytes:
    """Decompress one or several concatenated frames; Java reads all of them."""
    reader = new_reader()
    parts: list[bytes] = []
    size = position = 0
    while position < len(body) and size <= BODY_BYTES_MAX:
        if reader.eof:
            reader = new_reader()
        step = bytes(body[position : position + _STEP_BYTES])
        parts.append(reader.decompress(step))
        size += len(parts[-1])
        position += len(step) - len(reader.unused_data or b"")
    return _checked(b"".join(parts), reader.eof, kind)


def _checked(data: bytes, is_whole: bool, kind: str) -> bytes:
    if len(data) > BODY_BYTES_MAX:
        raise CorruptRecord(f"{kind} body unpacks to more than {BODY_BYTES_MAX} bytes")
    if not is_whole:
        raise CorruptRecord(f"body is not {kind}: it ends before its end mark")
    return data
