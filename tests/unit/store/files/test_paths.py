"""File names of a store, in both directions."""

import pytest

from cases import each
from reput.store.files import paths


@pytest.mark.parametrize(
    ("offset_bytes", "name"),
    [
        (0, "00000000000000000000"),
        (1 << 30, "00000000001073741824"),
        (6_000_000, "00000000000006000000"),
        ((1 << 63) - 1, "09223372036854775807"),
    ],
)
def test_offset_names_have_20_digits_both_ways(offset_bytes: int, name: str) -> None:
    assert paths.offset_name(offset_bytes) == name
    assert paths.parse_offset_name(name) == offset_bytes


@each(
    "name",
    [
        "",
        "0",
        "0000000000000000000",
        "000000000000000000000",
        "0000000000000000000a",
        "-0000000000000000001",
        " 0000000000000000000",
        "\u0660" * 20,
        "²0000000000000000000",
        "09223372036854775808",  # one more than a long
        "99999999999999999999",
        "00000000000000000000.tmp",
        ".DS_Store",
    ],
)
def test_other_names_are_no_offset_names(name: str) -> None:
    assert paths.parse_offset_name(name) is None


def test_index_names_are_17_digits() -> None:
    assert paths.is_index_name("20261121024358034")
    for name in ("2026112102435803", "202611210243580345", "2026112102435803x", "", "٢" * 17):
        assert not paths.is_index_name(name)


@pytest.mark.parametrize(("name", "queue_id"), [("0", 0), ("7", 7), ("2147483647", 2147483647)])
def test_a_queue_folder_is_a_number(name: str, queue_id: int) -> None:
    assert paths.parse_queue_id(name) == queue_id


@each(
    "name", ["", "a", "-1", "+1", "1.0", " 1", "01", "00", "٣", "2147483648", "9" * 30, "CURRENT"]
)
def test_other_folders_are_no_queues(name: str) -> None:
    assert paths.parse_queue_id(name) is None


def test_queue_folders() -> None:
    assert paths.queue_folder("%RETRY%group", 3) == "consumequeue/%RETRY%group/3"
    family = paths.CONSUME_QUEUE_EXT
    assert paths.queue_folder("T", 0, family) == "consumequeue_ext/T/0"


def test_rocksdb_marks_name_their_contents() -> None:
    assert set(paths.ROCKSDB_MARKS) == {
        "consumequeue/CURRENT",
        "consumequeue_rocksdb/CURRENT",
        "config/rdb",
        "config/metadata",
    }
    assert all(paths.ROCKSDB_MARKS.values())
