"""Memory with a fixed address."""

import ctypes
import errno
import gc
import os
from pathlib import Path

import pytest

from reput.store.files import memory
from reput.store.files.memory import PAGE_BYTES, AnonymousMemory, FileMap

SIZE = 3 * PAGE_BYTES


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(b"file" * (SIZE // 4))
    return os.open(path, os.O_RDWR)


def test_view_and_address_are_the_same_zeroed_memory() -> None:
    made = AnonymousMemory(SIZE)
    assert bytes(made.view) == bytes(SIZE)
    made.view[7:11] = b"here"
    assert ctypes.string_at(made.address + 7, 4) == b"here"
    ctypes.memmove(made.address, b"there", 5)
    assert bytes(made.view[:5]) == b"there"


def test_memory_lives_as_long_as_a_view() -> None:
    view = AnonymousMemory(SIZE).view
    gc.collect()
    view[0] = 1
    assert view[0] == 1


def test_a_map_is_the_file_and_needs_no_descriptor(descriptor: int) -> None:
    mapped = FileMap(descriptor, SIZE, is_writable=True)
    again = os.dup(descriptor)
    os.close(descriptor)
    ctypes.memmove(mapped.address + PAGE_BYTES, b"map!", 4)
    assert os.pread(again, 8, PAGE_BYTES) == b"map!file"
    os.close(again)
    mapped.close()
    assert mapped.address == 0
    mapped.close()


def test_zeros_take_the_place_of_a_file_but_not_its_bytes(descriptor: int) -> None:
    mapped = FileMap(descriptor, SIZE, is_writable=True)
    mapped.replace_by_zeros()
    assert ctypes.string_at(mapped.address, SIZE) == bytes(SIZE)
    ctypes.memmove(mapped.address, b"lost", 4)
    assert os.pread(descriptor, 4, 0) == b"file"
    mapped.close()
    os.close(descriptor)


def test_a_range_that_cannot_be_mapped_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        FileMap(-1, SIZE, is_writable=True)


def test_populate_changes_no_byte_and_takes_any_range(descriptor: int) -> None:
    mapped = FileMap(descriptor, SIZE, is_writable=True)
    memory.populate(mapped.address + 100, PAGE_BYTES)
    assert ctypes.string_at(mapped.address, SIZE) == b"file" * (SIZE // 4)
    mapped.close()
    os.close(descriptor)


def test_populate_of_pages_after_the_file_end_is_an_error_and_no_signal(descriptor: int) -> None:
    mapped = FileMap(descriptor, SIZE, is_writable=True)
    if not memory.populate(mapped.address, SIZE):
        pytest.skip("this system cannot populate")
    os.truncate(descriptor, PAGE_BYTES)
    with pytest.raises(OSError, match="Bad address") as caught:
        memory.populate(mapped.address, SIZE)
    assert caught.value.errno == errno.EFAULT
    mapped.close()
    os.close(descriptor)


def locked_kilobytes() -> int:
    """Return how much memory of this process may not be swapped out."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmLck:")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux counts locked pages")
def test_memory_is_locked_and_unlocked() -> None:
    made = AnonymousMemory(PAGE_BYTES)
    before = locked_kilobytes()
    memory.lock(made.address, PAGE_BYTES)
    assert locked_kilobytes() == before + PAGE_BYTES // 1024
    memory.unlock(made.address, PAGE_BYTES)
    assert locked_kilobytes() == before


def test_a_range_that_cannot_be_locked_is_an_error() -> None:
    with pytest.raises(OSError, match="Cannot allocate memory"):
        memory.lock(0, PAGE_BYTES)
