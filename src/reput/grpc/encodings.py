"""Compressed bodies: a client gets one as it is if its SDK can decompress it, else plain.

Remoting producers compress with zlib, LZ4 or Zstandard; the protocol of 5.x clients has only one
name for all of them, GZIP. Java's proxy passes them on as they are, and most SDKs fail.

Source: rocketmq-clients: Java 5.2.0 ``Utilities.decompressBytes``, Go 5.1.4 ``utils.AutoDecode``,
Python 5.1.2 ``Misc.uncompress_bytes_gzip``; Node 1.0.8 reads gzip only, C++ zlib only, Rust 5.0.0
nothing.
"""

import asyncio
import dataclasses
import logging
import zlib

from reput.errors import CorruptRecord
from reput.extras import ExtraMissing
from reput.format import body as bodies, sys_flag as flags
from reput.format.codes import LanguageCode
from reput.format.message import StoredMessage

ASIDE_BYTES = 16 * 1024
"""Size above which a body is decompressed in a thread, in bytes: it may grow a thousand times."""
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
"""Window bits of zlib for data with the header of gzip."""
_READABLE = {
    LanguageCode.JAVA: frozenset({"gzip", "zlib", "lz4", "zstd"}),
    LanguageCode.GO: frozenset({"gzip", "zlib"}),
    LanguageCode.PYTHON: frozenset({"gzip", "zlib"}),
}
_NONE: frozenset[str] = frozenset()

_log = logging.getLogger(__name__)


async def readable(message: StoredMessage, language: int) -> StoredMessage:
    """Return a message with a body that an SDK can read; as it is if it cannot be decompressed.

    Args:
        message: The stored message.
        language: Language of the client, a ``LanguageCode``.
    """
    if not message.sys_flag & flags.COMPRESSED:
        return message
    is_gzip = message.body.startswith(_GZIP_MAGIC)
    codec = "gzip" if is_gzip else bodies.compression_name(message.sys_flag)
    if codec in _READABLE.get(LanguageCode(language), _NONE):
        return message
    unpack = _gunzip if is_gzip else bodies.decompress
    try:
        if len(message.body) > ASIDE_BYTES:
            plain = await asyncio.to_thread(unpack, message.body, message.sys_flag)
        else:
            plain = unpack(message.body, message.sys_flag)
    except (CorruptRecord, ExtraMissing) as error:
        _log.warning("%s: its body stays compressed: %s", message.unique_key, error)
        return message
    packed = flags.COMPRESSED | flags.COMPRESSION_TYPE_MASK
    return dataclasses.replace(message, body=plain, sys_flag=message.sys_flag & ~packed)


def _gunzip(body: bytes, sys_flag: int) -> bytes:
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        plain = inflater.decompress(body, bodies.BODY_BYTES_MAX)
    except zlib.error as error:
        raise CorruptRecord(f"body is not gzip: {error}") from error
    if not inflater.eof:
        raise CorruptRecord(f"gzip body is cut, or has more than {bodies.BODY_BYTES_MAX} bytes")
    return plain
