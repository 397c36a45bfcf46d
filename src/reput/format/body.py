"""Message bodies: checksum and compression.

The client compresses (bodies over 4096 bytes by default, never batches), the broker stores what it
is sent, and the checksum is over the stored bytes. LZ4 is the frame format, zlib has its header.
"""

import zlib

from reput.errors import CorruptRecord
from reput.format import sys_flag as flags

BODY_BYTES_MAX = 128 * 1024 * 1024
"""A body that unpacks to more is refused: a damaged or hostile frame must not take all memory."""

_ZSTD_STEP_BYTES = 16 * 1024
"""Fed at once to zstd, whose reader cannot be told where to stop: bounds what one step unpacks."""


def crc(body: bytes | memoryview) -> int:
    """Return BODYCRC: CRC-32 of the stored body with the sign bit cleared; 0 for an empty body."""
    return zlib.crc32(body) & 0x7FFFFFFF


def compression_name(sys_flag: int) -> str:
    """Return ``none``, ``zlib``, ``lz4`` or ``zstd``, or ``unknown N`` for types nobody defined."""
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
    """Return the body as the producer gave it.

    Raises:
        CorruptRecord: The body is not what ``sys_flag`` says, ends early, has an unknown
            compression type, or unpacks to more than ``BODY_BYTES_MAX``.
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
    """Return the body packed the way ``sys_flag`` says; unchanged without ``COMPRESSED``.

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


# lz4 and zstandard are imported where they are used: most stores hold neither, and the kernels are
# built where neither is installed.


def _inflate(body: bytes | memoryview) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise CorruptRecord(f"body is not zlib: {error}") from error
    return _checked(data, inflater.eof, "zlib")


def _unpack_lz4(body: bytes | memoryview) -> bytes:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        data = bytes(unpacker.decompress(bytes(body), max_length=BODY_BYTES_MAX + 1))
    except (RuntimeError, EOFError) as error:
        raise CorruptRecord(f"body is not lz4: {error}") from error
    return _checked(data, unpacker.eof, "lz4")


def _unpack_zstd(body: bytes | memoryview) -> bytes:
    import zstandard

    # Java streams: the frame does not say how much it unpacks to, so the one-call API cannot be used.
    reader = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    try:
        for start in range(0, len(body), _ZSTD_STEP_BYTES):
            parts.append(reader.decompress(bytes(body[start : start + _ZSTD_STEP_BYTES])))
            size += len(parts[-1])
            if size > BODY_BYTES_MAX or reader.eof:
                break
    except zstandard.ZstdError as error:
        raise CorruptRecord(f"body is not zstd: {error}") from error
    return _checked(b"".join(parts), reader.eof, "zstd")


def _checked(data: bytes, is_whole: bool, kind: str) -> bytes:
    if len(data) > BODY_BYTES_MAX:
        raise CorruptRecord(f"{kind} body unpacks to more than {BODY_BYTES_MAX} bytes")
    if not is_whole:
        raise CorruptRecord(f"body is not {kind}: it ends before its end mark")
    return data
