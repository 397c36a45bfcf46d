"""The bits of sysFlag: their values in RocketMQ, and those of golden records."""

import pytest

import golden
from cases import each
from reput.format import sys_flag as flags


@each(
    ("name", "value"),
    [
        ("COMPRESSED", 0x1),
        ("MULTI_TAGS", 0x2),
        ("TRANSACTION_MASK", 0xC),
        ("TRANSACTION_NONE", 0),
        ("TRANSACTION_PREPARED", 0x4),
        ("TRANSACTION_COMMIT", 0x8),
        ("TRANSACTION_ROLLBACK", 0xC),
        ("BORN_HOST_V6", 0x10),
        ("STORE_HOST_V6", 0x20),
        ("NEED_UNWRAP", 0x40),
        ("INNER_BATCH", 0x80),
        ("COMPRESSION_TYPE_MASK", 0x700),
        ("COMPRESSION_LZ4", 0x100),
        ("COMPRESSION_ZSTD", 0x200),
        ("COMPRESSION_ZLIB", 0x300),
    ],
)
def test_numbers(name: str, value: int) -> None:
    assert getattr(flags, name) == value


@pytest.mark.parametrize(
    ("sys_flag", "kind", "is_queued"),
    [
        (0, flags.TRANSACTION_NONE, True),
        (0x4, flags.TRANSACTION_PREPARED, False),
        (0x8, flags.TRANSACTION_COMMIT, True),
        (0xC, flags.TRANSACTION_ROLLBACK, False),
        (825, flags.TRANSACTION_COMMIT, True),
        (-1, flags.TRANSACTION_ROLLBACK, False),
        (0x7FF & ~0xC, flags.TRANSACTION_NONE, True),
    ],
)
def test_transaction_type(sys_flag: int, kind: int, is_queued: bool) -> None:
    assert flags.transaction_type(sys_flag) == kind
    assert flags.is_queued(sys_flag) is is_queued


@each(("version", "name"), golden.STORES)
def test_bits_of_golden_records(version: str, name: str) -> None:
    known = 0x1 | 0x2 | 0xC | 0x10 | 0x20 | 0x40 | 0x80 | 0x700
    for message in golden.messages(version, name):
        bits = message["sysFlag"]
        assert not bits & ~known
        assert bool(bits & flags.BORN_HOST_V6) == message["bornHost"].startswith("[")
        assert bool(bits & flags.STORE_HOST_V6) == message["storeHost"].startswith("[")
        if not bits & flags.COMPRESSED:
            assert message["bodyLength"] == message["storedBodyLength"]
        # A half message is stored without its transaction bits; else no queue would have it.
        assert flags.is_queued(bits)
        is_committed = flags.transaction_type(bits) == flags.TRANSACTION_COMMIT
        assert is_committed == (message["preparedTransactionOffset"] > 0)
