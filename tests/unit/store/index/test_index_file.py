"""The index for writing: entries as in Java's files, and files that fill up within a record.

tests/interop/test_same_bytes.py compares whole files with Java's byte by byte.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.format import index_entry
from reput.store.config import StoreConfig
from reput.store.files.disk import Disk
from reput.store.hot_state import HotState
from reput.store.index.index_file import STEPS, IndexFiles
from reput.store.kernels import hot

NOW_MS = 1_700_000_000_000
SLOTS, ENTRIES = 4, 6  # five keys per file: entry 0 is never used
SIZE = 40 + 4 * SLOTS + 20 * ENTRIES


@pytest.fixture
def index(tmp_path: Path) -> Iterator[IndexFiles]:
    made = open_index(tmp_path)
    yield made
    made.close()


def open_index(root: Path, slots: int = SLOTS, disk: Disk | None = None) -> IndexFiles:
    config = StoreConfig(
        store_path_root_dir=str(root), max_hash_slot_num=slots, max_index_num=ENTRIES
    )
    made = IndexFiles(str(root), config, HotState(), disk or Disk())
    made.load()
    return made


def put(index: IndexFiles, offset: int, *keys: str, at_ms: int = NOW_MS) -> None:
    index.put([index_entry.key_of("T", key) for key in keys], offset, at_ms, at_ms)


def find(index: IndexFiles, key: str, begin: int = 0, end: int = 1 << 62) -> list[int | None]:
    return list(index.newest_first(index_entry.key_of("T", key), begin, end))


def headers(root: Path) -> list[index_entry.Header]:
    files = sorted((root / "index").iterdir())
    assert {file.stat().st_size for file in files} == {SIZE}
    return [index_entry.unpack_header(file.read_bytes()) for file in files]


# --- putting ----------------------------------------------------------------


def test_entries_put_together_are_equal_to_entries_put_one_by_one(tmp_path: Path) -> None:
    keys = ["a", "b", "größer", "😀", "polygenelubricants", "a", "\ud800"]
    for stop in range(2, len(keys) + 1):
        together, separate = (open_index(tmp_path / name / str(stop)) for name in ("one", "other"))
        put(together, 300, *keys[:stop], at_ms=NOW_MS + 2_500)
        for key in keys[:stop]:
            put(separate, 300, key, at_ms=NOW_MS + 2_500)
        expected = [file.read_bytes() for file in sorted((tmp_path / "other").rglob("index/2*"))]
        assert [
            file.read_bytes() for file in sorted((tmp_path / "one").rglob("index/2*"))
        ] == expected
        together.close()
        separate.close()


def test_a_record_that_fills_many_files_is_put_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part, each of the 16,000 keys of a record at a file end took 15 us of Python."""
    keys = [f"key-{number}" for number in range(4 * ENTRIES)]
    together, separate = (open_index(tmp_path / name) for name in ("one", "other"))
    for key in keys:
        put(separate, 300, key)
    calls = []
    put_texts = hot.put_texts

    def count(*arguments: int) -> int:
        calls.append(arguments)
        return put_texts(*arguments)

    monkeypatch.setattr(hot, "put_texts", count)
    put(together, 300, *keys)
    files = len(headers(tmp_path / "one"))
    assert files > 3
    assert len(calls) <= files
    assert headers(tmp_path / "one") == headers(tmp_path / "other")
    assert all(find(together, key) == find(separate, key) for key in keys)
    together.close()
    separate.close()


def test_a_full_file_is_synced_once_more_after_its_end(tmp_path: Path) -> None:
    """Its header may have been written after its last entry was synced."""

    class Counting(Disk):
        def sync_file(self, descriptor: int, path: str) -> None:
            synced.append(path)

    synced: list[str] = []
    index = open_index(tmp_path, disk=Counting())
    put(index, 0, "a", "b", "c", "d", "e")
    index.sync()
    (first,) = (str(entry) for entry in (tmp_path / "index").iterdir())
    put(index, 300, "f")
    synced.clear()
    assert index.sync() == NOW_MS
    assert first in synced
    index.close()


# --- opening ----------------------------------------------------------------


def test_entries_of_the_last_record_are_counted_over_two_files(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    put(index, 0, "a", "b", "c")
    put(index, 300, "d", "e", "f")
    index.close()
    index = open_index(tmp_path)
    assert index.entries_of_last_record() == 3
    index.close()


# --- long chains --------------------------------------------------------------


def open_large_index(root: Path) -> IndexFiles:
    config = StoreConfig(store_path_root_dir=str(root), max_hash_slot_num=SLOTS, max_index_num=5000)
    made = IndexFiles(str(root), config, HotState(), Disk())
    made.load()
    return made


def test_a_long_chain_is_searched_in_parts(tmp_path: Path) -> None:
    """Each part is bounded, so that other requests run in between, whatever a client has stored."""
    index = open_large_index(tmp_path)
    for offset in range(4):
        put(index, offset, *["other" if offset else "k"] * 1000)
    steps = find(index, "k")
    assert [physical_offset for physical_offset in steps if physical_offset is not None] == [0]
    chain = 4000 if key_slot("k") == key_slot("other") else 1000
    assert steps.count(None) == chain // STEPS
    assert len(find(index, "other")) == 3 + (chain if chain == 4000 else 3000) // STEPS
    index.close()


def key_slot(key: str) -> int:
    return index_entry.key_hash(index_entry.key_of("T", key)) % SLOTS


def test_a_deleted_file_ends_its_search(tmp_path: Path) -> None:
    """Between two parts retention may delete the file and unmap its memory."""
    index = open_large_index(tmp_path)
    for offset in range(8):
        put(index, offset, *["k"] * 1000)
    assert len(list((tmp_path / "index").iterdir())) == 2
    walk = index.newest_first(index_entry.key_of("T", "k"), 0, 1 << 62)
    while (offset := next(walk)) != 3:  # in the older file, with 2, 1 and 0 left
        assert offset is None or offset > 3
    index.delete_before(5)
    assert [physical_offset for physical_offset in walk if physical_offset is not None] == []
    index.close()
