"""Memory with an address, used by Python and kernels at once: maps of files, and anonymous memory.

Maps of files are made by libc and not by the ``mmap`` module, which keeps a descriptor for each
map: a terabyte of log would need a thousand. Also, its flush holds the GIL while the disk works.
"""

import ctypes
import errno
import mmap
import os
import sys

PAGE_BYTES = mmap.PAGESIZE

_MAP_FIXED = 0x10
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; missing in the ``mmap`` module."""
_FAILED = ctypes.c_void_p(-1).value

# CDLL releases the GIL during calls: populating and locking take milliseconds.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class AnonymousMemory:
    """Zeroed memory with a fixed address. It lives as long as this object or a view of it."""

    def __init__(self, size: int) -> None:
        # Private: a forked child gets a copy and cannot disturb us.
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size = size
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))


class FileMap:
    """A whole file in memory, shared with the file. Needs no descriptor once it is mapped.

    The caller has checked that the file is not shorter: access to a page after the end of a file
    kills the process.
    """

    def __init__(self, descriptor: int, size: int, *, is_writable: bool) -> None:
        """Map the file.

        Raises:
            OSError: The system refuses, for example because the process has too many maps.
        """
        self.address = 0
        self.size = size
        self._protection = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
        self.address = self._map(0, mmap.MAP_SHARED, descriptor)
        content = (ctypes.c_ubyte * size).from_address(self.address)
        self.view = memoryview(content).cast("B")
        """The map's bytes. Unlike other views, this one does not keep the map open."""

    def replace_by_zeros(self) -> None:
        """Release the file, but keep the addresses: readers find zeros there."""
        # The system replaces the pages atomically, so the memory is valid at any moment.
        self._map(self.address, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1)

    def close(self) -> None:
        """Unmap the file. After this, access to an address of the map kills the process."""
        address, self.address = self.address, 0
        if address:
            _check(_libc.munmap(address, self.size))

    def __del__(self) -> None:
        self.close()

    def _map(self, address: int, flags: int, descriptor: int) -> int:
        address_or_error = _libc.mmap(address, self.size, self._protection, flags, descriptor, 0)
        if address_or_error == _FAILED:
            _check(-1)
        return int(address_or_error)


def populate(address: int, length: int) -> bool:
    """Fault in pages for writing, so that the writer does not wait for them.

    Changes no byte, so another thread may write there meanwhile. Does not hold the GIL.

    Returns:
        False if it was not possible: before Linux 5.14, on other systems, or if memory is short.

    Raises:
        OSError: A write there would kill the process: the file has no space for it.
    """
    skipped = address % PAGE_BYTES
    if sys.platform != "linux":
        return False
    if _libc.madvise(address - skipped, length + skipped, _MADV_POPULATE_WRITE) == 0:
        return True
    if ctypes.get_errno() == errno.EFAULT:
        _check(-1)
    return False


def lock(address: int, length: int) -> None:
    """Prevent memory from being swapped out. Raises ``OSError`` if that is not permitted."""
    _check(_libc.mlock(address, length))


def unlock(address: int, length: int) -> None:
    """Let memory be swapped out again. Raises ``OSError`` if it is not mapped."""
    _check(_libc.munlock(address, length))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
