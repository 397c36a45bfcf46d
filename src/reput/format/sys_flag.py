"""The bits of a message's ``sysFlag`` (4 bytes, set by clients and broker)."""

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
"""Compression type zlib; 0 in these bits also means zlib, for clients before 4.9.4."""


def transaction_type(sys_flag: int) -> int:
    """Return one of the ``TRANSACTION_`` values."""
    return sys_flag & TRANSACTION_MASK


def is_queued(sys_flag: int) -> bool:
    """Return whether a record gets a consume-queue unit: not prepared, not rolled back."""
    return transaction_type(sys_flag) in (TRANSACTION_NONE, TRANSACTION_COMMIT)
