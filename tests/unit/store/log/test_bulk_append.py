"""Bulk append: the end of the log after an unfinished import, and the record of imports."""

from pathlib import Path

import pytest

import store_builder
from reput.errors import CorruptRecord
from reput.store.files import paths
from reput.store.files.disk import Disk
from reput.store.files.files import open_folder
from reput.store.log import bulk_append
from reput.store.log.bulk_append import Appends, Begun
from reput.store.reader import StoreReader
from store_builder import Built


def end_of(store: Built) -> int:
    return StoreReader.open(str(store.root)).end_offset


@pytest.fixture
def store(tmp_path: Path) -> Built:
    return store_builder.build(
        tmp_path / "store", store_builder.messages(20), log_file_bytes=1 << 16
    )


def begin(store: Built, log_end: int) -> None:
    begun = Begun(log_end, log_end, 7, "query", 3)
    bulk_append.save(str(store.root), Appends(begun, {"query": 2}), Disk())


def test_a_saved_import_can_be_loaded(store: Built) -> None:
    folder = open_folder(str(store.root))
    assert bulk_append.read(folder) == Appends(None, {})
    begin(store, 5)
    begun = Begun(5, 5, 7, "query", 3)
    assert bulk_append.read(folder) == Appends(begun, {"query": 2})
    bulk_append.save(str(store.root), Appends(None, {"query": 3, "other": 0}), Disk())
    assert bulk_append.read(folder) == Appends(None, {"query": 3, "other": 0})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"begun": null}', '{"begun": {"a": 1}, "batches": {}}']
)
def test_an_unreadable_import_file_is_damage(text: str, store: Built) -> None:
    (store.root / paths.BULK_APPENDS).write_text(text)
    with pytest.raises(
        CorruptRecord, match=r"appends.json.*it contains the last batch of each stream"
    ):
        bulk_append.read(open_folder(str(store.root)))


@pytest.mark.parametrize("has_crashed", [False, True])
@pytest.mark.parametrize("torn", [0, 3, 4, 7], ids="{} of eight bytes".format)
def test_the_log_ends_where_an_unfinished_import_began(
    has_crashed: bool, torn: int, store: Built
) -> None:
    end = end_of(store)
    messages = list(StoreReader.open(str(store.root)).messages())
    begin_offset = messages[15].physical_offset
    begin(store, begin_offset)
    if has_crashed:
        (store.root / paths.ABORT).touch()
    # A whole record: the import is done. Zeros or part of a head, then records: it is not done.
    assert end_of(store) == end
    file = store.log_file(0)
    data = bytearray(file.read_bytes())
    head = bytes(data[begin_offset : begin_offset + 8])
    data[begin_offset : begin_offset + 8] = head[:torn].ljust(8, b"\0")
    file.write_bytes(data)
    reader = StoreReader.open(str(store.root))
    assert reader.end_offset == begin_offset
    assert reader.tail.stale is not None
    assert (reader.tail.stale.physical_offset, reader.tail.stale.end) == (begin_offset, end)
    assert list(reader.messages()) == messages[:15]
    data[begin_offset : begin_offset + 8] = head
    file.write_bytes(data)
    assert end_of(store) == end


@pytest.mark.parametrize("elsewhere", [-5, 1 << 40])
def test_an_import_outside_the_log_is_ignored(elsewhere: int, store: Built) -> None:
    end = end_of(store)
    begin(store, elsewhere)
    assert end_of(store) == end
