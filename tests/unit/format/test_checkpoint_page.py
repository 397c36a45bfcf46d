"""The checkpoint file, compared with what Java's ``StoreCheckpoint`` reads."""

import struct

import pytest
from hypothesis import given, strategies as st

import golden
from cases import each
from reput.errors import CorruptRecord
from reput.format import checkpoint_page
from reput.format.checkpoint_page import Checkpoint

STORES = golden.STORES + [
    (version, f"torn/{name}-recovered")
    for version in golden.VERSIONS
    for name in golden.torn_recovered(version)
]


@each(("version", "name"), STORES)
def test_every_checkpoint_equals_javas(version: str, name: str) -> None:
    page = golden.files(version, name)["checkpoint"]
    expected = golden.manifest(version, name)["checkpoint"]
    checkpoint = checkpoint_page.unpack(page)
    assert checkpoint == Checkpoint(
        physical_timestamp=expected["physicMsgTimestamp"],
        queue_timestamp=expected["logicsMsgTimestamp"],
        index_timestamp=expected["indexMsgTimestamp"],
        # 4.x does not have these fields, and leaves zeros.
        master_flushed_offset=expected.get("masterFlushedOffset", 0),
        confirmed_physical_offset=expected.get("confirmPhyOffset", 0),
        queue_physical_offset=expected.get("logicsPhysicalOffset", 0),
    )
    assert checkpoint.min_timestamp == expected["minTimestamp"]
    assert checkpoint_page.pack(checkpoint) == page


def test_golden_stores_have_every_field_except_the_masters() -> None:
    seen = [
        checkpoint_page.unpack(golden.files(version, name)["checkpoint"])
        for version, name in golden.STORES
    ]
    assert any(page.index_timestamp for page in seen)
    assert any(page.confirmed_physical_offset for page in seen)
    assert any(page.queue_physical_offset for page in seen)


def test_layout_by_hand() -> None:
    page = checkpoint_page.pack(Checkpoint(1, 2, 3, 4, 5, 6))
    assert page == struct.pack(">qqqqqq", 1, 2, 3, 4, 5, 6) + bytes(4048)
    assert len(page) == checkpoint_page.SIZE == 4096
    assert checkpoint_page.pack(Checkpoint()) == bytes(4096)
    assert checkpoint_page.unpack(bytes(4096)) == Checkpoint()


@pytest.mark.parametrize(
    ("physical", "queue", "expected"),
    [
        (0, 0, 0),
        (2999, 5000, 0),
        (3000, 5000, 0),
        (3001, 5000, 1),
        (5000, 3001, 1),
        (1795229103157, 1795229103157, 1795229100157),
    ],
)
def test_min_timestamp(physical: int, queue: int, expected: int) -> None:
    assert Checkpoint(physical, queue, 1).min_timestamp == expected


def test_cut() -> None:
    for size in (0, 1, 47):
        with pytest.raises(CorruptRecord, match=f"checkpoint is cut: {size} of 48 bytes"):
            checkpoint_page.unpack(bytes(size))
    assert checkpoint_page.unpack(bytes(48)) == Checkpoint()


int64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.builds(Checkpoint, int64, int64, int64, int64, int64, int64))
def test_round_trip(checkpoint: Checkpoint) -> None:
    assert checkpoint_page.unpack(checkpoint_page.pack(checkpoint)) == checkpoint
    assert checkpoint.min_timestamp >= 0


@given(st.binary(max_size=4100))
def test_any_bytes_are_a_page_or_cut(data: bytes) -> None:
    try:
        checkpoint_page.unpack(data)
    except CorruptRecord:
        assert len(data) < 48
