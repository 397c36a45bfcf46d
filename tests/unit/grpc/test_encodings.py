"""Bodies that clients can read, by codec and language."""

import gzip
import zlib

import pytest

from reput.format import body as bodies, sys_flag as flags
from reput.format.codes import LanguageCode
from reput.format.message import Host, StoredMessage
from reput.grpc.encodings import ASIDE_BYTES, readable

PLAIN = bytes(range(256)) * 400
READ_BY = {
    "gzip": (LanguageCode.JAVA, LanguageCode.GO, LanguageCode.PYTHON),
    "zlib": (LanguageCode.JAVA, LanguageCode.GO, LanguageCode.PYTHON),
    "lz4": (LanguageCode.JAVA,),
    "zstd": (LanguageCode.JAVA,),
}
"""What the SDKs were seen to read."""
FLAGS = {
    "gzip": flags.COMPRESSED,
    "zlib": flags.COMPRESSED | flags.COMPRESSION_ZLIB,
    "lz4": flags.COMPRESSED | flags.COMPRESSION_LZ4,
    "zstd": flags.COMPRESSED | flags.COMPRESSION_ZSTD,
}


def stored(body: bytes, sys_flag: int) -> StoredMessage:
    host = Host(b"\x0a\x00\x00\x07", 1)
    return StoredMessage(
        topic="T", body=body, queue_id=0, queue_offset=0, physical_offset=0, sys_flag=sys_flag,
        born_timestamp=0, born_host=host, store_timestamp=0, store_host=host,
    )  # fmt: skip


@pytest.mark.parametrize("language", LanguageCode)
@pytest.mark.parametrize("codec", FLAGS)
async def test_a_body_is_decompressed_for_those_that_cannot(
    codec: str, language: LanguageCode
) -> None:
    sys_flag = FLAGS[codec]
    packed = gzip.compress(PLAIN) if codec == "gzip" else bodies.compress(PLAIN, sys_flag)
    message = stored(packed, sys_flag | flags.TRANSACTION_COMMIT)
    shown = await readable(message, language)
    if language in READ_BY[codec]:
        assert shown is message
    else:
        assert (shown.body, shown.sys_flag) == (PLAIN, flags.TRANSACTION_COMMIT)


async def test_a_large_body_is_decompressed_as_well() -> None:
    plain = bytes(100 * ASIDE_BYTES * 10)
    packed = zlib.compress(plain)
    assert len(packed) < ASIDE_BYTES
    large = zlib.compress(plain, 0)
    assert len(large) > ASIDE_BYTES
    for body in (packed, large):
        message = await readable(stored(body, FLAGS["zlib"]), LanguageCode.RUST)
        assert message.body == plain


@pytest.mark.parametrize("codec", FLAGS)
async def test_a_damaged_body_stays_as_it_is(codec: str) -> None:
    magic = b"\x1f\x8b" if codec == "gzip" else b""
    message = stored(magic + b"damaged", FLAGS[codec])
    assert await readable(message, LanguageCode.RUST) is message


async def test_a_plain_body_stays_as_it_is() -> None:
    message = stored(b"\x1f\x8b", 0)
    assert await readable(message, LanguageCode.RUST) is message
